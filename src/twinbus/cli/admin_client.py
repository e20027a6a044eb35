"""HTTP client for the commands: sends administrative requests to a namespace.

Owns the requests, their tokens, and the error texts. The commands own the resources that they request. Errors never
contain the key.
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

from twinbus.cli.output import CommandFailed
from twinbus.model.signature import make_token

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TIMEOUT_S: Final = 20.0
HTTP_PORT: Final = 5300
HTTPS_PORT: Final = 443
"""Ports as in `client.connection_string`, which is not imported here so that commands start faster."""
MAX_RESPONSE_BYTES: Final = 16_777_216
TOKEN_LIFETIME_S: Final = 300
_DETAIL_PATTERN: Final = re.compile(r"<Detail>(.*?)(?:\. TrackingId:[^<]*)?</Detail>", re.DOTALL)


class AdminRequestFailed(CommandFailed):
    """The namespace could not be reached or refused the request. The message says why."""


class AdminClient:
    """HTTP client for one namespace."""

    def __init__(self, connection_string: str, ca_files: Sequence[Path] = ()) -> None:
        """Create a client. Raise AdminRequestFailed for an invalid connection string or an unreadable CA file."""
        from twinbus.client.connection_string import ConnectionString  # noqa: PLC0415  # `serve` starts faster

        try:
            self._connection_string = ConnectionString.parse(connection_string)
            self._tls = None if self._connection_string.is_emulator else tls_context(ca_files)
        except (ValueError, OSError) as error:
            raise AdminRequestFailed(str(error)) from error

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self._connection_string.host}:{self._port}"

    def request(self, method: str, resource: str, **query: object) -> dict[str, Any]:
        """Send a request and return the JSON object in the response. Raise AdminRequestFailed on failure."""
        connection = self._connect()
        target = f"/{resource}?{urlencode({name: value for name, value in query.items() if value is not None})}"
        try:
            connection.request(method, target, headers={"Authorization": self._make_token()})
            response = connection.getresponse()
            content = response.read(MAX_RESPONSE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise AdminRequestFailed(f"{self.address} {_describe_failure(error)}") from error
        finally:
            connection.close()
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            raise AdminRequestFailed(f"{self.address} answered {response.status}: {_error_detail(content)}")
        try:
            result = msgspec.json.decode(content, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise AdminRequestFailed(f"{self.address} is not a twinbus server: its response is not JSON") from error
        return result

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
    """Return the text for a failed request, with advice if the cause is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has an untrusted certificate ({error.verify_message}): give its CA certificate with --ca-file FILE"
    if isinstance(error, http.client.BadStatusLine | ssl.SSLError):  # the port serves another protocol, such as AMQP
        return f"is not an administration port: use the admin_connection_string of the ready file ({error!r})"
    if isinstance(error, ConnectionRefusedError):
        return f"cannot be reached: {error}"
    return f"does not answer: {type(error).__name__}: {error}"


def tls_context(ca_files: Sequence[Path]) -> ssl.SSLContext:
    """Return a TLS context that also trusts the CAs in `ca_files`. Raise OSError if a file cannot be read."""
    context = ssl.create_default_context()
    for file in ca_files:
        try:
            context.load_verify_locations(file)
        except OSError as error:  # the text lacks the file name; SSLError is an OSError, too
            reason = "it is not a certificate in PEM format" if isinstance(error, ssl.SSLError) else error.strerror
            raise OSError(f"--ca-file {file} cannot be read: {reason}") from error
    return context


def _error_detail(content: bytes) -> str:
    text = content.decode(errors="replace")
    match = _DETAIL_PATTERN.search(text)
    return unescape(match[1]) if match is not None else f"{text[:200]!r}"
