"""Where `twinbus message send` gets its messages from: an argument, files, lines, or messages in JSON.

Owns reading the messages, and describing where each message came from, for error texts. Stdin is read on a daemon
thread: a read that waits for input must not keep the command from sending, or from ending with Ctrl-C.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import itertools
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from twinbus.cli.output import CommandFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from twinbus.client import BrokeredMessage

    PlacedMessage = tuple[str, BrokeredMessage]

STDIN: Final = "-"
MAX_MESSAGE_BYTES: Final = 100 * 1_048_576
"""Maximum size of a file or a line: that of the largest message that a namespace can be set to accept."""
MAX_QUEUED: Final = 100


class MessageSource:
    """The messages from one source: a text, files, lines, or JSON lines."""

    def __init__(
        self, body: str | None, files: Sequence[Path] = (), lines: str | None = None, json_lines: str | None = None
    ) -> None:
        """Create a source from the argument that is set. `lines` and `json_lines` are names of files; - is stdin."""
        self._body = body
        self._files = files
        self._lines = lines
        self._json_lines = json_lines

    async def read(self) -> AsyncIterator[PlacedMessage]:
        """Yield the messages, each with a text that says where it came from. Raise CommandFailed if reading fails."""
        if STDIN in (self._body, self._lines, self._json_lines):
            async for item in _read_on_thread(self._read()):
                yield item
        else:
            for item in self._read():
                yield item

    def _read(self) -> Iterator[PlacedMessage]:
        from twinbus.client import BrokeredMessage  # noqa: PLC0415  # `--help` starts faster

        if self._body is not None:
            if self._body == STDIN:
                with _open(STDIN) as stream:
                    yield "the message", BrokeredMessage(_read_whole(stream, "stdin"))
            else:
                yield "the message", BrokeredMessage(self._body.encode())
        for file in self._files:
            with _open(str(file)) as stream:
                yield str(file), BrokeredMessage(_read_whole(stream, str(file)))
        name = self._lines if self._lines is not None else self._json_lines
        if name is not None:
            with _open(name) as stream:
                yield from self._read_lines(stream, "stdin" if name == STDIN else name)

    def _read_lines(self, stream: BinaryIO, name: str) -> Iterator[PlacedMessage]:
        from twinbus.cli.message.message_json import InvalidMessage, from_json  # noqa: PLC0415
        from twinbus.client import BrokeredMessage  # noqa: PLC0415

        for number in itertools.count(1):
            line = stream.readline(MAX_MESSAGE_BYTES + 1)
            if not line:
                return
            where = f"line {number} of {name}"
            if len(line) > MAX_MESSAGE_BYTES:
                raise CommandFailed(f"{where} has more than {MAX_MESSAGE_BYTES:,} bytes: send it in several messages")
            text = line.rstrip(b"\r\n")
            if self._lines is not None:
                yield where, BrokeredMessage(text)
            elif text.strip():
                try:
                    yield where, from_json(text)
                except InvalidMessage as error:
                    raise CommandFailed(f"{where}: {error}") from None


def _read_whole(stream: BinaryIO, name: str) -> bytes:
    content = stream.read(MAX_MESSAGE_BYTES + 1)
    if len(content) > MAX_MESSAGE_BYTES:
        raise CommandFailed(f"{name} has more than {MAX_MESSAGE_BYTES:,} bytes: send it in several messages")
    return content


def _open_stdin() -> BinaryIO:
    """Return a new stream for stdin: at exit, Python waits for the lock of sys.stdin, which a blocked read holds."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)  # a descriptor, which stays open
    except io.UnsupportedOperation:  # stdin is not a file
        return sys.stdin.buffer


@contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    if name == STDIN:
        yield _open_stdin()
        return
    try:
        stream = Path(name).open("rb")  # noqa: SIM115  # closed below; only opening is guarded
    except OSError as error:
        raise CommandFailed(f"{name} cannot be read: {error.strerror}") from None
    with stream:
        yield stream


async def _read_on_thread(items: Iterator[PlacedMessage]) -> AsyncIterator[PlacedMessage]:
    """Yield items that a daemon thread reads."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[PlacedMessage | CommandFailed | None] = asyncio.Queue(MAX_QUEUED)

    def put(item: PlacedMessage | CommandFailed | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(item), loop).result()

    def read() -> None:
        try:
            for item in items:
                put(item)
            put(None)
        except CommandFailed as error:
            put(error)
        except OSError as error:
            put(CommandFailed(f"stdin cannot be read: {error.strerror}"))
        except (RuntimeError, concurrent.futures.CancelledError):
            pass  # the command has ended

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while True:
        item = await queue.get()
        if item is None:
            return
        if isinstance(item, CommandFailed):
            raise item
        yield item
