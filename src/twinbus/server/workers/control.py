"""The socket between the supervisor and a worker, on which both speak and both ask.

Owns: which question an answer is for, and that a question is answered in any case: where the other process does not
answer, or has gone, with StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from twinbus.broker.ports.peer_protocol import error_of, kind_of
from twinbus.model.errors import InternalFault, ServiceBusError, StoreUnavailable
from twinbus.server.peers.channel import Channel
from twinbus.server.workers.words import Done, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.server.peers.transport import Connect
    from twinbus.server.workers.words import Word

log: Final = logging.getLogger(__name__)

T = TypeVar("T")


class Control:
    """One end of it."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        *,
        hear: Callable[[Any], None],
        answer: Callable[[Any], Awaitable[object]],
        lost: Callable[[], None],
    ) -> None:
        """`hear` is told what is said, `answer` is asked what is asked, `lost` is called when nothing will come."""
        self.is_lost = False
        self._hear = hear
        self._answer = answer
        self._lost = lost
        self._channel = Channel(decoder, self._receive, self._end)
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, connect: Connect) -> None:
        """Speak over the connection that `connect` makes."""
        await connect(lambda: self._channel)

    def close(self) -> None:
        """Say no more."""
        self._channel.close()

    def say(self, word: Word) -> None:
        """What is not answered."""
        self._send(0, word)

    async def ask(self, question: Word, kind: type[T], timeout_s: float) -> T:
        """What is answered. The error that the other side tells, or StoreUnavailable."""
        if self.is_lost:
            raise _away()
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(number, question)
        try:
            async with asyncio.timeout(timeout_s):
                result = await future
        except TimeoutError:
            text = f"the process that this is asked of has not answered for {timeout_s:g} s: it may still be done"
            raise StoreUnavailable(text) from None
        finally:
            self._waiting.pop(number, None)
        return msgspec.msgpack.decode(result, type=kind)

    def _send(self, number: int, word: Word) -> None:
        if not self.is_lost:
            self._channel.send(number, cast("Any", word))

    def _receive(self, number: int, word: Word) -> None:
        if isinstance(word, Done | Refused):
            future = self._waiting.get(number)
            if future is None or future.done():  # nobody waits any more
                return
            if isinstance(word, Done):
                future.set_result(word.result)
            else:
                future.set_exception(error_of(word.kind, word.text))
        elif number:
            task = asyncio.get_running_loop().create_task(self._reply(number, word))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._hear(word)

    async def _reply(self, number: int, question: Word) -> None:
        try:
            result = await self._answer(question)
            self._send(number, Done(msgspec.msgpack.encode(result)))
        except ServiceBusError as error:
            self._send(number, Refused(kind_of(error), str(error)))
        except Exception:
            log.exception("%s failed", type(question).__name__)
            self._send(number, Refused(InternalFault.__name__, "the server failed; its log says why"))

    def _end(self) -> None:
        self.is_lost = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_away())
        self._lost()


def _away() -> StoreUnavailable:
    return StoreUnavailable(
        "the process that keeps the catalogue is not there: messages can be sent and received, and nothing can be "
        "changed until the server is started again"
    )
