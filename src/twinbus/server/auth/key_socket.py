"""The local socket at which `twinbus key` reaches a running server: `keys.sock` in the data directory.

    async with listening(path, handle): ...            # in the server
    answer = ask(path, Order("rotate", "sender"))      # in the command; None if no server listens

Owns: the socket, and how an order and its answer are written: one line of JSON each, one order a connection. The socket
is for its owner alone: whoever can open it can read `keys.json` as well. What is done about an order is in `reload`.
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
"""How long a command waits for its answer: a server of several processes may have to end one that does not answer."""
COMMAND_TIMEOUT_S: Final = 10.0
"""How long the server waits for an order."""
DATA_DIRECTORY: Final = "data directory"
CONFIGURATION_FILE: Final = "configuration file"
MAX_LINE_BYTES: Final = 65_536
_MAX_SOCKET_NAME_BYTES: Final = 100
"""A local socket's name has at most 107 bytes on Linux, and 103 elsewhere."""
_PEER_CREDENTIALS: Final = struct.Struct("3i")


class KeyView(msgspec.Struct, frozen=True):
    """A key, as a command shows it."""

    name: str
    rights: tuple[str, ...]
    source: str = DATA_DIRECTORY
    """Where it is kept."""
    has_secondary: bool = False
    changed: str | None = None
    primary: str | None = None
    """This and the next ones: only if secrets were asked for."""
    secondary: str | None = None
    connection_string: str | None = None

    def __repr__(self) -> str:
        return f"Shown(name={self.name!r}, rights={self.rights})"


class KeyCommandReply(msgspec.Struct, frozen=True):
    """What became of an order."""

    keys: tuple[KeyView, ...] = ()
    """All of them, as they are now."""
    pid: int | None = None
    """The server's; None if there is none."""
    refused: str | None = None
    """Why nothing was done."""


def make_key_view(rule: KeyRule, *, include_secrets: bool, connection_string: str | None = None) -> KeyView:
    """Return a key as a command shows it: with its secrets, only if they are asked for."""
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
    """Answer orders. Where there can be no socket, that is logged, and the server serves without."""
    try:
        sock = _bind_socket(path)
    except OSError as error:
        log.warning("twinbus key cannot reach this server: %s cannot be made: %s", path, error.strerror or error)
        yield
        return
    talks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(_handle_connection(reader, writer, handle))
        talks.add(task)
        task.add_done_callback(talks.discard)

    server = await asyncio.start_unix_server(accept, sock=sock, limit=MAX_LINE_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        _remove_socket(path)


def _bind_socket(path: Path) -> socket.socket:
    """Make the socket; nobody else has the data directory, so one that is there was left behind."""
    _remove_socket(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _short_socket_name(path) as name:
            sock.bind(name)
        path.chmod(0o600)  # before anybody can connect: it does not listen yet
        sock.listen(8)
        sock.setblocking(False)  # noqa: FBT003  # so it is called
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
        with contextlib.suppress(OSError, ValueError, TimeoutError):  # the command has gone, or is none of ours
            _check_peer(writer.get_extra_info("socket"))
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                line = await reader.readline()
            answer = await _execute_command(line, handle)
            writer.write(msgspec.json.encode(answer) + b"\n")
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
            refused=f"the server does not understand the command ({error}): is it of another version?"
        )
    except KeyChangeRefused as error:
        return KeyCommandReply(refused=str(error))
    except Exception:
        log.exception("an order of twinbus key failed")
        return KeyCommandReply(refused="the server failed; its log says why")


def _check_peer(sock: socket.socket) -> None:
    """Refuse other users, also where the permissions of a socket do not count."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    _, user, _ = _PEER_CREDENTIALS.unpack(found)
    if user not in (os.geteuid(), 0):
        log.warning("user %d was refused at the socket of twinbus key", user)
        raise PermissionError


# --- in the command ---------------------------------------------------------------------------------------------------


def send_command(path: Path, command: KeyCommand) -> KeyCommandReply | None:
    """Give an order to the server that listens; None if there is none. KeyRefused, OSError."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(REPLY_TIMEOUT_S)
        try:
            with _short_socket_name(path) as name:
                sock.connect(name)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        sock.sendall(msgspec.json.encode(command) + b"\n")
        line = b"".join(iter(lambda: sock.recv(MAX_LINE_BYTES), b""))
    if not line:
        raise KeyChangeRefused("the server has closed the connection: its log may say why; look with twinbus key list")
    answer = msgspec.json.decode(line, type=KeyCommandReply)
    if answer.refused is not None:
        raise KeyChangeRefused(answer.refused)
    return answer


@contextlib.contextmanager
def _short_socket_name(path: Path) -> Iterator[str]:
    """Yield a short enough name for the socket: if its path is too long, one through the open directory."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_NAME_BYTES or not os.path.isdir("/proc/self/fd"):  # noqa: PTH112  # no Path needed
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
