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
from twinbus.client.pairing.delivery_failure import CONNECTION_ERRORS, RejectionPolicy, is_destination_refusal
from twinbus.client.pairing.failover.fragment_outages import routing_key_in
from twinbus.client.pairing.observe.event_publisher import DeferralBegan, PairEventPublisher
from twinbus.client.pairing.observe.events import EventKind
from twinbus.client.pairing.syphon.deferral import Deferral
from twinbus.client.pairing.syphon.parked_message import DeliveredParkedMessage, complete_all
from twinbus.client.pairing.syphon.wakeups import ProbeBackoff, fragment_wakeup_key
from twinbus.client.pairing.syphon.withheld_messages import WithheldMessages
from twinbus.client.retry import RECONNECT_ONCE
from twinbus.client.sender import MessageSender
from twinbus.model.errors import PartlyStored, ServiceBusError, Unauthorized
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.client.amqp.sender_link import SenderLink
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.syphon.deferral import BacklogSource, ReceiveRequest
    from twinbus.client.pairing.syphon.parked_message import ParkedMessage
    from twinbus.client.pairing.syphon.wakeups import Wakeups

MAX_BATCH_MESSAGES: Final = 100
MAX_BATCH_BYTES: Final = 200_000
"""Of messages that go together: a batch may have 256 KB, as one message."""
MAX_RECEIVE_REQUESTS: Final = 3
"""Requests for deferred messages that are on their way."""
MAX_UNANSWERED: Final = 500
"""Messages that were taken back and wait for their answers, before more are."""
MAX_WAITING_BEHIND: Final = 250
"""Messages that came on the link and wait for deferred ones: half of what may be out, so that other destinations go on.
"""
EXCLUSIVE_CHECK_S: Final = 0.1


class PrimarySenders:
    """What pumps send with: ordinary senders, since what the primary does not take is parked already."""

    def __init__(self, primary: MessagingFactory) -> None:
        """Nothing was sent yet."""
        self._primary = primary
        self._sender_by_path_key: dict[str, MessageSender] = {}

    def sender_to(self, path: str) -> MessageSender:
        """The one to an entity; all pumps share it."""
        sender = self._sender_by_path_key.get(canonical_key(path))
        if sender is None:
            sender = self._sender_by_path_key[canonical_key(path)] = MessageSender(self._primary, path)
        return sender


