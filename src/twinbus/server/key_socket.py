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

from twinbus.server.key_file import KeyRefused, Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from twinbus.server.key_file import KeyRule

log: Final = logging.getLogger(__name__)

TIMEOUT_S: Final = 60.0
"""How long a command waits for its answer: a server of several processes may have to end one that does not answer."""
ORDER_S: Final = 10.0
"""How long the server waits for an order."""
DATA_DIRECTORY: Final = "data directory"
CONFIGURATION_FILE: Final = "configuration file"
LINE_MAX_BYTES: Final = 65_536
_NAME_MAX_BYTES: Final = 100
"""A local socket's name has at most 107 bytes on Linux, and 103 elsewhere."""
_CREDENTIALS: Final = struct.Struct("3i")


class Shown(msgspec.Struct, frozen=True):
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


class Answer(msgspec.Struct, frozen=True):
    """What became of an order."""

    keys: tuple[Shown, ...] = ()
    """All of them, as they are now."""
    pid: int | None = None
    """The server's; None if there is none."""
    refused: str | None = None
    """Why nothing was done."""


def shown(rule: KeyRule, *, show: bool, connect: str | None = None) -> Shown:
    """Return a key as a command shows it: with its secrets, only if they are asked for."""
    return Shown(
        rule.name,
        rule.rights,
        has_secondary=rule.secondary is not None,
        changed=rule.changed,
        primary=rule.primary if show else None,
        secondary=rule.secondary if show else None,
        connection_string=connect,
    )


# --- in the server ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening(path: Path, handle: Callable[[Order], Awaitable[Answer]]) -> AsyncIterator[None]:
    """Answer orders. Where there can be no socket, that is logged, and the server serves without."""
    try:
        sock = _bound(path)
    except OSError as error:
        log.warning("twinbus key cannot reach this server: %s cannot be made: %s", path, error.strerror or error)
        yield
        return
    talks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(_talk(reader, writer, handle))
        talks.add(task)
        task.add_done_callback(talks.discard)

    server = await asyncio.start_unix_server(accept, sock=sock, limit=LINE_MAX_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        _remove(path)


def _bound(path: Path) -> socket.socket:
    """Make the socket; nobody else has the data directory, so one that is there was left behind."""
    _remove(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as name:
            sock.bind(name)
        path.chmod(0o600)  # before anybody can connect: it does not listen yet
        sock.listen(8)
        sock.setblocking(False)  # noqa: FBT003  # so it is called
    except OSError:
        sock.close()
        raise
    return sock


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _talk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Callable[[Order], Awaitable[Answer]]
) -> None:
    try:
        with contextlib.suppress(OSError, ValueError, TimeoutError):  # the command has gone, or is none of ours
            _check_peer(writer.get_extra_info("socket"))
            async with asyncio.timeout(ORDER_S):
                line = await reader.readline()
            answer = await _answer(line, handle)
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
    finally:
        writer.close()


async def _answer(line: bytes, handle: Callable[[Order], Awaitable[Answer]]) -> Answer:
    try:
        return await handle(msgspec.json.decode(line, type=Order))
    except msgspec.MsgspecError as error:
        return Answer(refused=f"the server does not understand the command ({error}): is it of another version?")
    except KeyRefused as error:
        return Answer(refused=str(error))
    except Exception:
        log.exception("an order of twinbus key failed")
        return Answer(refused="the server failed; its log says why")


def _check_peer(sock: socket.socket) -> None:
    """Refuse other users, also where the permissions of a socket do not count."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    if user not in (os.geteuid(), 0):
        log.warning("user %d was refused at the socket of twinbus key", user)
        raise PermissionError


# --- in the command ---------------------------------------------------------------------------------------------------


def ask(path: Path, order: Order) -> Answer | None:
    """Give an order to the server that listens; None if there is none. KeyRefused, OSError."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        try:
            with _short(path) as name:
                sock.connect(name)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        sock.sendall(msgspec.json.encode(order) + b"\n")
        line = b"".join(iter(lambda: sock.recv(LINE_MAX_BYTES), b""))
    if not line:
        raise KeyRefused("the server has closed the connection: its log may say why; look with twinbus key list")
    answer = msgspec.json.decode(line, type=Answer)
    if answer.refused is not None:
        raise KeyRefused(answer.refused)
    return answer


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a short enough name for the socket: if its path is too long, one through the open directory."""
    if len(os.fsencode(path)) <= _NAME_MAX_BYTES or not os.path.isdir("/proc/self/fd"):  # noqa: PTH112  # no Path needed
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
