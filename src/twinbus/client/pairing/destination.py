"""One destination of parked messages, to one pump: an entity of the primary.

What is ready goes together, as a batch: all of it is taken, or nothing. Within a session messages go in order, and no
two batches with messages of one session are on their way at once (Q18). A batch that is refused is sent again message
by message, so that one bad message harms no other.

Messages for an entity that accepts nothing now wait in the backlog queue until it does (Q19): it is busy, full or
unavailable, disabled or missing, or does not accept the key. There are two ways to wait:

- The backlog queue withholds them (`withholding`). Those already received are released to their places, except the
  oldest one. When the entity accepts that one, the queue is told to deliver the others, in order.
- They are deferred (`deferral`), and so are those that come after them; later all are taken back by their numbers, in
  order, in large requests, several at a time. Messages that come on the link meanwhile wait behind them. This is the
  way where the server cannot withhold messages, for single fragments, and while any message for the entity is
  deferred: so no message overtakes a deferred one.

Either way the entity is probed with its oldest message, every few seconds, and at once when it has answered anybody
else of this process.

A message whose send has no clear answer is *in doubt*: it is marked as a possible duplicate wherever it goes from then
on, in the backlog queue too.

Where it is one fragment of a partitioned entity that takes nothing, what leads there goes on as if to a destination of
its own, and the rest of the entity is not held up.

Owns: the lanes, what is on its way, and what is deferred. What becomes of the pump when the whole primary is gone is
the pump's affair: `lost` tells it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.message import data
from twinbus.client.errors import ConnectionFailed, TimedOut, may_have_happened
from twinbus.client.pairing.blame import LOST, Patience, is_refusal
from twinbus.client.pairing.deferral import Deferral
from twinbus.client.pairing.events import EventKind
from twinbus.client.pairing.fragments import key_in
from twinbus.client.pairing.pair_events import DeferralBegan, PairEvents
from twinbus.client.pairing.parcel import Arrived, complete_all
from twinbus.client.pairing.wakeups import ProbePace, fragment_key
from twinbus.client.pairing.withholding import WithheldMessages
from twinbus.client.retry import RECONNECT_ONCE
from twinbus.client.sender import MessageSender
from twinbus.model.errors import PartlyStored, ServiceBusError, Unauthorized
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.path import key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.deferral import Request, Source
    from twinbus.client.pairing.parcel import Parcel
    from twinbus.client.pairing.wakeups import Wakeups
    from twinbus.client.sending_link import SendingLink

BATCH_MESSAGES: Final = 100
BATCH_BYTES: Final = 200_000
"""Of messages that go together: a batch may have 256 KB, as one message."""
REQUESTS_AT_ONCE: Final = 3
"""Requests for deferred messages that are on their way."""
OPEN_AT_ONCE: Final = 500
"""Messages that were taken back and wait for their answers, before more are."""
BEHIND_AT_MOST: Final = 250
"""Messages that came on the link and wait for deferred ones: half of what may be out, so that other destinations go on.
"""
CLAIM_LOOK_S: Final = 0.1


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
        events: PairEvents,
        *,
        source: Source,
        lost: Callable[[ServiceBusError], None],
        wakeups: Wakeups,
        not_found_grace_s: float = 0.0,
        fragment: int | None = None,
    ) -> None:
        """Deferred messages come from `source`; `lost` is told when the primary is gone.

        While the claim on the source is in doubt, messages are neither sent, deferred nor dead-lettered, until `go_on`.
        Messages are dead-lettered once the entity has been missing for `not_found_grace_s`. `fragment`: of a
        partitioned entity, it is for what leads to that one.
        """
        self._sender, self._backlog_queue, self._events = sender, backlog_queue, events
        self._source, self._lost, self._wakeups = source, lost, wakeups
        self._deferral, self._withheld = Deferral(source, backlog_queue), WithheldMessages(source, sender.path)
        self._failures: list[tuple[list[Parcel], ServiceBusError]] = []
        """What became of messages while the claim was in doubt, in order."""
        self._loop = asyncio.get_running_loop()
        self._link: SendingLink | None = None
        self._ready: deque[Parcel] = deque()
        """What goes with the next batches: of each session only the next one."""
        self._ready_bytes = 0
        self._lanes: dict[str, deque[Parcel]] = {}
        """What waits for the messages before it, by session. A lane that is there has some ready, or on their way."""
        self._on_way: dict[asyncio.Future[object], tuple[list[Parcel], float, SendingLink]] = {}
        self._in_doubt: list[Parcel] = []
        """What was on its way when the primary was lost."""
        self._doubted: dict[Parcel, None] = {}
        """Sent without a clear answer, and not settled since."""
        self._alone: set[int] = set()
        """Numbers of messages that were in a batch that was refused: they go one by one."""
        self._is_shipping = False
        self._mixes_sessions = True
        """False where a batch with several sessions was refused: partitioned entities of Azure do so."""
        self._accepted: set[int] = set()
        """Numbers of deferred messages that the entity has: they are still to be completed, and not sent again."""
        self._behind: deque[Parcel] = deque()
        """What came on the link while deferred messages are taken back."""
        self._task: asyncio.Task[None] | None = None
        self.is_blocked = False
        """It accepts nothing now: all messages that come wait in the backlog queue."""
        self._is_recovering = False
        """It takes messages again, and deferred ones are taken back."""
        self._blocks = 0
        """How often it was found to take nothing."""
        self._is_probed = False
        """It has taken a deferred message since it was last found to take nothing."""
        self._is_paused = self._is_closed = False
        self._idle = asyncio.Event()
        self._progress = asyncio.Event()
        """Something was answered."""
        self._is_fragment = fragment is not None
        self._awaited = sender.path if fragment is None else fragment_key(sender.path, fragment)
        """What wakes it up."""
        self._fragments: dict[int, Destination] = {}
        """Those that took nothing once: what leads there has a way of its own from then on."""
        self._not_found_grace_s, self._patience = not_found_grace_s, Patience(not_found_grace_s)
        self._refusal: ServiceBusError | None = None
        """Why the entity refuses all messages now."""
        self._is_id_a_key = False
        """It detects duplicates: a message with no other key was refused for its fragment."""

    # --- in -----------------------------------------------------------------------------------------------------------

    def take(self, parcel: Parcel) -> None:
        """Bring a message there, in its turn."""
        if self.is_blocked:
            self._put_aside(parcel)
        elif not self._is_recovering:
            self._forward(parcel)
        elif len(self._behind) < BEHIND_AT_MOST:
            self._behind.append(parcel)
        else:
            self._put_aside(parcel)

    def found_deferred(self, sequence_number: int) -> None:
        """A message for it was deferred by an earlier pump."""
        self._deferral.add(sequence_number)
        if not self.is_blocked:
            self._is_recovering = True  # as far as is known it takes messages
            if self._task is None:
                self._task = self._loop.create_task(self._run(self._recover))

    def hold_up(self, load: list[Parcel], error: ServiceBusError) -> None:
        """It does not accept these now: they wait in the backlog queue, and so do those to come."""
        self._block(load)
        for parcel in load:
            self._put_aside(parcel, error)

    @property
    def is_deferring(self) -> bool:
        """Messages that come are deferred."""
        return self.is_blocked and not self._withheld.is_on

    def give_up(self, limit_s: float) -> None:
        """Take no answer within `limit_s` for a failure."""
        for fragment in self._fragments.values():
            fragment.give_up(limit_s)
        now_s = self._loop.time()
        for future, (_, started_s, link) in list(self._on_way.items()):
            if now_s - started_s < limit_s:
                return
            if link.withdraw(future):
                future.set_exception(self._timed_out(started_s, was_sent=False))
            else:
                future.cancel()

    def _timed_out(self, started_s: float, *, was_sent: bool) -> TimedOut:
        waited_s = self._loop.time() - started_s
        return TimedOut(f"'{self._sender.path}' did not answer for {waited_s:.0f} s", was_sent=was_sent)

    async def finish(self) -> None:
        """Send nothing more, and wait for the answers to what is on its way: what was accepted has to be completed."""
        self._is_paused = True
        while self._on_way:
            self._idle.clear()
            await self._idle.wait()
        for fragment in list(self._fragments.values()):
            await fragment.finish()

    def close(self) -> list[Parcel]:
        """The pump is over: nothing more is said of any message. Returns those that may have arrived."""
        self._is_closed = True
        self._end_refusal()
        self._deferral.flush()
        self._deferral.is_over = True
        if self._task is not None:
            self._task.cancel()
        in_doubt = self._in_doubt
        in_doubt += self._doubted
        for future, (load, _, link) in list(self._on_way.items()):
            if not link.withdraw(future):
                in_doubt += load
            future.cancel()
        for fragment in self._fragments.values():
            in_doubt += fragment.close()
        return in_doubt

    @property
    def requests(self) -> list[asyncio.Task[list[Parcel]]]:
        """Requests for deferred messages that are on their way."""
        return [*self._deferral.requests, *[one for fragment in self._fragments.values() for one in fragment.requests]]

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
        if self._is_closed or self._is_paused or not self._ready or not self._source.holds_claim():
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
            self._on_way[future] = (load, self._loop.time(), link)
            future.add_done_callback(self._answered)

    @property
    def _leaves_now(self) -> bool:
        """What is ready makes a batch, or will be none however long it waits; or nothing else is on its way."""
        if not self._on_way or self._alone or not self._mixes_sessions or self._ready_bytes >= BATCH_BYTES:
            return True
        count = len(self._ready)
        if self._lanes and count < BATCH_MESSAGES:
            for parcel in self._ready:  # with what follows it in its session
                session_id = parcel.restored.session_id
                lane = self._lanes.get(session_id) if session_id is not None else None
                count += len(lane) if lane is not None else 0
        return count >= BATCH_MESSAGES

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
        load, started_s, link = self._on_way.pop(future)
        if self._is_closed:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            self._unanswered(load, self._timed_out(started_s, was_sent=True))
        else:
            error = future.exception()
            if error is None:
                self._delivered(load)
            else:
                assert isinstance(error, ServiceBusError)
                if may_have_happened(error) or (link.failure is not None and not isinstance(error, ConnectionFailed)):
                    self._unanswered(load, error)
                else:
                    self._failed(load, error)
        if self._ready:
            self._ship_soon()
        self._progress.set()
        if not self._on_way:
            self._idle.set()

    def _unanswered(self, load: list[Parcel], error: ServiceBusError) -> None:
        """They may have arrived: a link that ends says why it does, and nothing of what was on its way."""
        if isinstance(error, LOST):
            self._in_doubt += load
        else:
            places = error.unsure if isinstance(error, PartlyStored) else None
            for parcel in load if places is None else [load[place] for place in places]:
                parcel.mark()
                self._doubted[parcel] = None
        self._failed(load, error)

    def _delivered(self, load: list[Parcel]) -> None:
        self._patience.accepted()
        self._end_refusal()
        if self._wakeups.is_awaited:
            self._wakeups.answered(self._awaited)
        self._complete(load)
        if self._events.wants(EventKind.MOVED):
            for parcel in load:
                self._events.emit_parcel(EventKind.MOVED, parcel, self._backlog_queue)
        if self._alone:
            self._alone.difference_update([parcel.sequence_number for parcel in load])
        self._advance(load)

    def go_on(self) -> None:
        """The claim is certainly ours again."""
        failures, self._failures = self._failures, []
        for load, error in failures:
            self._failed(load, error)
        for fragment in list(self._fragments.values()):
            fragment.go_on()
        if self._ready:
            self._ship_soon()

    def _failed(self, load: list[Parcel], error: ServiceBusError) -> None:
        if not isinstance(error, LOST) and not self._source.holds_claim():
            self._failures.append((load, error))
            return
        is_final = self._patience.is_over(error, self._loop.time())
        if isinstance(error, LOST):
            self._lost(error)
        elif not is_final:
            if is_refusal(error):
                self._begin_refusal(error)
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
            self._settle_doubts(load)
            reason = type(error).__name__
            parcel.dead_letter(reason, str(error)).add_done_callback(
                partial(self._deferral.note_end, "dead-lettered", load)
            )
            self._events.emit_parcel(EventKind.DEAD_LETTERED, parcel, self._backlog_queue, reason=str(error))
            self._end_refusal()
            self._alone.discard(parcel.sequence_number)
            self._advance(load)

    def _begin_refusal(self, error: ServiceBusError) -> None:
        """Tell once that the entity refuses all messages, and why."""
        if type(self._refusal) is not type(error):
            self._end_refusal()
            self._refusal = error
            self._tell_of_refusal(EventKind.DESTINATION_REFUSES, str(error))

    def _end_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal = None
            self._tell_of_refusal(EventKind.DESTINATION_ACCEPTS, None)

    def _tell_of_refusal(self, kind: EventKind, reason: str | None) -> None:
        self._events.emit(kind, path=self._sender.path, backlog_queue=self._backlog_queue, reason=reason)

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
        for session_id in dict.fromkeys(parcel.restored.session_id for parcel in load):
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
                self._events,
                source=self._source,
                lost=self._lost,
                wakeups=self._wakeups,
                not_found_grace_s=self._not_found_grace_s,
                fragment=number,
            )
        return fragment

    def _hand_over_lane(self, parcel: Parcel, fragment: Destination) -> None:
        """What waits for a message goes where that goes."""
        session_id = parcel.restored.session_id
        lane = self._lanes.pop(session_id, None) if session_id is not None else None
        for waiting in lane or ():
            fragment.take(waiting)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _block(self, load: Sequence[Parcel] = ()) -> None:
        """Let messages wait in the backlog queue until the entity answers; `load` was just refused."""
        self._withheld.is_on = self._withheld.is_on or self._can_withhold(load)
        self.is_blocked, self._is_recovering, self._is_probed = True, False, False
        self._blocks += 1
        self._events.publish(DeferralBegan())
        lanes, self._lanes = self._lanes, {}
        ready, self._ready, self._ready_bytes = self._ready, deque(), 0
        behind, self._behind = self._behind, deque()
        for waiting in (ready, *lanes.values(), behind):
            for parcel in waiting:
                self._put_aside(parcel)
        self._progress.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run(self._recover))

    def _can_withhold(self, load: Sequence[Parcel]) -> bool:
        """Tell whether all messages for the entity can wait in their places: none of those in hand was deferred."""
        if self._is_fragment or self._fragments or self._deferral or self._deferral.requests or self._is_recovering:
            return False
        in_hand = [parcel for waiting in (load, self._ready, self._behind) for parcel in waiting]
        in_hand += [parcel for lane in self._lanes.values() for parcel in lane]
        in_hand += [parcel for sent, _, _ in self._on_way.values() for parcel in sent]
        in_hand += [parcel for failed, _ in self._failures for parcel in failed]
        if [parcel for parcel in in_hand if not isinstance(parcel, Arrived)]:
            return False
        return self._withheld.is_possible

    def _settle_doubts(self, load: Sequence[Parcel]) -> None:
        """Messages are settled, with their marks: the backlog queue knows of the doubt."""
        if self._doubted:
            for parcel in load:
                self._doubted.pop(parcel, None)

    def _defer(self, parcel: Parcel) -> None:
        self._settle_doubts([parcel])
        self._deferral.defer(parcel)

    def _put_aside(self, parcel: Parcel, error: ServiceBusError | None = None) -> None:
        """Let a message wait in the backlog queue."""
        if self._withheld.is_on and isinstance(parcel, Arrived):
            self._settle_doubts(self._withheld.keep(parcel))
        else:
            self._defer(parcel)
        if self._events.wants(EventKind.DEFERRED):
            reason = None if error is None else str(error)
            self._events.emit_parcel(EventKind.DEFERRED, parcel, self._backlog_queue, reason=reason)

    async def _recover(self) -> None:
        """Probe until the entity answers, then have the messages that wait, in order."""
        pace, withheld = ProbePace(self._wakeups, self._awaited), self._withheld
        try:
            if withheld.is_on and not withheld.is_confirmed:  # messages that come must not use up the pump's credit
                await self._withhold()
            await self._await_idle()
            while (self._deferral or self._behind or withheld.in_hand) and not self._is_paused:
                if withheld.is_on and not withheld.is_confirmed:
                    await self._withhold()
                has_answered = await self._bring_back() if self._is_probed else await self._try(pace)
                if has_answered and withheld.is_on and not self._deferral:
                    break
        finally:
            pace.end()
        if not withheld.may_be_withheld or self._is_paused:
            self.is_blocked = self._is_recovering = False
            return
        blocks = self._blocks
        self._settle_doubts(await withheld.give_back_all())
        if self._blocks == blocks and not self._deferral:  # else it begins anew (`_run`)
            self.is_blocked = self._is_recovering = False
            await withheld.end()

    async def _try(self, pace: ProbePace) -> bool:
        """Probe the entity when it is time to; False if it still accepts nothing."""
        if self.is_blocked:
            await pace.wait()
        is_attached = await self._can_attach()
        if is_attached and await self._probe():
            pace.succeeded()
            if self._deferral or not self._withheld.is_on:
                self.is_blocked, self._is_recovering, self._is_probed = False, True, True
            return True
        pace.failed(is_costly=is_attached or isinstance(self._refusal, Unauthorized))  # a login that fails is logged
        if not self.is_blocked:
            self._block()
        return False

    async def _withhold(self) -> None:
        """Have messages withheld; deferred, if the queue cannot withhold them."""
        given_back = await self._withheld.begin()
        if given_back is not None:
            self._settle_doubts(given_back)
            return
        for parcel in self._withheld.take_all():
            self._defer(parcel)

    async def _probe(self) -> bool:
        """Bring the oldest message there; False if the entity does still not accept it."""
        blocks = self._blocks
        await self._deferral.confirmed()
        parcels: list[Parcel] | None
        if self._deferral:
            parcels = await self._deferral.taken(self._deferral.ask(1))
        else:
            parcels = [*self._withheld.take_oldest()]
        for parcel in parcels or ():
            self._go_on_with(parcel)
        await self._await_idle()
        return parcels is not None and self._blocks == blocks

    async def _can_attach(self) -> bool:
        """Whether it is worth while to receive messages for the entity: an attach is not charged, a receive is."""
        failure: ServiceBusError | None = None
        if self._link is None or self._link.failure is not None:
            try:
                self._link = await self._sender.link(RECONNECT_ONCE)
            except ServiceBusError as error:
                failure = error
        if failure is None:
            return True
        is_final = self._patience.is_over(failure, self._loop.time())
        if isinstance(failure, LOST):
            self._lost(failure)
            return False
        if not is_final and is_refusal(failure):
            self._begin_refusal(failure)
        return is_final  # then its messages are dead-lettered

    async def _bring_back(self) -> bool:
        """Take back deferred messages in order, several requests ahead; False if the entity fails meanwhile."""
        blocks, deferral = self._blocks, self._deferral
        requests: deque[Request] = deque()
        while self._blocks == blocks and not self._is_paused:
            await deferral.confirmed()
            while len(requests) < REQUESTS_AT_ONCE and deferral.is_before(self._first_behind):
                requests.append(deferral.ask(before=self._first_behind))
            if requests:
                await self._go_on_with_all(await deferral.taken(requests.popleft()), blocks)
            elif not self._go_on_with_behind():
                break
        for request in requests:  # in order they come behind what was not taken
            for parcel in await deferral.taken(request) or ():
                self._put_aside(parcel)
        await self._await_idle()
        return self._blocks == blocks

    @property
    def _first_behind(self) -> int | None:
        """The number of the first message that waits behind the deferred ones."""
        return self._behind[0].sequence_number if self._behind else None

    def _go_on_with_behind(self) -> bool:
        """Send what waits behind, up to the next message that is deferred. False if nothing waits."""
        if not self._behind:
            self._is_recovering = False  # what comes now goes behind all that was taken back
            return False
        while self._behind and not self._deferral.is_before(self._first_behind):
            self._forward(self._behind.popleft())
        return True

    async def _go_on_with_all(self, parcels: list[Parcel] | None, blocks: int) -> None:
        """Send what was taken back, unless the entity fails meanwhile; wait while that is much."""
        if parcels is None:
            self._block()
            return
        for parcel in parcels:
            if self._blocks == blocks:
                self._go_on_with(parcel)
            else:
                self._put_aside(parcel)
        await self._await_room(blocks)

    def _go_on_with(self, parcel: Parcel) -> None:
        """A message that was taken back is sent, unless the entity has it already."""
        if parcel.sequence_number in self._accepted:
            self._complete([parcel])
        else:
            self._forward(parcel)

    async def _await_room(self, blocks: int) -> None:
        """Messages that were taken back are answered, but for so many."""
        while self._blocks == blocks and self._open_count > OPEN_AT_ONCE:
            if not self._on_way and (self._link is None or self._link.failure is not None):
                await self._attach()
                continue
            self._progress.clear()
            await self._progress.wait()

    @property
    def _open_count(self) -> int:
        waiting = sum([len(lane) for lane in self._lanes.values()])
        return len(self._ready) + waiting + sum([len(load) for load, _, _ in self._on_way.values()])

    async def _await_idle(self) -> None:
        """Nothing is on its way or waits for what is."""
        while self._on_way or (self._ready and not self._is_paused):
            if self._on_way:
                self._idle.clear()
                await self._idle.wait()
            elif self._link is None or self._link.failure is not None:
                await self._attach()
            else:  # it goes with the next batch, or when the claim is certainly ours
                await asyncio.sleep(0.0 if self._source.holds_claim() else CLAIM_LOOK_S)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        """One task at a time; one that is over may leave work for another."""
        try:
            await work()
        finally:
            self._task = None
        if self._is_closed:
            return
        if self.is_blocked or ((self._deferral or self._behind) and not self._is_paused):
            self._task = self._loop.create_task(self._run(self._recover))
        elif self._ready:
            self._ship_soon()

    def _complete(self, load: Sequence[Parcel]) -> None:
        """The entity has these."""
        self._settle_doubts(load)
        taken, future = complete_all(load)
        if future is not None:
            future.add_done_callback(partial(self._completed, taken))

    def _completed(self, parcels: Sequence[Parcel], future: asyncio.Future[None]) -> None:
        """Those that were taken back. If this has failed they may be deferred still: nobody but us looks for them."""
        self._deferral.note_end("completed", parcels, future)
        numbers = [parcel.sequence_number for parcel in parcels]
        if future.cancelled() or future.exception() is None or self._is_closed:
            self._accepted.difference_update(numbers)
            return
        self._accepted.update(numbers)
        for number in numbers:
            self._deferral.add(number)
        self._block()
