"""The control connection between the supervisor and a worker: both sides send notices and requests.

Owns: matching replies to requests. Every request finishes: if the other process does not reply in time or exits, the
request fails with StoreUnavailable.
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
    """One end of the connection between the supervisor and a worker."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        *,
        on_notice: Callable[[Any], None],
        handle_request: Callable[[Any], Awaitable[object]],
        on_lost: Callable[[], None],
    ) -> None:
        """Create a connection that is not open yet.

        `on_notice` is called with each notice, `handle_request` returns the result for each request, and `on_lost` is
        called when the connection is closed.
        """
        self.is_lost = False
        self._on_notice = on_notice
        self._handle_request = handle_request
        self._on_lost = on_lost
        self._channel = MessageChannel(decoder, self._receive, self._on_channel_lost)
        self._request_ids = count(1)
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, connect: Connect) -> None:
        """Attach this end to the socket that `connect` connects."""
        await connect(lambda: self._channel)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def notify(self, notice: Message) -> None:
        """Send a notice, which has no reply."""
        self._send(0, notice)

    async def request(self, message: Message, result_type: type[T], timeout_s: float) -> T:
        """Send a request and return its result.

        Raise the error in the other process's reply, or StoreUnavailable if there is no reply.
        """
        if self.is_lost:
            raise _not_connected()
        request_id = next(self._request_ids)
        future = self._pending[request_id] = asyncio.get_running_loop().create_future()
        self._send(request_id, message)
        try:
            async with asyncio.timeout(timeout_s):
                result = await future
        except TimeoutError:
            text = f"no reply from the other process within {timeout_s:g} s: the request may still be carried out"
            raise StoreUnavailable(text) from None
        finally:
            self._pending.pop(request_id, None)
        return msgspec.msgpack.decode(result, type=result_type)

    def _send(self, request_id: int, message: Message) -> None:
        if not self.is_lost:
            self._channel.send(request_id, cast("Any", message))

    def _receive(self, request_id: int, message: Message) -> None:
        if isinstance(message, Done | RequestFailed):
            future = self._pending.get(request_id)
            if future is None or future.done():  # the caller timed out or was cancelled
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
            self._send(request_id, RequestFailed(InternalFault.__name__, "internal error: see the server's log"))

    def _on_channel_lost(self) -> None:
        self.is_lost = True
        for future in self._pending.values():
            if not future.done():
                future.set_exception(_not_connected())
        self._on_lost()


def _not_connected() -> StoreUnavailable:
    return StoreUnavailable(
        "the supervisor, which owns the catalogue, is down: messages can be sent and received, but nothing can be "
        "changed until the server is restarted"
    )
