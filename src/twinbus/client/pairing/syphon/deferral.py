"""Deferral: the parked messages for one destination that are deferred in their backlog queue.

Owns: the sequence numbers of these messages, oldest first; deferring messages in batches; and the requests that receive
them again. The destination decides when to defer messages and when to receive them.
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
    """The operations of the backlog queue that a destination needs."""

    def has_exclusive_access(self) -> bool:
        """Return whether the lease on the queue is definitely valid."""

    @property
    def max_per_request(self) -> int:
        """The number of messages that fit in one request."""

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[ParkedMessage]:
        """Receive deferred messages by their numbers, in order.

        Raise ServiceBusError if a message cannot be received.
        """

    @property
    def withheld_paths(self) -> WithheldPaths:
        """The paths whose messages the queue withholds."""

    def restore_again(self, message: DeliveredParkedMessage) -> bool:
        """Restore a message again after a wait. Return False if the message has expired and was dead-lettered."""

    def release(self, messages: Sequence[DeliveredParkedMessage]) -> list[asyncio.Future[None]]:
        """Release messages, to be redelivered in order; return futures for the confirmations."""


class ReceiveRequest:
    """A request for deferred messages."""

    def __init__(self, sequence_numbers: list[int], task: asyncio.Task[list[ParkedMessage]]) -> None:
        """Create a request whose `task` is running."""
        self.sequence_numbers = sequence_numbers
        self.task = task


class Deferral:
    """The deferred messages for one destination."""

    def __init__(self, source: BacklogSource, backlog_queue: str) -> None:
        """Create a deferral without known messages."""
        self.is_closed = False
        """Whether the pump has stopped, so that later failures are not logged."""
        self.receive_tasks: set[asyncio.Task[list[ParkedMessage]]] = set()
        """Requests in flight. Messages that they return are locked and must be settled."""
        self._source = source
        self._backlog_queue = backlog_queue
        self._sequence_numbers: list[int] = []
        """The sequence numbers of deferred messages, as a heap."""
        self._to_defer: list[ParkedMessage] = []
        """Messages to defer at the end of this turn of the loop."""
        self._unconfirmed: set[asyncio.Future[None]] = set()
        """Deferrals that are not confirmed yet, so that their messages cannot be received."""
        self._last_logged_failure = ""
        """The last failure that was logged, so that it is not logged again."""

    def __bool__(self) -> bool:
        return bool(self._sequence_numbers)

    def has_before(self, sequence_number: int | None) -> bool:
        """Return whether a deferred message precedes `sequence_number`; for None, whether any message is deferred."""
        return bool(self._sequence_numbers) and (sequence_number is None or self._sequence_numbers[0] < sequence_number)

    def add(self, sequence_number: int) -> None:
        """Add the sequence number of a deferred message."""
        heapq.heappush(self._sequence_numbers, sequence_number)

    # --- deferring ----------------------------------------------------------------------------------------------------

    def defer(self, message: ParkedMessage) -> None:
        """Defer a message, together with the other messages of this turn of the loop."""
        self.add(message.sequence_number)
        if not self._to_defer:
            asyncio.get_running_loop().call_soon(self.flush)
        self._to_defer.append(message)

    def flush(self) -> None:
        """Defer the messages that were collected in this turn of the loop."""
        to_defer, self._to_defer = self._to_defer, []
        for messages, future in defer_all(to_defer):
            self._unconfirmed.add(future)
            future.add_done_callback(self._unconfirmed.discard)
            future.add_done_callback(partial(self.log_failure, "deferred", messages))

    async def wait_confirmed(self) -> None:
        """Wait until all deferrals are confirmed, because the deferred messages cannot be received earlier."""
        while self._unconfirmed or self._to_defer:
            if self._to_defer:
                self.flush()
            await asyncio.wait(list(self._unconfirmed))

    def log_failure(self, outcome: str, messages: Sequence[ParkedMessage], future: asyncio.Future[None]) -> None:
        """Log a failed settlement; the messages are redelivered when their locks expire (delivery is at least once)."""
        if not future.cancelled() and (error := future.exception()) is not None and not self.is_closed:
            first = messages[0].sequence_number
            text = "%d messages of '%s', starting with number %d, were not %s: %s"
            level = logging.WARNING if lost_namespace(error) is None else logging.DEBUG
            log.log(level, text, len(messages), self._backlog_queue, first, outcome, error)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def request(self, max_count: int | None = None, *, before: int | None = None) -> ReceiveRequest:
        """Request the oldest messages, as many as fit in one request, with sequence numbers below `before` if given."""
        max_count = self._source.max_per_request if max_count is None else max_count
        numbers: list[int] = []
        while len(numbers) < max_count and self.has_before(before):
            number = heapq.heappop(self._sequence_numbers)
            if not numbers or numbers[-1] != number:  # a failed deferral that was repeated adds a number twice
                numbers.append(number)
        task = asyncio.ensure_future(self._source.receive_deferred(numbers))
        self.receive_tasks.add(task)
        task.add_done_callback(self.receive_tasks.discard)
        task.add_done_callback(ignore_failure)  # a pump that stops does not retrieve the results
        return ReceiveRequest(numbers, task)

    async def messages_of(self, request: ReceiveRequest) -> list[ParkedMessage] | None:
        """Return the messages from a request; None if the request failed and its messages stay deferred."""
        failure: ServiceBusError | None = None
        messages: list[ParkedMessage] = []
        try:
            messages = await asyncio.shield(request.task)  # if cancelled, `BacklogConsumer.end` unlocks its messages
        except ServiceBusError as error:
            failure = error
        if failure is None:
            return messages
        if str(failure) != self._last_logged_failure:
            self._last_logged_failure = str(failure)
            level = logging.WARNING if lost_namespace(failure) is None else logging.DEBUG
            log.log(level, "could not receive deferred messages of '%s': %s", self._backlog_queue, failure)
        for number in request.sequence_numbers:
            self.add(number)
        return None
