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

from twinbus.client.attempts import ignore_failure
from twinbus.client.pairing.outages import side_of
from twinbus.client.pairing.parcel import defer_all
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.client.pairing.parcel import Arrived, Parcel
    from twinbus.client.pairing.withholding import Withholding

log: Final = logging.getLogger(__name__)


class Source(Protocol):
    """The backlog queue that messages come from, as a destination needs it."""

    def holds_claim(self) -> bool:
        """Whether the queue is certainly ours."""

    @property
    def at_once(self) -> int:
        """How many messages fit in one request."""

    async def take_back(self, numbers: Sequence[int]) -> list[Parcel]:
        """Receive deferred messages by their numbers, in order. ServiceBusError if one cannot be had."""

    @property
    def withholding(self) -> Withholding:
        """The paths whose messages the queue withholds."""

    def restore_again(self, parcel: Arrived) -> bool:
        """Restore a message as it is now; False if its time is over: it is dead-lettered."""

    def give_back(self, parcels: Sequence[Arrived]) -> list[asyncio.Future[None]]:
        """Release messages, to come again in their order; the confirmations of that."""


class Request:
    """A request for deferred messages."""

    def __init__(self, numbers: list[int], task: asyncio.Task[list[Parcel]]) -> None:
        """It is on its way."""
        self.numbers = numbers
        self.task = task


class Deferral:
    """The deferred messages of one destination."""

    def __init__(self, source: Source, backlog_queue: str) -> None:
        """None is deferred, as far as is known."""
        self.is_over = False
        """Nothing more is said of any message."""
        self.requests: set[asyncio.Task[list[Parcel]]] = set()
        """Those on their way. What they bring is under locks that the backlog queue has to be given back."""
        self._source = source
        self._backlog_queue = backlog_queue
        self._numbers: list[int] = []
        """A heap."""
        self._leaving: list[Parcel] = []
        """What is deferred at the end of this turn."""
        self._unconfirmed: set[asyncio.Future[None]] = set()
        """Deferrals whose messages cannot be taken back yet."""
        self._last_failure = ""
        """As the log has it."""

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def is_before(self, number: int | None) -> bool:
        """Whether a deferred message comes before another one, or there is one at all."""
        return bool(self._numbers) and (number is None or self._numbers[0] < number)

    def add(self, number: int) -> None:
        """A message is deferred."""
        heapq.heappush(self._numbers, number)

    # --- there --------------------------------------------------------------------------------------------------------

    def defer(self, parcel: Parcel) -> None:
        """Defer a message, together with the others of this turn."""
        self.add(parcel.sequence_number)
        if not self._leaving:
            asyncio.get_running_loop().call_soon(self.flush)
        self._leaving.append(parcel)

    def flush(self) -> None:
        """The turn is over."""
        leaving, self._leaving = self._leaving, []
        for parcels, future in defer_all(leaving):
            self._unconfirmed.add(future)
            future.add_done_callback(self._unconfirmed.discard)
            future.add_done_callback(partial(self.note_end, "deferred", parcels))

    async def confirmed(self) -> None:
        """All deferrals are confirmed: before that their messages cannot be taken back."""
        while self._unconfirmed or self._leaving:
            if self._leaving:
                self.flush()
            await asyncio.wait(list(self._unconfirmed))

    def note_end(self, outcome: str, parcels: Sequence[Parcel], future: asyncio.Future[None]) -> None:
        """A message whose settling failed comes again when its lock is over: at least once, not exactly once (Q17)."""
        if not future.cancelled() and (error := future.exception()) is not None and not self.is_over:
            first = parcels[0].sequence_number
            text = "%d messages of '%s', from number %d on, were not %s: %s"
            level = logging.WARNING if side_of(error) is None else logging.DEBUG
            log.log(level, text, len(parcels), self._backlog_queue, first, outcome, error)

    # --- and back -----------------------------------------------------------------------------------------------------

    def ask(self, most: int | None = None, *, before: int | None = None) -> Request:
        """Ask for the oldest messages, as many as fit in one request, but for those that come behind another one."""
        most = self._source.at_once if most is None else most
        numbers: list[int] = []
        while len(numbers) < most and self.is_before(before):
            number = heapq.heappop(self._numbers)
            if not numbers or numbers[-1] != number:  # else it was deferred again after a deferral that failed
                numbers.append(number)
        task = asyncio.ensure_future(self._source.take_back(numbers))
        self.requests.add(task)
        task.add_done_callback(self.requests.discard)
        task.add_done_callback(ignore_failure)  # a pump that ends asks no request what became of it
        return Request(numbers, task)

    async def taken(self, request: Request) -> list[Parcel] | None:
        """What a request brings; None, and the messages stay deferred, if it failed."""
        failure: ServiceBusError | None = None
        parcels: list[Parcel] = []
        try:
            parcels = await asyncio.shield(request.task)  # what it brings has to be given back, whoever waits for it
        except ServiceBusError as error:
            failure = error
        if failure is None:
            return parcels
        if str(failure) != self._last_failure:
            self._last_failure = str(failure)
            level = logging.WARNING if side_of(failure) is None else logging.DEBUG
            log.log(level, "deferred messages of '%s' were not received: %s", self._backlog_queue, failure)
        for number in request.numbers:
            self.add(number)
        return None
