"""A namespace as the commands reach it: over HTTP, with what stands in a connection string.

Owns: the request, its token, and what of a failure is shown. What is asked for is a command's affair. The key is never
in an error.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from xml.sax.saxutils import unescape

import msgspec

from twinbus.model.signature import make_token

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TIMEOUT_S: Final = 20.0
HTTP_PORT: Final = 5300
HTTPS_PORT: Final = 443
"""As in `client.connection_string`, which would be imported with the whole client: a command starts sooner without."""
MAX_RESPONSE_BYTES: Final = 16_777_216
TOKEN_LIFETIME_S: Final = 300
_DETAIL_PATTERN: Final = re.compile(r"<Detail>(.*?)(?:\. TrackingId:[^<]*)?</Detail>", re.DOTALL)


class AdminRequestFailed(Exception):
    """The namespace was not reached, or has refused. The message says why."""


class AdminClient:
    """One namespace."""

    def __init__(self, connection_string: str, ca_files: Sequence[Path] = ()) -> None:
        """ServiceFailed if the connection string cannot be, or a file cannot be read."""
        from twinbus.client.connection_string import ConnectionString  # noqa: PLC0415  # `serve` starts sooner without

        try:
            self._connection_string = ConnectionString.parse(connection_string)
            self._tls = None if self._connection_string.is_emulator else tls_context(ca_files)
        except (ValueError, OSError) as error:
            raise AdminRequestFailed(str(error)) from error

    @property
    def address(self) -> str:
        """Host and port, for people."""
        return f"{self._connection_string.host}:{self._port}"

    def request(self, method: str, resource: str, **query: object) -> dict[str, Any]:
        """One request; the object in its answer. ServiceFailed."""
        connection = self._connect()
        target = f"/{resource}?{urlencode({name: value for name, value in query.items() if value is not None})}"
        try:
            connection.request(method, target, headers={"Authorization": self._make_token()})
            answer = connection.getresponse()
            content = answer.read(MAX_RESPONSE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise AdminRequestFailed(f"{self.address} {_describe_failure(error)}") from error
        finally:
            connection.close()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise AdminRequestFailed(f"{self.address} says {answer.status}: {_error_detail(content)}")
        try:
            found = msgspec.json.decode(content, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise AdminRequestFailed(f"{self.address} is no twinbus: its answer cannot be read") from error
        return found

    @property
    def _port(self) -> int:
        return self._connection_string.port or (HTTP_PORT if self._connection_string.is_emulator else HTTPS_PORT)

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._connection_string.host, self._port, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(
            self._connection_string.host, self._port, timeout=TIMEOUT_S, context=self._tls
        )

    def _make_token(self) -> str:
        if self._connection_string.signature is not None:
            return self._connection_string.signature
        assert self._connection_string.key_name is not None
        assert self._connection_string.key is not None
        scope = f"sb://{self._connection_string.host}/{self._connection_string.entity_path or ''}"
        return make_token(
            scope, self._connection_string.key_name, self._connection_string.key, int(time.time()) + TOKEN_LIFETIME_S
        )


def _describe_failure(error: Exception) -> str:
    """What a failed request says to people, with advice where the cause is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted ({error.verify_message}): give the authority with --ca-file FILE"
    if isinstance(error, http.client.BadStatusLine | ssl.SSLError):  # another protocol, such as AMQP
        return f"is no address for administration: use the admin_connection_string of the ready file ({error!r})"
    return f"does not answer: {type(error).__name__}: {error}"


def tls_context(ca_files: Sequence[Path]) -> ssl.SSLContext:
    """What takes the certificates of these authorities, and of this machine's. OSError where one cannot be read."""
    context = ssl.create_default_context()
    for file in ca_files:
        try:
            context.load_verify_locations(file)
        except OSError as error:  # its text has no name of the file; SSLError, for another content, is one, too
            reason = "it is no certificate in PEM format" if isinstance(error, ssl.SSLError) else error.strerror
            raise OSError(f"--ca-file {file} cannot be read: {reason}") from error
    return context


def _error_detail(content: bytes) -> str:
    text = content.decode(errors="replace")
    found = _DETAIL_PATTERN.search(text)
    return unescape(found[1]) if found is not None else f"{text[:200]!r}"
