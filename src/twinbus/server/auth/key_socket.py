"""The local socket at which `twinbus key` reaches a running server: `keys.sock` in the data directory.

    async with serve_commands(path, handle): ...                      # in the server
    reply = send_command(path, KeyCommand("rotate", "sender"))        # in `twinbus key`; None if no server listens

Owns: the socket, and the encoding of a command and its reply: one line of JSON each, one command per connection. Only
the owner of the data directory can open the socket, as with `keys.json`. `runtime.reloader` executes the commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

import msgspec

from twinbus.server.auth.key_file import KeyChangeRefused, KeyCommand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from twinbus.server.auth.key_file import KeyRule

log: Final = logging.getLogger(__name__)

REPLY_TIMEOUT_S: Final = 60.0
"""How long `twinbus key` waits for the reply. The server may first have to stop a worker that does not respond."""
COMMAND_TIMEOUT_S: Final = 10.0
"""How long the server waits for a command after the connection was opened."""
DATA_DIRECTORY: Final = "data directory"
CONFIGURATION_FILE: Final = "configuration file"
MAX_LINE_BYTES: Final = 65_536
_MAX_SOCKET_NAME_BYTES: Final = 100
"""The longest path that is used as a socket name. The system's limit is 107 bytes on Linux and 103 elsewhere."""
_PEER_CREDENTIALS: Final = struct.Struct("3i")


class KeyView(msgspec.Struct, frozen=True):
    """A key as `twinbus key` prints it."""

    name: str
    rights: tuple[str, ...]
    source: str = DATA_DIRECTORY
    """The place where the key is stored: the data directory or the configuration file."""
    has_secondary: bool = False
    changed: str | None = None
    primary: str | None = None
    """The primary secret. This field and the following fields are None unless the command asked for secrets."""
    secondary: str | None = None
    connection_string: str | None = None

    def __repr__(self) -> str:
        return f"KeyView(name={self.name!r}, rights={self.rights})"


class KeyCommandReply(msgspec.Struct, frozen=True):
    """The reply to a command."""

    keys: tuple[KeyView, ...] = ()
    """All keys after the command."""
    pid: int | None = None
    """The process id of the server; None if no server is running."""
    refused: str | None = None
    """The reason why the command was refused; None if it succeeded."""


def make_key_view(rule: KeyRule, *, include_secrets: bool, connection_string: str | None = None) -> KeyView:
    """Return the view of a key, with its secrets only if `include_secrets` is True."""
    return KeyView(
        rule.name,
        rule.rights,
        has_secondary=rule.secondary is not None,
        changed=rule.changed,
        primary=rule.primary if include_secrets else None,
        secondary=rule.secondary if include_secrets else None,
        connection_string=connection_string,
    )


# --- in the server ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serve_commands(path: Path, handle: Callable[[KeyCommand], Awaitable[KeyCommandReply]]) -> AsyncIterator[None]:
    """Serve commands on the socket while the context is open.

    If the socket cannot be created, log a warning and continue without the socket.
    """
    try:
        sock = _bind_socket(path)
    except OSError as error:
        log.warning("twinbus key cannot reach this server: cannot create %s: %s", path, error.strerror or error)
        yield
        return
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(_handle_connection(reader, writer, handle))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_unix_server(accept, sock=sock, limit=MAX_LINE_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _remove_socket(path)


def _bind_socket(path: Path) -> socket.socket:
    """Create the socket.

    Remove an existing file, which is stale because only one server uses a data directory at a time.
    """
    _remove_socket(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _short_socket_name(path) as name:
            sock.bind(name)
        path.chmod(0o600)  # before listen(), so that no other user can connect in between
        sock.listen(8)
        sock.setblocking(False)  # noqa: FBT003  # the parameter has no name
    except OSError:
        sock.close()
        raise
    return sock


def _remove_socket(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _handle_connection(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handle: Callable[[KeyCommand], Awaitable[KeyCommandReply]],
) -> None:
    try:
        with contextlib.suppress(OSError, ValueError, TimeoutError):  # the client disconnected, or is not `twinbus key`
            _check_peer(writer.get_extra_info("socket"))
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                request_line = await reader.readline()
            reply = await _execute_command(request_line, handle)
            writer.write(msgspec.json.encode(reply) + b"\n")
            await writer.drain()
    finally:
        writer.close()


async def _execute_command(
    request_line: bytes, handle: Callable[[KeyCommand], Awaitable[KeyCommandReply]]
) -> KeyCommandReply:
    try:
        return await handle(msgspec.json.decode(request_line, type=KeyCommand))
    except msgspec.MsgspecError as error:
        return KeyCommandReply(
            refused=f"the server does not understand the command ({error}): check that both have the same version"
        )
    except KeyChangeRefused as error:
        return KeyCommandReply(refused=str(error))
    except Exception:
        log.exception("a command of twinbus key failed")
        return KeyCommandReply(refused="the command failed in the server: see the server's log")


def _check_peer(sock: socket.socket) -> None:
    """Raise PermissionError for other users, because some systems ignore the permissions of a socket file."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    _, user, _ = _PEER_CREDENTIALS.unpack(credentials)
    if user not in (os.geteuid(), 0):
        log.warning("refused a connection of user %d to the socket of twinbus key", user)
        raise PermissionError


# --- in the command ---------------------------------------------------------------------------------------------------


def send_command(path: Path, command: KeyCommand) -> KeyCommandReply | None:
    """Send a command to the running server and return its reply; None if no server listens.

    Raise KeyChangeRefused if the server refuses the command, OSError if the connection fails.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(REPLY_TIMEOUT_S)
        try:
            with _short_socket_name(path) as name:
                sock.connect(name)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        sock.sendall(msgspec.json.encode(command) + b"\n")
        reply_line = b"".join(iter(lambda: sock.recv(MAX_LINE_BYTES), b""))
    if not reply_line:
        raise KeyChangeRefused("the server closed the connection: see its log, and run twinbus key list")
    reply = msgspec.json.decode(reply_line, type=KeyCommandReply)
    if reply.refused is not None:
        raise KeyChangeRefused(reply.refused)
    return reply


@contextlib.contextmanager
def _short_socket_name(path: Path) -> Iterator[str]:
    """Yield a name for the socket that fits into the system's limit.

    If the path is too long, the name refers to the open directory in /proc.
    """
    if len(os.fsencode(path)) <= _MAX_SOCKET_NAME_BYTES or not os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
