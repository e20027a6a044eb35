"""Deferral: the parked messages of one destination that are deferred in their backlog queue.

Owns: their numbers, oldest first; deferring many messages together; and requests for messages that are taken back. When
to defer, and when to take back, is the destination's affair.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.client.pairing.failover.namespace_outages import lost_namespace
from twinbus.client.pairing.syphon.parked_message import defer_all
from twinbus.client.retry import ignore_failure
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.client.pairing.syphon.parked_message import DeliveredParkedMessage, ParkedMessage
    from twinbus.client.pairing.syphon.withheld_messages import WithheldPaths

log: Final = logging.getLogger(__name__)


class BacklogSource(Protocol):
    """The backlog queue that messages come from, as a destination needs it."""

    def has_exclusive_access(self) -> bool:
        """Whether the queue is certainly ours."""

    @property
    def max_per_request(self) -> int:
        """How many messages fit in one request."""

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[ParkedMessage]:
        """Receive deferred messages by their numbers, in order. ServiceBusError if one cannot be had."""

    @property
    def withheld_paths(self) -> WithheldPaths:
        """The paths whose messages the queue withholds."""

    def restore_again(self, message: DeliveredParkedMessage) -> bool:
        """Restore a message as it is now; False if its time is over: it is dead-lettered."""

    def release(self, messages: Sequence[DeliveredParkedMessage]) -> list[asyncio.Future[None]]:
        """Release messages, to come again in their order; the confirmations of that."""


class ReceiveRequest:
    """A request for deferred messages."""

    def __init__(self, sequence_numbers: list[int], task: asyncio.Task[list[ParkedMessage]]) -> None:
        """It is on its way."""
        self.sequence_numbers = sequence_numbers
        self.task = task


class Deferral:
    """The deferred messages of one destination."""

    def __init__(self, source: BacklogSource, backlog_queue: str) -> None:
        """None is deferred, as far as is known."""
        self.is_closed = False
        """Nothing more is said of any message."""
        self.receive_tasks: set[asyncio.Task[list[ParkedMessage]]] = set()
        """Those on their way. What they bring is under locks that the backlog queue has to be given back."""
        self._source = source
        self._backlog_queue = backlog_queue
        self._sequence_numbers: list[int] = []
        """A heap."""
        self._to_defer: list[ParkedMessage] = []
        """What is deferred at the end of this turn."""
        self._unconfirmed: set[asyncio.Future[None]] = set()
        """Deferrals whose messages cannot be taken back yet."""
        self._last_logged_failure = ""
        """As the log has it."""

    def __bool__(self) -> bool:
        return bool(self._sequence_numbers)

    def has_before(self, sequence_number: int | None) -> bool:
        """Whether a deferred message comes before another one, or there is one at all."""
        return bool(self._sequence_numbers) and (sequence_number is None or self._sequence_numbers[0] < sequence_number)

    def add(self, sequence_number: int) -> None:
        """A message is deferred."""
        heapq.heappush(self._sequence_numbers, sequence_number)

    # --- there --------------------------------------------------------------------------------------------------------

    def defer(self, message: ParkedMessage) -> None:
        """Defer a message, together with the others of this turn."""
        self.add(message.sequence_number)
        if not self._to_defer:
            asyncio.get_running_loop().call_soon(self.flush)
        self._to_defer.append(message)

    def flush(self) -> None:
        """The turn is over."""
        leaving, self._to_defer = self._to_defer, []
        for parcels, future in defer_all(leaving):
            self._unconfirmed.add(future)
            future.add_done_callback(self._unconfirmed.discard)
            future.add_done_callback(partial(self.log_failure, "deferred", parcels))

    async def wait_confirmed(self) -> None:
        """All deferrals are confirmed: before that their messages cannot be taken back."""
        while self._unconfirmed or self._to_defer:
            if self._to_defer:
                self.flush()
            await asyncio.wait(list(self._unconfirmed))

    def log_failure(self, outcome: str, messages: Sequence[ParkedMessage], future: asyncio.Future[None]) -> None:
        """A message whose settling failed comes again when its lock is over: at least once, not exactly once (Q17)."""
        if not future.cancelled() and (error := future.exception()) is not None and not self.is_closed:
            first = messages[0].sequence_number
            text = "%d messages of '%s', from number %d on, were not %s: %s"
            level = logging.WARNING if lost_namespace(error) is None else logging.DEBUG
            log.log(level, text, len(messages), self._backlog_queue, first, outcome, error)

    # --- and back -----------------------------------------------------------------------------------------------------

    def request(self, max_count: int | None = None, *, before: int | None = None) -> ReceiveRequest:
        """Ask for the oldest messages, as many as fit in one request, but for those that come behind another one."""
        max_count = self._source.max_per_request if max_count is None else max_count
        numbers: list[int] = []
        while len(numbers) < max_count and self.has_before(before):
            number = heapq.heappop(self._sequence_numbers)
            if not numbers or numbers[-1] != number:  # else it was deferred again after a deferral that failed
                numbers.append(number)
        task = asyncio.ensure_future(self._source.receive_deferred(numbers))
        self.receive_tasks.add(task)
        task.add_done_callback(self.receive_tasks.discard)
        task.add_done_callback(ignore_failure)  # a pump that ends asks no request what became of it
        return ReceiveRequest(numbers, task)

    async def messages_of(self, request: ReceiveRequest) -> list[ParkedMessage] | None:
        """What a request brings; None, and the messages stay deferred, if it failed."""
        failure: ServiceBusError | None = None
        parcels: list[ParkedMessage] = []
        try:
            parcels = await asyncio.shield(request.task)  # what it brings has to be given back, whoever waits for it
        except ServiceBusError as error:
            failure = error
        if failure is None:
            return parcels
        if str(failure) != self._last_logged_failure:
            self._last_logged_failure = str(failure)
            level = logging.WARNING if lost_namespace(failure) is None else logging.DEBUG
            log.log(level, "deferred messages of '%s' were not received: %s", self._backlog_queue, failure)
        for number in request.sequence_numbers:
            self.add(number)
        return None