class Destination:
    """An entity that parked messages go to."""

    def __init__(
        self,
        sender: MessageSender,
        backlog_queue: str,
        events: PairEventPublisher,
        *,
        source: BacklogSource,
        on_primary_lost: Callable[[ServiceBusError], None],
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
        self._source, self._on_primary_lost, self._wakeups = source, on_primary_lost, wakeups
        self._deferral, self._withheld_messages = Deferral(source, backlog_queue), WithheldMessages(source, sender.path)
        self._postponed_failures: list[tuple[list[ParkedMessage], ServiceBusError]] = []
        """What became of messages while the claim was in doubt, in order."""
        self._loop = asyncio.get_running_loop()
        self._link: SenderLink | None = None
        self._ready: deque[ParkedMessage] = deque()
        """What goes with the next batches: of each session only the next one."""
        self._ready_bytes = 0
        self._session_queues: dict[str, deque[ParkedMessage]] = {}
        """What waits for the messages before it, by session. A lane that is there has some ready, or on their way."""
        self._in_flight: dict[asyncio.Future[object], tuple[list[ParkedMessage], float, SenderLink]] = {}
        self._unanswered_messages: list[ParkedMessage] = []
        """What was on its way when the primary was lost."""
        self._possibly_delivered: dict[ParkedMessage, None] = {}
        """Sent without a clear answer, and not settled since."""
        self._sent_singly: set[int] = set()
        """Numbers of messages that were in a batch that was refused: they go one by one."""
        self._is_send_scheduled = False
        self._mixes_sessions = True
        """False where a batch with several sessions was refused: partitioned entities of Azure do so."""
        self._accepted_numbers: set[int] = set()
        """Numbers of deferred messages that the entity has: they are still to be completed, and not sent again."""
        self._waiting_behind: deque[ParkedMessage] = deque()
        """What came on the link while deferred messages are taken back."""
        self._task: asyncio.Task[None] | None = None
        self.is_blocked = False
        """It accepts nothing now: all messages that come wait in the backlog queue."""
        self._is_recovering = False
        """It takes messages again, and deferred ones are taken back."""
        self._block_count = 0
        """How often it was found to take nothing."""
        self._has_accepted_probe = False
        """It has taken a deferred message since it was last found to take nothing."""
        self._is_paused = self._is_closed = False
        self._idle = asyncio.Event()
        self._answer_received = asyncio.Event()
        """Something was answered."""
        self._is_fragment = fragment is not None
        self._wakeup_key = sender.path if fragment is None else fragment_wakeup_key(sender.path, fragment)
        """What wakes it up."""
        self._fragment_destinations: dict[int, Destination] = {}
        """Those that took nothing once: what leads there has a way of its own from then on."""
        self._not_found_grace_s, self._rejection_policy = not_found_grace_s, RejectionPolicy(not_found_grace_s)
        self._refusal: ServiceBusError | None = None
        """Why the entity refuses all messages now."""
        self._uses_message_id = False
        """It detects duplicates: a message with no other key was refused for its fragment."""

    # --- in -----------------------------------------------------------------------------------------------------------

    def submit(self, message: ParkedMessage) -> None:
        """Bring a message there, in its turn."""
        if self.is_blocked:
            self._postpone_message(message)
        elif not self._is_recovering:
            self._enqueue(message)
        elif len(self._waiting_behind) < MAX_WAITING_BEHIND:
            self._waiting_behind.append(message)
        else:
            self._postpone_message(message)

    def add_deferred(self, sequence_number: int) -> None:
        """A message for it was deferred by an earlier pump."""
        self._deferral.add(sequence_number)
        if not self.is_blocked:
            self._is_recovering = True  # as far as is known it takes messages
            if self._task is None:
                self._task = self._loop.create_task(self._run(self._recover))

    def postpone(self, batch: list[ParkedMessage], error: ServiceBusError) -> None:
        """It does not accept these now: they wait in the backlog queue, and so do those to come."""
        self._block(batch)
        for parcel in batch:
            self._postpone_message(parcel, error)

    @property
    def is_deferring(self) -> bool:
        """Messages that come are deferred."""
        return self.is_blocked and not self._withheld_messages.is_withholding

    def expire_sends(self, limit_s: float) -> None:
        """Take no answer within `limit_s` for a failure."""
        for fragment in self._fragment_destinations.values():
            fragment.expire_sends(limit_s)
        now_s = self._loop.time()
        for future, (_, started_s, link) in list(self._in_flight.items()):
            if now_s - started_s < limit_s:
                return
            if link.withdraw(future):
                future.set_exception(self._timeout_error(started_s, was_sent=False))
            else:
                future.cancel()

    def _timeout_error(self, started_s: float, *, was_sent: bool) -> TimedOut:
        waited_s = self._loop.time() - started_s
        return TimedOut(f"'{self._sender.path}' did not answer for {waited_s:.0f} s", was_sent=was_sent)

    async def finish(self) -> None:
        """Send nothing more, and wait for the answers to what is on its way: what was accepted has to be completed."""
        self._is_paused = True
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()
        for fragment in list(self._fragment_destinations.values()):
            await fragment.finish()

    def close(self) -> list[ParkedMessage]:
        """The pump is over: nothing more is said of any message. Returns those that may have arrived."""
        self._is_closed = True
        self._end_refusal()
        self._deferral.flush()
        self._deferral.is_closed = True
        if self._task is not None:
            self._task.cancel()
        in_doubt = self._unanswered_messages
        in_doubt += self._possibly_delivered
        for future, (load, _, link) in list(self._in_flight.items()):
            if not link.withdraw(future):
                in_doubt += load
            future.cancel()
        for fragment in self._fragment_destinations.values():
            in_doubt += fragment.close()
        return in_doubt

    @property
    def receive_tasks(self) -> list[asyncio.Task[list[ParkedMessage]]]:
        """Requests for deferred messages that are on their way."""
        return [
            *self._deferral.receive_tasks,
            *[one for fragment in self._fragment_destinations.values() for one in fragment.receive_tasks],
        ]

    # --- out ----------------------------------------------------------------------------------------------------------

    def _enqueue(self, message: ParkedMessage) -> None:
        session_id = message.restored.session_id
        lane = self._session_queues.get(session_id) if session_id is not None else None
        if lane is not None:
            lane.append(message)
            return
        fragment = (
            self._fragment_destinations.get(self._fragment_number_of(message)) if self._fragment_destinations else None
        )
        if fragment is not None:
            fragment.submit(message)
            return
        if session_id is not None:
            self._session_queues[session_id] = deque()
        self._make_ready(message)

    def _make_ready(self, message: ParkedMessage) -> None:
        """With the others of this turn of the loop."""
        if self._is_paused:
            return  # it is given back with all that was not sent
        self._ready.append(message)
        self._ready_bytes += len(message.restored.payload)
        self._schedule_sends()

    def _schedule_sends(self) -> None:
        if not self._is_send_scheduled:
            self._is_send_scheduled = True
            self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        """Send what is ready. While something is on its way, less than a batch waits for more, or for the answer."""
        self._is_send_scheduled = False
        if self._is_closed or self._is_paused or not self._ready or not self._source.has_exclusive_access():
            return
        link = self._link
        if link is None or link.failure is not None:
            if self._task is None:
                self._task = self._loop.create_task(self._run(self._attach))
            return
        while self._ready and self._can_send_now:
            load = self._next_batch()
            payloads = [parcel.restored.payload for parcel in load]
            future = link.send(payloads[0]) if len(load) == 1 else link.send(data(*payloads), BATCH_FORMAT)
            self._in_flight[future] = (load, self._loop.time(), link)
            future.add_done_callback(self._on_answer)

    @property
    def _can_send_now(self) -> bool:
        """What is ready makes a batch, or will be none however long it waits; or nothing else is on its way."""
        if not self._in_flight or self._sent_singly or not self._mixes_sessions or self._ready_bytes >= MAX_BATCH_BYTES:
            return True
        count = len(self._ready)
        if self._session_queues and count < MAX_BATCH_MESSAGES:
            for parcel in self._ready:  # with what follows it in its session
                session_id = parcel.restored.session_id
                lane = self._session_queues.get(session_id) if session_id is not None else None
                count += len(lane) if lane is not None else 0
        return count >= MAX_BATCH_MESSAGES

    def _next_batch(self) -> list[ParkedMessage]:
        """What goes in one batch: what is ready, and what follows it in its session."""
        ready, lanes, alone, size = self._ready, self._session_queues, self._sent_singly, 0
        load: list[ParkedMessage] = []
        first = ready[0].restored.session_id
        while ready and len(load) < MAX_BATCH_MESSAGES:
            restored = ready[0].restored
            session_id = restored.session_id
            goes_alone = bool(alone) and ready[0].sequence_number in alone
            size += len(restored.payload)
            if load and (goes_alone or size > MAX_BATCH_BYTES or (not self._mixes_sessions and session_id != first)):
                break
            load.append(ready.popleft())
            self._ready_bytes -= len(restored.payload)
            if goes_alone:
                break
            lane = lanes.get(session_id) if session_id is not None else None
            while lane and len(load) < MAX_BATCH_MESSAGES and not (alone and lane[0].sequence_number in alone):
                size += len(lane[0].restored.payload)
                if size > MAX_BATCH_BYTES:
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
                self._on_failure([parcel], error)
        else:
            self._send_ready()

    def _on_answer(self, future: asyncio.Future[object]) -> None:
        load, started_s, link = self._in_flight.pop(future)
        if self._is_closed:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            self._on_no_answer(load, self._timeout_error(started_s, was_sent=True))
        else:
            error = future.exception()
            if error is None:
                self._on_accepted(load)
            else:
                assert isinstance(error, ServiceBusError)
                if may_have_happened(error) or (link.failure is not None and not isinstance(error, ConnectionFailed)):
                    self._on_no_answer(load, error)
                else:
                    self._on_failure(load, error)
        if self._ready:
            self._schedule_sends()
        self._answer_received.set()
        if not self._in_flight:
            self._idle.set()

    def _on_no_answer(self, batch: list[ParkedMessage], error: ServiceBusError) -> None:
        """They may have arrived: a link that ends says why it does, and nothing of what was on its way."""
        if isinstance(error, CONNECTION_ERRORS):
            self._unanswered_messages += batch
        else:
            places = error.unsure if isinstance(error, PartlyStored) else None
            for parcel in batch if places is None else [batch[place] for place in places]:
                parcel.mark_possible_duplicate()
                self._possibly_delivered[parcel] = None
        self._on_failure(batch, error)

    def _on_accepted(self, batch: list[ParkedMessage]) -> None:
        self._rejection_policy.note_accepted()
        self._end_refusal()
        if self._wakeups.has_waiters:
            self._wakeups.notify(self._wakeup_key)
        self._complete(batch)
        if self._events.is_wanted(EventKind.MOVED):
            for parcel in batch:
                self._events.emit_message(EventKind.MOVED, parcel, self._backlog_queue)
        if self._sent_singly:
            self._sent_singly.difference_update([parcel.sequence_number for parcel in batch])
        self._advance_sessions(batch)

    def resume(self) -> None:
        """The claim is certainly ours again."""
        failures, self._postponed_failures = self._postponed_failures, []
        for load, error in failures:
            self._on_failure(load, error)
        for fragment in list(self._fragment_destinations.values()):
            fragment.resume()
        if self._ready:
            self._schedule_sends()

    def _on_failure(self, batch: list[ParkedMessage], error: ServiceBusError) -> None:
        if not isinstance(error, CONNECTION_ERRORS) and not self._source.has_exclusive_access():
            self._postponed_failures.append((batch, error))
            return
        is_final = self._rejection_policy.is_permanent(error, self._loop.time())
        if isinstance(error, CONNECTION_ERRORS):
            self._on_primary_lost(error)
        elif not is_final:
            if is_destination_refusal(error):
                self._begin_refusal(error)
            if error.fragment is None or self._is_fragment or not self._isolate_fragment(error.fragment, batch, error):
                self.postpone(batch, error)
        elif isinstance(error, PartlyStored) and error.stored:
            stored = set(error.stored)
            self._on_accepted([parcel for place, parcel in enumerate(batch) if place in stored])
            self._resend([parcel for place, parcel in enumerate(batch) if place not in stored])
        elif len(batch) > 1:
            self._split_batch(batch)
        else:
            (parcel,) = batch
            self._forget_possibly_delivered(batch)
            reason = type(error).__name__
            parcel.dead_letter(reason, str(error)).add_done_callback(
                partial(self._deferral.log_failure, "dead-lettered", batch)
            )
            self._events.emit_message(EventKind.DEAD_LETTERED, parcel, self._backlog_queue, reason=str(error))
            self._end_refusal()
            self._sent_singly.discard(parcel.sequence_number)
            self._advance_sessions(batch)

    def _begin_refusal(self, error: ServiceBusError) -> None:
        """Tell once that the entity refuses all messages, and why."""
        if type(self._refusal) is not type(error):
            self._end_refusal()
            self._refusal = error
            self._emit_refusal(EventKind.DESTINATION_REFUSES, str(error))

    def _end_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal = None
            self._emit_refusal(EventKind.DESTINATION_ACCEPTS, None)

    def _emit_refusal(self, kind: EventKind, reason: str | None) -> None:
        self._events.emit(kind, path=self._sender.path, backlog_queue=self._backlog_queue, reason=reason)

    def _split_batch(self, batch: list[ParkedMessage]) -> None:
        """A batch was refused, for one of its messages or because it had several sessions: send it in smaller parts."""
        if self._mixes_sessions and len({parcel.restored.session_id for parcel in batch}) > 1:
            self._mixes_sessions = False
        else:
            self._sent_singly.update([parcel.sequence_number for parcel in batch])
        self._resend(batch)

    def _resend(self, batch: list[ParkedMessage]) -> None:
        """Before all that waits for it."""
        sessions: dict[str | None, list[ParkedMessage]] = {}
        for parcel in batch:
            sessions.setdefault(parcel.restored.session_id, []).append(parcel)
        for session_id, parcels in sessions.items():
            if session_id is None:
                for parcel in parcels:
                    self._make_ready(parcel)
            else:
                lane = self._session_queues.setdefault(session_id, deque())
                lane.extendleft(reversed(parcels[1:]))
                self._make_ready(parcels[0])

    def _advance_sessions(self, batch: list[ParkedMessage]) -> None:
        """The next of their sessions, if there are any."""
        for session_id in dict.fromkeys(parcel.restored.session_id for parcel in batch):
            lane = self._session_queues.get(session_id) if session_id is not None else None
            if lane:
                self._make_ready(lane.popleft())
            elif lane is not None and session_id is not None:
                del self._session_queues[session_id]

    # --- fragments ----------------------------------------------------------------------------------------------------

    def _fragment_number_of(self, message: ParkedMessage) -> int:
        """The fragment that a message is for, if the entity has any; -1 where it has no key."""
        found = routing_key_in(message.restored.payload, message.restored.session_id).fragment_number(
            uses_message_id=self._uses_message_id
        )
        return -1 if found is None else found

    def _isolate_fragment(self, number: int, batch: list[ParkedMessage], error: ServiceBusError) -> bool:
        """A fragment takes nothing now: what leads there waits, and the rest is sent. False if nothing of it does."""
        bound = self._messages_for_fragment(number, batch)
        if not bound:
            return False
        fragment = self._fragment_destination(number)
        fragment.postpone(bound, error)
        for parcel in bound:
            self._move_session_queue(parcel, fragment)
        waiting, self._ready, self._ready_bytes = self._ready, deque(), 0
        for parcel in waiting:
            if self._fragment_number_of(parcel) == number:
                fragment.submit(parcel)
                self._move_session_queue(parcel, fragment)
            else:
                self._make_ready(parcel)
        refused = {parcel.sequence_number for parcel in bound}
        self._resend([parcel for parcel in batch if parcel.sequence_number not in refused])
        return True

    def _messages_for_fragment(self, number: int, batch: list[ParkedMessage]) -> list[ParkedMessage]:
        """Those that lead to a fragment; by their ids only if no other key does, and then it is known that these do."""
        bound = [parcel for parcel in batch if self._fragment_number_of(parcel) == number]
        if not bound and not self._uses_message_id:
            self._uses_message_id = True
            bound = [parcel for parcel in batch if self._fragment_number_of(parcel) == number]
            self._uses_message_id = bool(bound)
        return bound

    def _fragment_destination(self, number: int) -> Destination:
        fragment = self._fragment_destinations.get(number)
        if fragment is None:
            fragment = self._fragment_destinations[number] = Destination(
                self._sender,
                self._backlog_queue,
                self._events,
                source=self._source,
                on_primary_lost=self._on_primary_lost,
                wakeups=self._wakeups,
                not_found_grace_s=self._not_found_grace_s,
                fragment=number,
            )
        return fragment

    def _move_session_queue(self, message: ParkedMessage, fragment: Destination) -> None:
        """What waits for a message goes where that goes."""
        session_id = message.restored.session_id
        lane = self._session_queues.pop(session_id, None) if session_id is not None else None
        for waiting in lane or ():
            fragment.submit(waiting)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _block(self, batch: Sequence[ParkedMessage] = ()) -> None:
        """Let messages wait in the backlog queue until the entity answers; `load` was just refused."""
        self._withheld_messages.is_withholding = self._withheld_messages.is_withholding or self._can_withhold(batch)
        self.is_blocked, self._is_recovering, self._has_accepted_probe = True, False, False
        self._block_count += 1
        self._events.publish(DeferralBegan())
        lanes, self._session_queues = self._session_queues, {}
        ready, self._ready, self._ready_bytes = self._ready, deque(), 0
        behind, self._waiting_behind = self._waiting_behind, deque()
        for waiting in (ready, *lanes.values(), behind):
            for parcel in waiting:
                self._postpone_message(parcel)
        self._answer_received.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run(self._recover))

    def _can_withhold(self, batch: Sequence[ParkedMessage]) -> bool:
        """Tell whether all messages for the entity can wait in their places: none of those in hand was deferred."""
        if (
            self._is_fragment
            or self._fragment_destinations
            or self._deferral
            or self._deferral.receive_tasks
            or self._is_recovering
        ):
            return False
        in_hand = [parcel for waiting in (batch, self._ready, self._waiting_behind) for parcel in waiting]
        in_hand += [parcel for lane in self._session_queues.values() for parcel in lane]
        in_hand += [parcel for sent, _, _ in self._in_flight.values() for parcel in sent]
        in_hand += [parcel for failed, _ in self._postponed_failures for parcel in failed]
        if [parcel for parcel in in_hand if not isinstance(parcel, DeliveredParkedMessage)]:
            return False
        return self._withheld_messages.is_possible

    def _forget_possibly_delivered(self, batch: Sequence[ParkedMessage]) -> None:
        """Messages are settled, with their marks: the backlog queue knows of the doubt."""
        if self._possibly_delivered:
            for parcel in batch:
                self._possibly_delivered.pop(parcel, None)

    def _defer(self, message: ParkedMessage) -> None:
        self._forget_possibly_delivered([message])
        self._deferral.defer(message)

    def _postpone_message(self, message: ParkedMessage, error: ServiceBusError | None = None) -> None:
        """Let a message wait in the backlog queue."""
        if self._withheld_messages.is_withholding and isinstance(message, DeliveredParkedMessage):
            self._forget_possibly_delivered(self._withheld_messages.add(message))
        else:
            self._defer(message)
        if self._events.is_wanted(EventKind.DEFERRED):
            reason = None if error is None else str(error)
            self._events.emit_message(EventKind.DEFERRED, message, self._backlog_queue, reason=reason)

    async def _recover(self) -> None:
        """Probe until the entity answers, then have the messages that wait, in order."""
        pace, withheld = ProbeBackoff(self._wakeups, self._wakeup_key), self._withheld_messages
        try:
            if (
                withheld.is_withholding and not withheld.is_confirmed
            ):  # messages that come must not use up the pump's credit
                await self._withhold()
            await self._wait_until_idle()
            while (self._deferral or self._waiting_behind or withheld.received) and not self._is_paused:
                if withheld.is_withholding and not withheld.is_confirmed:
                    await self._withhold()
                has_answered = (
                    await self._recover_deferred() if self._has_accepted_probe else await self._try_probe(pace)
                )
                if has_answered and withheld.is_withholding and not self._deferral:
                    break
        finally:
            pace.end()
        if not withheld.may_be_withheld or self._is_paused:
            self.is_blocked = self._is_recovering = False
            return
        blocks = self._block_count
        self._forget_possibly_delivered(await withheld.release_all())
        if self._block_count == blocks and not self._deferral:  # else it begins anew (`_run`)
            self.is_blocked = self._is_recovering = False
            await withheld.end()

    async def _try_probe(self, backoff: ProbeBackoff) -> bool:
        """Probe the entity when it is time to; False if it still accepts nothing."""
        if self.is_blocked:
            await backoff.wait()
        is_attached = await self._can_attach()
        if is_attached and await self._probe():
            backoff.note_success()
            if self._deferral or not self._withheld_messages.is_withholding:
                self.is_blocked, self._is_recovering, self._has_accepted_probe = False, True, True
            return True
        backoff.note_failure(
            is_charged=is_attached or isinstance(self._refusal, Unauthorized)
        )  # a login that fails is logged
        if not self.is_blocked:
            self._block()
        return False

    async def _withhold(self) -> None:
        """Have messages withheld; deferred, if the queue cannot withhold them."""
        given_back = await self._withheld_messages.begin()
        if given_back is not None:
            self._forget_possibly_delivered(given_back)
            return
        for parcel in self._withheld_messages.take_all():
            self._defer(parcel)

    async def _probe(self) -> bool:
        """Bring the oldest message there; False if the entity does still not accept it."""
        blocks = self._block_count
        await self._deferral.wait_confirmed()
        parcels: list[ParkedMessage] | None
        if self._deferral:
            parcels = await self._deferral.messages_of(self._deferral.request(1))
        else:
            parcels = [*self._withheld_messages.take_oldest()]
        for parcel in parcels or ():
            self._send_recovered(parcel)
        await self._wait_until_idle()
        return parcels is not None and self._block_count == blocks

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
        is_final = self._rejection_policy.is_permanent(failure, self._loop.time())
        if isinstance(failure, CONNECTION_ERRORS):
            self._on_primary_lost(failure)
            return False
        if not is_final and is_destination_refusal(failure):
            self._begin_refusal(failure)
        return is_final  # then its messages are dead-lettered

    async def _recover_deferred(self) -> bool:
        """Take back deferred messages in order, several requests ahead; False if the entity fails meanwhile."""
        blocks, deferral = self._block_count, self._deferral
        requests: deque[ReceiveRequest] = deque()
        while self._block_count == blocks and not self._is_paused:
            await deferral.wait_confirmed()
            while len(requests) < MAX_RECEIVE_REQUESTS and deferral.has_before(self._first_number_behind):
                requests.append(deferral.request(before=self._first_number_behind))
            if requests:
                await self._send_recovered_batch(await deferral.messages_of(requests.popleft()), blocks)
            elif not self._send_waiting_behind():
                break
        for request in requests:  # in order they come behind what was not taken
            for parcel in await deferral.messages_of(request) or ():
                self._postpone_message(parcel)
        await self._wait_until_idle()
        return self._block_count == blocks

    @property
    def _first_number_behind(self) -> int | None:
        """The number of the first message that waits behind the deferred ones."""
        return self._waiting_behind[0].sequence_number if self._waiting_behind else None

    def _send_waiting_behind(self) -> bool:
        """Send what waits behind, up to the next message that is deferred. False if nothing waits."""
        if not self._waiting_behind:
            self._is_recovering = False  # what comes now goes behind all that was taken back
            return False
        while self._waiting_behind and not self._deferral.has_before(self._first_number_behind):
            self._enqueue(self._waiting_behind.popleft())
        return True

    async def _send_recovered_batch(self, batch: list[ParkedMessage] | None, block_count: int) -> None:
        """Send what was taken back, unless the entity fails meanwhile; wait while that is much."""
        if batch is None:
            self._block()
            return
        for parcel in batch:
            if self._block_count == block_count:
                self._send_recovered(parcel)
            else:
                self._postpone_message(parcel)
        await self._wait_for_room(block_count)

    def _send_recovered(self, message: ParkedMessage) -> None:
        """A message that was taken back is sent, unless the entity has it already."""
        if message.sequence_number in self._accepted_numbers:
            self._complete([message])
        else:
            self._enqueue(message)

    async def _wait_for_room(self, block_count: int) -> None:
        """Messages that were taken back are answered, but for so many."""
        while self._block_count == block_count and self._unanswered_count > MAX_UNANSWERED:
            if not self._in_flight and (self._link is None or self._link.failure is not None):
                await self._attach()
                continue
            self._answer_received.clear()
            await self._answer_received.wait()

    @property
    def _unanswered_count(self) -> int:
        waiting = sum([len(lane) for lane in self._session_queues.values()])
        return len(self._ready) + waiting + sum([len(load) for load, _, _ in self._in_flight.values()])

    async def _wait_until_idle(self) -> None:
        """Nothing is on its way or waits for what is."""
        while self._in_flight or (self._ready and not self._is_paused):
            if self._in_flight:
                self._idle.clear()
                await self._idle.wait()
            elif self._link is None or self._link.failure is not None:
                await self._attach()
            else:  # it goes with the next batch, or when the claim is certainly ours
                await asyncio.sleep(0.0 if self._source.has_exclusive_access() else EXCLUSIVE_CHECK_S)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        """One task at a time; one that is over may leave work for another."""
        try:
            await work()
        finally:
            self._task = None
        if self._is_closed:
            return
        if self.is_blocked or ((self._deferral or self._waiting_behind) and not self._is_paused):
            self._task = self._loop.create_task(self._run(self._recover))
        elif self._ready:
            self._schedule_sends()

    def _complete(self, batch: Sequence[ParkedMessage]) -> None:
        """The entity has these."""
        self._forget_possibly_delivered(batch)
        taken, future = complete_all(batch)
        if future is not None:
            future.add_done_callback(partial(self._on_completed, taken))

    def _on_completed(self, batch: Sequence[ParkedMessage], future: asyncio.Future[None]) -> None:
        """Those that were taken back. If this has failed they may be deferred still: nobody but us looks for them."""
        self._deferral.log_failure("completed", batch, future)
        numbers = [parcel.sequence_number for parcel in batch]
        if future.cancelled() or future.exception() is None or self._is_closed:
            self._accepted_numbers.difference_update(numbers)
            return
        self._accepted_numbers.update(numbers)
        for number in numbers:
            self._deferral.add(number)
        self._block()
