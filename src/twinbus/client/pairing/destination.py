"""One destination of parked messages, to one pump: an entity of the primary.

What is ready goes together, as a batch: all of it is taken, or nothing. Within a session messages go in order, and no
two batches with messages of one session are on their way at once (Q18). What an entity does not take now is deferred in
the backlog queue, and so is what comes after it, until it answers again: then all are taken back by their numbers, in
order (Q19). An entity that is disabled or missing, or that does not accept the key, is waited for in the same way. A
batch that is refused is sent again message by message, so that one bad message harms no other.

Where it is one fragment of a partitioned entity that takes nothing, what leads there goes on as if to a destination of
its own, and the rest of the entity is not held up.

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

from twinbus.amqp.message import data
from twinbus.client.errors import ConnectionFailed, ConnectionLost, FactoryFaulted, ObjectClosed, TimedOut
from twinbus.client.pairing.events import EventKind
from twinbus.client.pairing.fragments import key_in
from twinbus.client.pairing.parcel import complete_all
from twinbus.client.retry import RECONNECT_ONCE
from twinbus.client.sender import MessageSender
from twinbus.model.errors import (
    EntityDisabled,
    EntityNotFound,
    FailureClass,
    PartlyStored,
    QuotaExceeded,
    ServiceBusError,
    Unauthorized,
)
from twinbus.model.message import BATCH_FORMAT
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
REFUSES: Final = (Unauthorized, EntityDisabled, EntityNotFound)
"""The entity or the key is at fault and no message is: messages stay in the backlog, and an alarm is raised (Q19)."""
BATCH_MESSAGES: Final = 100
BATCH_BYTES: Final = 200_000
"""Of messages that go together: a batch may have 256 KB, as one message."""
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
        not_found_grace_s: float = 0.0,
        is_fragment: bool = False,
    ) -> None:
        """`take_back` receives deferred messages by their numbers; `lost` is told when the primary is gone.

        Messages are dead-lettered once the entity has been missing for `not_found_grace_s`. `is_fragment`: of a
        partitioned entity, it is for what leads to one fragment.
        """
        self._sender = sender
        self._backlog_queue = backlog_queue
        self._telling = telling
        self._take_back = take_back
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._link: SendingLink | None = None
        self._ready: deque[Parcel] = deque()
        """What goes with the next batches: of each session only the next one."""
        self._ready_bytes = 0
        self._lanes: dict[str, deque[Parcel]] = {}
        """What waits for the messages before it, by session. A lane that is there has some ready, or on their way."""
        self._on_way: dict[asyncio.Future[object], tuple[list[Parcel], float]] = {}
        self._alone: set[int] = set()
        """Numbers of messages that were in a batch that was refused: they go one by one."""
        self._is_shipping = False
        self._mixes_sessions = True
        """False where a batch with several sessions was refused: partitioned entities of Azure do so."""
        self._deferred: list[int] = []
        self._accepted: set[int] = set()
        """Of these, what the entity has, and what is still to be completed: it is not sent again."""
        self._task: asyncio.Task[None] | None = None
        self._is_blocked = False
        self._is_paused = False
        self._is_closed = False
        self._idle = asyncio.Event()
        self._is_fragment = is_fragment
        self._fragments: dict[int, Destination] = {}
        """Those that took nothing once: what leads there has a way of its own from then on."""
        self._not_found_grace_s = not_found_grace_s
        self._missing_since_s: float | None = None
        """When the entity was first found missing; None once it has answered anything else since."""
        self._refusal: ServiceBusError | None = None
        """Why the entity refuses all messages now."""
        self._is_id_a_key = False
        """It detects duplicates: a message with no other key was refused for its fragment."""

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

    def hold_up(self, load: list[Parcel], error: ServiceBusError) -> None:
        """It does not take these now: they are deferred, and so is what comes."""
        self._block()
        for parcel in load:
            self._defer(parcel, error)

    def give_up(self, limit_s: float) -> None:
        """Take no answer within `limit_s` for a failure."""
        for fragment in self._fragments.values():
            fragment.give_up(limit_s)
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
        for fragment in list(self._fragments.values()):
            await fragment.finish()

    def close(self) -> None:
        """The pump is over: nothing more is said of any message."""
        self._is_closed = True
        self._end_refusal()
        if self._task is not None:
            self._task.cancel()
        for future in list(self._on_way):
            future.cancel()
        for fragment in self._fragments.values():
            fragment.close()

    # --- out ----------------------------------------------------------------------------------------------------------

    def _forward(self, parcel: Parcel) -> None:
        session_id = parcel.restored.session_id
        lane = self._lanes.get(session_id) if session_id is not None else None
        if lane is not None:
            lane.append(parcel)
            return
        fragment = self._fragments.get(self._leads_to(parcel)) if self._fragments else None
        if fragment is not None:
            fragment.take(parcel)
            return
        if session_id is not None:
            self._lanes[session_id] = deque()
        self._send(parcel)

    def _send(self, parcel: Parcel) -> None:
        """With the others of this turn of the loop."""
        if self._is_paused:
            return  # it is given back with all that was not sent
        self._ready.append(parcel)
        self._ready_bytes += len(parcel.restored.payload)
        self._ship_soon()

    def _ship_soon(self) -> None:
        if not self._is_shipping:
            self._is_shipping = True
            self._loop.call_soon(self._ship)

    def _ship(self) -> None:
        """Send what is ready. While something is on its way, less than a batch waits for more, or for the answer."""
        self._is_shipping = False
        if self._is_closed or self._is_paused or not self._ready:
            return
        link = self._link
        if link is None or link.failure is not None:
            if self._task is None:
                self._task = self._loop.create_task(self._run(self._attach))
            return
        while self._ready and self._leaves_now:
            load = self._load()
            payloads = [parcel.restored.payload for parcel in load]
            future = link.send(payloads[0]) if len(load) == 1 else link.send(data(*payloads), BATCH_FORMAT)
            self._on_way[future] = (load, self._loop.time())
            future.add_done_callback(self._answered)

    @property
    def _leaves_now(self) -> bool:
        """What is ready makes a batch, or will be none however long it waits; or nothing else is on its way."""
        is_full = len(self._ready) >= BATCH_MESSAGES or self._ready_bytes >= BATCH_BYTES
        return is_full or not self._on_way or bool(self._alone) or not self._mixes_sessions

    def _load(self) -> list[Parcel]:
        """What goes in one batch: what is ready, and what follows it in its session."""
        ready, lanes, alone, size = self._ready, self._lanes, self._alone, 0
        load: list[Parcel] = []
        first = ready[0].restored.session_id
        while ready and len(load) < BATCH_MESSAGES:
            restored = ready[0].restored
            session_id = restored.session_id
            goes_alone = bool(alone) and ready[0].sequence_number in alone
            size += len(restored.payload)
            if load and (goes_alone or size > BATCH_BYTES or (not self._mixes_sessions and session_id != first)):
                break
            load.append(ready.popleft())
            self._ready_bytes -= len(restored.payload)
            if goes_alone:
                break
            lane = lanes.get(session_id) if session_id is not None else None
            while lane and len(load) < BATCH_MESSAGES and not (alone and lane[0].sequence_number in alone):
                size += len(lane[0].restored.payload)
                if size > BATCH_BYTES:
                    break
                load.append(lane.popleft())
        return load

    async def _attach(self) -> None:
        """Have a link, and send what waits for it."""
        try:
            self._link = await self._sender.link(RECONNECT_ONCE)
        except ServiceBusError as error:
            waiting, self._ready, self._ready_bytes = self._ready, deque(), 0
            for parcel in waiting:
                self._failed([parcel], error)
        else:
            self._ship()

    def _answered(self, future: asyncio.Future[object]) -> None:
        load, started_s = self._on_way.pop(future)
        if self._is_closed:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            waited_s = self._loop.time() - started_s
            self._failed(load, TimedOut(f"'{self._sender.path}' did not answer for {waited_s:.0f} s", was_sent=True))
        else:
            error = future.exception()
            if error is None:
                self._delivered(load)
            else:
                assert isinstance(error, ServiceBusError)
                self._failed(load, error)
        if self._ready:
            self._ship_soon()
        if not self._on_way:
            self._idle.set()

    def _delivered(self, load: list[Parcel]) -> None:
        self._missing_since_s = None
        self._end_refusal()
        complete_all(load, self._completed)
        if self._telling.wants(EventKind.MOVED):
            for parcel in load:
                self._telling.tell_parcel(EventKind.MOVED, parcel, self._backlog_queue)
        if self._alone:
            self._alone.difference_update([parcel.sequence_number for parcel in load])
        self._advance(load)

    def _failed(self, load: list[Parcel], error: ServiceBusError) -> None:
        if not isinstance(error, EntityNotFound):
            self._missing_since_s = None
        if isinstance(error, LOST):
            self._lost(error)
        elif error.failure_class is not FailureClass.CALLER or isinstance(error, QuotaExceeded) or self._waits(error):
            if error.fragment is None or self._is_fragment or not self._set_apart(error.fragment, load, error):
                self.hold_up(load, error)
        elif isinstance(error, PartlyStored) and error.stored:
            stored = set(error.stored)
            self._delivered([parcel for place, parcel in enumerate(load) if place in stored])
            self._send_again([parcel for place, parcel in enumerate(load) if place not in stored])
        elif len(load) > 1:
            self._send_apart(load)
        else:
            (parcel,) = load
            reason = type(error).__name__
            parcel.dead_letter(reason, str(error)).add_done_callback(partial(self._settled, "dead-lettered", parcel))
            self._telling.tell_parcel(EventKind.DEAD_LETTERED, parcel, self._backlog_queue, reason=str(error))
            self._end_refusal()
            self._alone.discard(parcel.sequence_number)
            self._advance(load)

    def _waits(self, error: ServiceBusError) -> bool:
        """Whether an entity that refuses everything is waited for: a missing one only for a time."""
        if not isinstance(error, REFUSES):
            return False
        if isinstance(error, EntityNotFound):
            now_s = self._loop.time()
            if self._missing_since_s is None:
                self._missing_since_s = now_s
            if now_s - self._missing_since_s >= self._not_found_grace_s:
                return False
        if type(self._refusal) is not type(error):
            self._end_refusal()
            self._refusal = error
            self._tell_of_refusal(EventKind.DESTINATION_REFUSES, str(error))
        return True

    def _end_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal = None
            self._tell_of_refusal(EventKind.DESTINATION_ACCEPTS, None)

    def _tell_of_refusal(self, kind: EventKind, reason: str | None) -> None:
        self._telling.tell(kind, path=self._sender.path, backlog_queue=self._backlog_queue, reason=reason)

    def _send_apart(self, load: list[Parcel]) -> None:
        """A batch was refused, for one of its messages or because it had several sessions: send it in smaller parts."""
        if self._mixes_sessions and len({parcel.restored.session_id for parcel in load}) > 1:
            self._mixes_sessions = False
        else:
            self._alone.update([parcel.sequence_number for parcel in load])
        self._send_again(load)

    def _send_again(self, load: list[Parcel]) -> None:
        """Before all that waits for it."""
        sessions: dict[str | None, list[Parcel]] = {}
        for parcel in load:
            sessions.setdefault(parcel.restored.session_id, []).append(parcel)
        for session_id, parcels in sessions.items():
            if session_id is None:
                for parcel in parcels:
                    self._send(parcel)
            else:
                lane = self._lanes.setdefault(session_id, deque())
                lane.extendleft(reversed(parcels[1:]))
                self._send(parcels[0])

    def _advance(self, load: list[Parcel]) -> None:
        """The next of their sessions, if there are any."""
        for session_id in {parcel.restored.session_id for parcel in load}:
            lane = self._lanes.get(session_id) if session_id is not None else None
            if lane:
                self._send(lane.popleft())
            elif lane is not None and session_id is not None:
                del self._lanes[session_id]

    # --- fragments ----------------------------------------------------------------------------------------------------

    def _leads_to(self, parcel: Parcel) -> int:
        """The fragment that a message is for, if the entity has any; -1 where it has no key."""
        found = key_in(parcel.restored.payload, parcel.restored.session_id).leads_to(is_id_a_key=self._is_id_a_key)
        return -1 if found is None else found

    def _set_apart(self, number: int, load: list[Parcel], error: ServiceBusError) -> bool:
        """A fragment takes nothing now: what leads there waits, and the rest is sent. False if nothing of it does."""
        bound = self._bound_for(number, load)
        if not bound:
            return False
        fragment = self._fragment(number)
        fragment.hold_up(bound, error)
        for parcel in bound:
            self._hand_over_lane(parcel, fragment)
        waiting, self._ready, self._ready_bytes = self._ready, deque(), 0
        for parcel in waiting:
            if self._leads_to(parcel) == number:
                fragment.take(parcel)
                self._hand_over_lane(parcel, fragment)
            else:
                self._send(parcel)
        refused = {parcel.sequence_number for parcel in bound}
        self._send_again([parcel for parcel in load if parcel.sequence_number not in refused])
        return True

    def _bound_for(self, number: int, load: list[Parcel]) -> list[Parcel]:
        """Those that lead to a fragment; by their ids only if no other key does, and then it is known that these do."""
        bound = [parcel for parcel in load if self._leads_to(parcel) == number]
        if not bound and not self._is_id_a_key:
            self._is_id_a_key = True
            bound = [parcel for parcel in load if self._leads_to(parcel) == number]
            self._is_id_a_key = bool(bound)
        return bound

    def _fragment(self, number: int) -> Destination:
        fragment = self._fragments.get(number)
        if fragment is None:
            fragment = self._fragments[number] = Destination(
                self._sender,
                self._backlog_queue,
                self._telling,
                take_back=self._take_back,
                lost=self._lost,
                not_found_grace_s=self._not_found_grace_s,
                is_fragment=True,
            )
        return fragment

    def _hand_over_lane(self, parcel: Parcel, fragment: Destination) -> None:
        """What waits for a message goes where that goes."""
        session_id = parcel.restored.session_id
        lane = self._lanes.pop(session_id, None) if session_id is not None else None
        for waiting in lane or ():
            fragment.take(waiting)

    # --- deferral -----------------------------------------------------------------------------------------------------

    def _block(self) -> None:
        """Defer what waits, and what comes, until the entity answers."""
        self._is_blocked = True
        lanes, self._lanes = self._lanes, {}
        ready, self._ready, self._ready_bytes = self._ready, deque(), 0
        for waiting in (ready, *lanes.values()):
            for parcel in waiting:
                self._defer(parcel)
        if self._task is None:
            self._task = self._loop.create_task(self._run(self._recover))

    def _defer(self, parcel: Parcel, error: ServiceBusError | None = None) -> None:
        heapq.heappush(self._deferred, parcel.sequence_number)
        parcel.defer().add_done_callback(partial(self._settled, "deferred", parcel))
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
            if parcel.sequence_number in self._accepted:
                complete_all([parcel], self._completed)
            else:
                self._forward(parcel)
        await self._await_idle()
        return len(self._deferred) <= before

    async def _await_idle(self) -> None:
        """Nothing is on its way or waits for what is."""
        while self._on_way or (self._ready and not self._is_paused):
            if self._on_way:
                self._idle.clear()
                await self._idle.wait()
            elif self._link is None or self._link.failure is not None:
                await self._attach()
            else:
                await asyncio.sleep(0)  # it goes with the next batch

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
        elif self._ready:
            self._ship_soon()

    def _completed(self, parcel: Parcel, future: asyncio.Future[None]) -> None:
        """One that was taken back. If this has failed it is still deferred, and nobody but us would look for it."""
        self._settled("completed", parcel, future)
        if future.cancelled() or future.exception() is None or self._is_closed:
            self._accepted.discard(parcel.sequence_number)
            return
        self._accepted.add(parcel.sequence_number)
        heapq.heappush(self._deferred, parcel.sequence_number)
        self._block()

    def _settled(self, outcome: str, parcel: Parcel, future: asyncio.Future[None]) -> None:
        """A message whose settling failed comes again when its lock is over: at least once, not exactly once (Q17)."""
        if not future.cancelled() and (error := future.exception()) is not None and not self._is_closed:
            log.warning(
                "message %d of '%s' was not %s: %s", parcel.sequence_number, self._backlog_queue, outcome, error
            )
