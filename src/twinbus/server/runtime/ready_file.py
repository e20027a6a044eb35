"""The ready file, from which scripts and clients learn that a namespace accepts connections, and how to connect.

Owns: the fields of the file, and the format of connection strings. The file is written atomically, and removed at a
clean shutdown unless another server has replaced it. The file contains the root key, so only its owner may read it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from twinbus.server.runtime.data_directory import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.server.auth.keys import Key

_LOCALHOST_ADDRESSES: Final = {"127.0.0.1", "::1", "0.0.0.0", "::"}  # noqa: S104  # compared with, not listened on


class ReadyFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the ready file."""

    namespace: str
    amqp_port: int | None
    """The port for all protocols. This port and the other ports are None if they are not open."""
    amqps_port: int | None
    http_port: int | None
    https_port: int | None
    connection_string: str | None
    """The connection string for the SDKs. Administration clients can use it if it names `amqp_port`, which serves all
    protocols. None if no AMQP port is open, or no key has Manage."""
    admin_connection_string: str | None
    """The connection string for administration clients that use TLS; None if no open port serves HTTPS, or no key
    has Manage."""
    ca_file: str | None
    """The CA certificate to trust; None if the server does not use a development certificate."""
    pid: int

    def __repr__(self) -> str:
        return f"ReadyFile(namespace={self.namespace!r}, pid={self.pid})"

    def write(self, file: Path) -> None:
        """Write the file atomically."""
        write_atomically(file, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    def remove(self, file: Path) -> None:
        """Remove the file, unless it is not a ready file or belongs to another server."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            if msgspec.json.decode(file.read_bytes(), type=ReadyFile).pid == self.pid:
                file.unlink()


def connection_string(host: str, port: int, key: Key, *, is_emulator: bool) -> str:
    """Return a connection string for the Azure SDKs.

    With `is_emulator`, messaging clients connect without TLS, and most administration clients with TLS, both to this
    port. Administration clients can use such a string only for a port that serves both.
    """
    host = "localhost" if host in _LOCALHOST_ADDRESSES else host
    endpoint = f"sb://[{host}]:{port}" if ":" in host else f"sb://{host}:{port}"
    text = f"Endpoint={endpoint};SharedAccessKeyName={key.name};SharedAccessKey={key.primary}"
    return text + ";UseDevelopmentEmulator=true" if is_emulator else text
