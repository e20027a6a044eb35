"""The file that says: here is a namespace, it serves, and this is how to reach it.

Owns: its fields, how it appears (whole) and when it goes (at a clean stop, unless another server has written it since).
It holds the root key, so it is for its owner alone. What a connection string looks like is known here.
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
    """What a client or a script needs to know. As in the file."""

    namespace: str
    amqp_port: int | None
    """This and the other ports: None if it is not open."""
    amqps_port: int | None
    http_port: int | None
    https_port: int | None
    connection_string: str | None
    """For the messaging clients of the Azure SDKs; None if no AMQP port is open, or no key has Manage."""
    admin_connection_string: str | None
    """For their administration clients, which always use https; None if that is not open, or no key has Manage."""
    ca_file: str | None
    """What to trust; None if the server has a certificate of somebody else's authority."""
    pid: int

    def __repr__(self) -> str:
        return f"ReadyFile(namespace={self.namespace!r}, pid={self.pid})"

    def write(self, file: Path) -> None:
        """Say that the server serves, all at once."""
        write_atomically(file, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    def remove(self, file: Path) -> None:
        """Say that the server is gone. Another server's file, or anything else, stays."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            if msgspec.json.decode(file.read_bytes(), type=ReadyFile).pid == self.pid:
                file.unlink()


def connection_string(host: str, port: int, key: Key, *, is_emulator: bool) -> str:
    """For an SDK. Its messaging clients reach an emulator at any port without TLS; the others must not be told so."""
    host = "localhost" if host in _LOCALHOST_ADDRESSES else host
    endpoint = f"sb://[{host}]:{port}" if ":" in host else f"sb://{host}:{port}"
    text = f"Endpoint={endpoint};SharedAccessKeyName={key.name};SharedAccessKey={key.primary}"
    return text + ";UseDevelopmentEmulator=true" if is_emulator else text
