"""Requests of one connection that are to be answered, in the order in which they came.

An answer may be half a megabyte, and a client may send thousands of requests before it reads one. So a request is
executed only while the socket takes answers, and only so many large answers are on their way at a time; a loop's turn
has room for a few requests of each connection. A request that waits is not settled, so its link has no credit for more,
and a client that ignores credit is read from no more when it has sent too many bytes.

Owns: when a request is executed. What it asks is its node's affair.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.server.socket_room import SocketBackpressure

if TYPE_CHECKING:
    from twinbus.amqp.aio import Peer
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.server.requests import RequestLink
    from twinbus.server.socket_room import CallSoon

MAX_REQUESTS_PER_TURN: Final = 32
"""Requests of one connection in one turn of the loop."""
MAX_RUNNING_RESPONSE_BYTES: Final = 2_097_152
"""Answers that may be on their way to being sent, as large as they may become."""


class RequestQueue:
    """The requests of one connection."""

    def __init__(self, peer: Peer, call_soon: CallSoon) -> None:
        """Nothing was asked yet."""
        self._backpressure = SocketBackpressure(peer, call_soon, self.resume)
        self._call_soon = call_soon
        self._waiting: deque[tuple[RequestLink, IncomingDelivery]] = deque()
        self._reserved_bytes = 0
        self._is_resume_scheduled = False
        self._is_running = False

    @property
    def waiting_count(self) -> int:
        """Requests that are not executed yet."""
        return len(self._waiting)

    def add(self, link: RequestLink, deliveries: list[IncomingDelivery]) -> None:
        """Requests have come."""
        self._waiting.extend((link, delivery) for delivery in deliveries)
        self.resume()

    def reserve(self, response_bytes: int) -> None:
        """A request is executed whose answer may have so many bytes."""
        self._reserved_bytes += response_bytes

    def release(self, response_bytes: int) -> None:
        """Its answer is queued, or will be long in coming."""
        self._reserved_bytes -= response_bytes
        self.resume()

    def resume(self) -> None:
        """Execute requests, as far as their answers have room."""
        if self._is_running or self._is_resume_scheduled:
            return
        self._is_running = True
        try:
            for _ in range(MAX_REQUESTS_PER_TURN):
                if (
                    not self._waiting
                    or self._reserved_bytes >= MAX_RUNNING_RESPONSE_BYTES
                    or not self._backpressure.has_room()
                ):
                    return
                link, delivery = self._waiting.popleft()
                link.execute(delivery)
        finally:
            self._is_running = False
        if self._waiting:
            self._is_resume_scheduled = True
            self._call_soon(self._on_next_turn)

    def _on_next_turn(self) -> None:
        self._is_resume_scheduled = False
        self.resume()
