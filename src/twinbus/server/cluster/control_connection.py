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

from twinbus.broker.ports.peer_protocol import error_name, make_error
from twinbus.model.errors import InternalFault, ServiceBusError, StoreUnavailable
from twinbus.server.cluster.control_protocol import Done, RequestFailed
from twinbus.server.cluster.message_channel import MessageChannel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.server.cluster.control_protocol import Message
    from twinbus.server.cluster.transport import Connect

log: Final = logging.getLogger(__name__)

T = TypeVar("T")


class ControlConnection:
    """One end of it."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        *,
        on_notice: Callable[[Any], None],
        handle_request: Callable[[Any], Awaitable[object]],
        on_lost: Callable[[], None],
    ) -> None:
        """`hear` is told what is said, `answer` is asked what is asked, `lost` is called when nothing will come."""
        self.is_lost = False
        self._on_notice = on_notice
        self._handle_request = handle_request
        self._on_lost = on_lost
        self._channel = MessageChannel(decoder, self._receive, self._on_channel_lost)
        self._request_ids = count(1)
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, connect: Connect) -> None:
        """Speak over the connection that `connect` makes."""
        await connect(lambda: self._channel)

    def close(self) -> None:
        """Say no more."""
        self._channel.close()

    def notify(self, notice: Message) -> None:
        """What is not answered."""
        self._send(0, notice)

    async def request(self, message: Message, result_type: type[T], timeout_s: float) -> T:
        """What is answered. The error that the other side tells, or StoreUnavailable."""
        if self.is_lost:
            raise _not_connected()
        number = next(self._request_ids)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        self._send(number, message)
        try:
            async with asyncio.timeout(timeout_s):
                result = await future
        except TimeoutError:
            text = f"the process that this is asked of has not answered for {timeout_s:g} s: it may still be done"
            raise StoreUnavailable(text) from None
        finally:
            self._pending.pop(number, None)
        return msgspec.msgpack.decode(result, type=result_type)

    def _send(self, request_id: int, message: Message) -> None:
        if not self.is_lost:
            self._channel.send(request_id, cast("Any", message))

    def _receive(self, request_id: int, message: Message) -> None:
        if isinstance(message, Done | RequestFailed):
            future = self._pending.get(request_id)
            if future is None or future.done():  # nobody waits any more
                return
            if isinstance(message, Done):
                future.set_result(message.result)
            else:
                future.set_exception(make_error(message.error_name, message.text))
        elif request_id:
            task = asyncio.get_running_loop().create_task(self._reply(request_id, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._on_notice(message)

    async def _reply(self, request_id: int, request: Message) -> None:
        try:
            result = await self._handle_request(request)
            self._send(request_id, Done(msgspec.msgpack.encode(result)))
        except ServiceBusError as error:
            self._send(request_id, RequestFailed(error_name(error), str(error)))
        except Exception:
            log.exception("%s failed", type(request).__name__)
            self._send(request_id, RequestFailed(InternalFault.__name__, "the server failed; its log says why"))

    def _on_channel_lost(self) -> None:
        self.is_lost = True
        for future in self._pending.values():
            if not future.done():
                future.set_exception(_not_connected())
        self._on_lost()


def _not_connected() -> StoreUnavailable:
    return StoreUnavailable(
        "the process that keeps the catalogue is not there: messages can be sent and received, and nothing can be "
        "changed until the server is started again"
    )
