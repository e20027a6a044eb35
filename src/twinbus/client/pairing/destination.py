"""One destination of parked messages, to one pump: an entity of the primary.

Within a session messages go one after the other; others go as fast as the link takes them (Q18). What an entity does
not take now is deferred in the backlog queue, and so is what comes after it, until it answers again: then all are taken
back by their numbers, in order (Q19).

Owns: the lanes, what is on its way, and what is deferred. What becomes of the pump when the whole primary is gone is
the pump's affair: `lost` tells it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.client.errors import ConnectionFailed, ConnectionLost, FactoryFaulted, ObjectClosed, TimedOut
from twinbus.client.pairing.events import EventKind
from twinbus.client.retry import RECONNECT_ONCE
from twinbus.client.sender import MessageSender
from twinbus.model.errors import FailureClass, QuotaExceeded, ServiceBusError
from twinbus.model.path import key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.parcel import Parcel
    from twinbus.client.pairing.telling import Telling
    from twinbus.client.sending_link import SendingLink

log: Final = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
LOST: Final = (ConnectionFailed, ConnectionLost, ObjectClosed, FactoryFaulted)
"""The primary is not there, or our own end of it: nothing that a message could be blamed for."""
TAKEN_AT_ONCE: Final = 15
"""Deferred messages of one request: they come in one answer, and may be large."""


class Senders:
    """What pumps send with: ordinary senders, since what the primary does not take is parked already."""

    def __init__(self, primary: MessagingFactory) -> None:
        """Nothing was sent yet."""
        self._primary = primary
        self._by_key: dict[str, MessageSender] = {}

    def to(self, path: str) -> MessageSender:
        """The one to an entity; all pumps share it."""
        sender = self._by_key.get(key_of(path))
        if sender is None:
            sender = self._by_key[key_of(path)] = MessageSender(self._primary, path)
        return sender


class Destination:
    """An entity that parked messages go to."""

    def __init__(
        self,
        sender: MessageSender,
        backlog_queue: str,
        telling: Telling,
        *,
        take_back: Callable[[Sequence[int]], Awaitable[list[Parcel]]],
        lost: Callable[[ServiceBusError], None],
    ) -> None:
        """`take_back` receives deferred messages by their numbers; `lost` is told when the primary is gone."""
        self._sender = sender
        self._backlog_queue = backlog_queue
        self._telling = telling
        self._take_back = take_back
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._link: SendingLink | None = None
        self._opening: deque[Parcel] = deque()
        """What waits for the link."""
        self._lanes: dict[str, deque[Parcel]] = {}
        """What waits for the message before it, by session. A lane that is there has one on its way."""
        self._on_way: dict[asyncio.Future[object], tuple[Parcel, float]] = {}
        self._deferred: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._is_blocked = False
        self._is_paused = False
        self._is_closed = False
        self._idle = asyncio.Event()

    # --- in -----------------------------------------------------------------------------------------------------------

    def take(self, parcel: Parcel) -> None:
        """Bring a message there, in its turn."""
        if self._is_blocked:
            self._defer(parcel)
        else:
            self._forward(parcel)

    def found_deferred(self, sequence_number: int) -> None:
        """A message for it was deferred by an earlier pump."""
        heapq.heappush(self._deferred, sequence_number)
        self._block()

    def give_up(self, limit_s: float) -> None:
        """Take no answer within `limit_s` for a failure."""
        now_s = self._loop.time()
        for future, (_, started_s) in list(self._on_way.items()):
            if now_s - started_s < limit_s:
                return
            future.cancel()

    async def finish(self) -> None:
        """Send nothing more, and wait for the answers to what is on its way: what was accepted has to be completed."""
        self._is_paused = True
        while self._on_way:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """The pump is over: nothing more is said of any message."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        for future in list(self._on_way):
            future.cancel()

    # --- out ----------------------------------------------------------------------------------------------------------

    def _forward(self, parcel: Parcel) -> None:
        session_id = parcel.restored.session_id
        if session_id is None:
            self._send(parcel)
            return
        lane = self._lanes.get(session_id)
        if lane is None:
            self._lanes[session_id] = deque()
            self._send(parcel)
        else:
            lane.append(parcel)

    def _send(self, parcel: Parcel) -> None:
        link = self._link
        if self._is_paused:
            return  # it is given back with all that was not sent
        if link is None or link.failure is not None:
            self._opening.append(parcel)
            self._open()
            return
        future = link.send(parcel.restored.payload)
        self._on_way[future] = (parcel, self._loop.time())
        future.add_done_callback(self._answered)

    def _open(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._run(self._attach))

    async def _attach(self) -> None:
        """Have a link, and send what waits for it."""
        try:
            self._link = await self._sender.link(RECONNECT_ONCE)
        except ServiceBusError as error:
            waiting, self._opening = self._opening, deque()
            for parcel in waiting:
                self._failed(parcel, error)
            return
        while self._opening and self._link.failure is None:
            self._send(self._opening.popleft())

    def _answered(self, future: asyncio.Future[object]) -> None:
        parcel, started_s = self._on_way.pop(future)
        if self._is_closed:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            waited_s = self._loop.time() - started_s
            self._failed(parcel, TimedOut(f"'{self._sender.path}' did not answer for {waited_s:.0f} s", was_sent=True))
        else:
            error = future.exception()
            if error is None:
                self._delivered(parcel)
            else:
                assert isinstance(error, ServiceBusError)
                self._failed(parcel, error)
        if not self._on_way:
            self._idle.set()

    def _delivered(self, parcel: Parcel) -> None:
        parcel.complete().add_done_callback(partial(self._settled, parcel, "completed"))
        self._telling.tell_parcel(EventKind.MOVED, parcel, self._backlog_queue)
        self._advance(parcel)

    def _failed(self, parcel: Parcel, error: ServiceBusError) -> None:
        if isinstance(error, LOST):
            self._lost(error)
        elif error.failure_class is FailureClass.CALLER and not isinstance(error, QuotaExceeded):
            reason = type(error).__name__
            parcel.dead_letter(reason, str(error)).add_done_callback(partial(self._settled, parcel, "dead-lettered"))
            self._telling.tell_parcel(EventKind.DEAD_LETTERED, parcel, self._backlog_queue, reason=str(error))
            self._advance(parcel)
        else:
            self._block()
            self._defer(parcel, error)

    def _advance(self, parcel: Parcel) -> None:
        """The next of its session, if there is one."""
        session_id = parcel.restored.session_id
        if session_id is None:
            return
        lane = self._lanes.get(session_id)
        if lane:
            self._send(lane.popleft())
        elif lane is not None:
            del self._lanes[session_id]

    # --- deferral -----------------------------------------------------------------------------------------------------

    def _block(self) -> None:
        """Defer what waits, and what comes, until the entity answers."""
        self._is_blocked = True
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            for parcel in lane:
                self._defer(parcel)
        if self._task is None:
            self._task = self._loop.create_task(self._run(self._recover))

    def _defer(self, parcel: Parcel, error: ServiceBusError | None = None) -> None:
        heapq.heappush(self._deferred, parcel.sequence_number)
        parcel.defer().add_done_callback(partial(self._settled, parcel, "deferred"))
        reason = None if error is None else str(error)
        self._telling.tell_parcel(EventKind.DEFERRED, parcel, self._backlog_queue, reason=reason)

    async def _recover(self) -> None:
        """Take back what is deferred, in order; after a failure wait longer."""
        pause_s = FIRST_PAUSE_S
        await self._await_idle()
        while self._deferred:
            await asyncio.sleep(pause_s)
            has_taken_them = await self._bring_some()
            pause_s = 0.0 if has_taken_them else min(max(FIRST_PAUSE_S, 2 * pause_s), LONGEST_PAUSE_S)
        self._is_blocked = False

    async def _bring_some(self) -> bool:
        """Bring some of the deferred there, oldest first; False if the entity does still not take them."""
        numbers = [heapq.heappop(self._deferred) for _ in range(min(TAKEN_AT_ONCE, len(self._deferred)))]
        try:
            parcels = await self._take_back(numbers)
        except ServiceBusError as error:
            log.warning("deferred messages of '%s' were not received: %s", self._backlog_queue, error)
            for number in numbers:
                heapq.heappush(self._deferred, number)
            return False
        before = len(self._deferred)
        for parcel in parcels:
            self._forward(parcel)
        await self._await_idle()
        return len(self._deferred) <= before

    async def _await_idle(self) -> None:
        """Nothing is on its way or waits for what is."""
        while self._on_way or self._opening:
            if self._opening and not self._on_way:
                await self._attach()
                continue
            self._idle.clear()
            await self._idle.wait()

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        """One task at a time; one that is over may leave work for another."""
        try:
            await work()
        finally:
            self._task = None
        if self._is_closed:
            return
        if self._is_blocked:
            self._task = self._loop.create_task(self._run(self._recover))
        elif self._opening:
            self._task = self._loop.create_task(self._run(self._attach))

    def _settled(self, parcel: Parcel, outcome: str, future: asyncio.Future[None]) -> None:
        """A message whose settling failed comes again when its lock is over: at least once, not exactly once (Q17)."""
        if not future.cancelled() and (error := future.exception()) is not None and not self._is_closed:
            log.warning(
                "message %d of '%s' was not %s: %s", parcel.sequence_number, self._backlog_queue, outcome, error
            )
