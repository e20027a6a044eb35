"""A destination for parked messages: an entity of the primary, as one pump sees it.

Messages that are ready are sent together, as a batch, which the entity accepts or rejects as a whole. Messages of a
session are sent in order, and no two batches with messages of one session are in flight at once. A rejected batch
is sent again message by message, so that one bad message does not affect the other messages.

Messages for an entity that accepts no messages now wait in the backlog queue: the entity is busy, full,
unavailable, disabled or missing, or does not accept the key. Messages can wait in two ways:

- The backlog queue withholds the messages (`withheld_messages`). Received messages are released to their places,
  except the oldest message. When the entity accepts that message, the queue delivers the next messages, in order.
- The messages are deferred (`deferral`), and so are later messages. When the entity recovers, the pump receives all
  deferred messages by their numbers, in order, in several large requests at a time. Messages that arrive on the link
  wait behind the deferred messages. Messages are deferred if the server cannot withhold messages, if only a single
  fragment of the entity accepts no messages, and while any message for the entity is deferred, so that no message
  overtakes a deferred one.

In both cases the entity is probed with its oldest message every few seconds, and at once when it has responded to
another part of this process.

A message whose send has no clear outcome is *in doubt*: every later copy is marked as a possible duplicate, including
the copy in the backlog queue.

If a single fragment of a partitioned entity accepts no messages, its messages get a destination of their own, and the
messages of other fragments are not delayed.

Owns: the queues of sessions, the messages in flight, and the deferred messages. If the whole primary is lost, the pump
is notified through `on_primary_lost`.
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
"""The maximum total size of the messages in a batch: below 256 KB, the limit for a batch and for a message."""
MAX_RECEIVE_REQUESTS: Final = 3
"""The maximum number of requests for deferred messages in flight."""
MAX_UNANSWERED: Final = 500
"""The maximum number of recovered messages without an outcome. Above it, no more deferred messages are received."""
MAX_WAITING_BEHIND: Final = 250
"""The number of messages from the link that may wait for deferred messages: half the prefetch window, so that other
destinations continue."""
EXCLUSIVE_CHECK_S: Final = 0.1


class PrimarySenders:
    """The senders of the pumps. They are ordinary senders, which do not park messages."""

    def __init__(self, primary: MessagingFactory) -> None:
        """Create an empty set of senders to the primary."""
        self._primary = primary
        self._sender_by_path_key: dict[str, MessageSender] = {}

    def sender_to(self, path: str) -> MessageSender:
        """Return the sender to an entity, which all pumps share."""
        sender = self._sender_by_path_key.get(canonical_key(path))
        if sender is None:
            sender = self._sender_by_path_key[canonical_key(path)] = MessageSender(self._primary, path)
        return sender


class Destination:
    """An entity of the primary that parked messages are sent to."""

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
        """Create a destination for the messages of `source`; `on_primary_lost` is called when the primary is lost.

        While the lease on the source is in doubt, messages are neither sent, deferred nor dead-lettered, until
        `resume`. Messages are dead-lettered after the entity has been missing for `not_found_grace_s`. With `fragment`,
        the destination is only for messages to that fragment of a partitioned entity.
        """
        self._sender, self._backlog_queue, self._events = sender, backlog_queue, events
        self._source, self._on_primary_lost, self._wakeups = source, on_primary_lost, wakeups
        self._deferral, self._withheld_messages = Deferral(source, backlog_queue), WithheldMessages(source, sender.path)
        self._postponed_failures: list[tuple[list[ParkedMessage], ServiceBusError]] = []
        """Failures that occurred while the lease was in doubt, in order."""
        self._loop = asyncio.get_running_loop()
        self._link: SenderLink | None = None
        self._ready: deque[ParkedMessage] = deque()
        """Messages for the next batches, with only the first message of each session."""
        self._ready_bytes = 0
        self._session_queues: dict[str, deque[ParkedMessage]] = {}
        """Messages that wait for earlier messages of their session. A session in this dict has messages ready or in
        flight."""
        self._in_flight: dict[asyncio.Future[object], tuple[list[ParkedMessage], float, SenderLink]] = {}
        self._unanswered_messages: list[ParkedMessage] = []
        """Messages that were in flight when the primary was lost."""
        self._possibly_delivered: dict[ParkedMessage, None] = {}
        """Messages that were sent without a clear outcome and are not settled yet."""
        self._sent_singly: set[int] = set()
        """Sequence numbers of messages from rejected batches, which are sent one by one."""
        self._is_send_scheduled = False
        self._mixes_sessions = True
        """Whether batches may have several sessions; False after such a batch was rejected (as Azure may do)."""
        self._accepted_numbers: set[int] = set()
        """Numbers of deferred messages that the entity has accepted, and that must be completed instead of sent
        again."""
        self._waiting_behind: deque[ParkedMessage] = deque()
        """Messages that arrived on the link while deferred messages are being received."""
        self._task: asyncio.Task[None] | None = None
        self.is_blocked = False
        """Whether the entity accepts no messages now, so that all messages wait in the backlog queue."""
        self._is_recovering = False
        """Whether the entity accepts messages again and its deferred messages are being received."""
        self._block_count = 0
        """The number of times the entity was blocked, to detect a block during an await."""
        self._has_accepted_probe = False
        """Whether the entity has accepted a deferred message since it was last blocked."""
        self._is_paused = self._is_closed = False
        self._idle = asyncio.Event()
        self._answer_received = asyncio.Event()
        """Set when a send has an outcome."""
        self._is_fragment = fragment is not None
        self._wakeup_key = sender.path if fragment is None else fragment_wakeup_key(sender.path, fragment)
        """The key of the wakeups for this destination."""
        self._fragment_destinations: dict[int, Destination] = {}
        """Destinations for single fragments, each created when the fragment is first blocked. All later messages for
        the fragment are sent through its own destination."""
        self._not_found_grace_s, self._rejection_policy = not_found_grace_s, RejectionPolicy(not_found_grace_s)
        self._refusal: ServiceBusError | None = None
        """The error with which the entity refuses all messages now."""
        self._uses_message_id = False
        """Whether the entity maps messages to fragments by message id. This is known once a fragment has rejected a
        message that has no other key."""

    # --- incoming -----------------------------------------------------------------------------------------------------

    def submit(self, message: ParkedMessage) -> None:
        """Send a message in its turn, or let it wait if the entity is blocked."""
        if self.is_blocked:
            self._postpone_message(message)
        elif not self._is_recovering:
            self._enqueue(message)
        elif len(self._waiting_behind) < MAX_WAITING_BEHIND:
            self._waiting_behind.append(message)
        else:
            self._postpone_message(message)

    def add_deferred(self, sequence_number: int) -> None:
        """Add a message for this destination that an earlier pump deferred."""
        self._deferral.add(sequence_number)
        if not self.is_blocked:
            self._is_recovering = True  # the entity is assumed to accept messages
            if self._task is None:
                self._task = self._loop.create_task(self._run(self._recover))

    def postpone(self, batch: list[ParkedMessage], error: ServiceBusError) -> None:
        """Let messages that the entity does not accept now, and all later messages, wait in the backlog queue."""
        self._block(batch)
        for message in batch:
            self._postpone_message(message, error)

    @property
    def is_deferring(self) -> bool:
        """Whether new messages are deferred."""
        return self.is_blocked and not self._withheld_messages.is_withholding

    def expire_sends(self, limit_s: float) -> None:
        """Fail sends that have no outcome within `limit_s`."""
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
        """Stop sending, and wait for the outcomes of messages in flight. Accepted messages must be completed."""
        self._is_paused = True
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()
        for fragment in list(self._fragment_destinations.values()):
            await fragment.finish()

    def close(self) -> list[ParkedMessage]:
        """Stop the destination without settling any message, and return the messages that may have arrived."""
        self._is_closed = True
        self._end_refusal()
        self._deferral.flush()
        self._deferral.is_closed = True
        if self._task is not None:
            self._task.cancel()
        in_doubt = self._unanswered_messages
        in_doubt += self._possibly_delivered
        for future, (batch, _, link) in list(self._in_flight.items()):
            if not link.withdraw(future):
                in_doubt += batch
            future.cancel()
        for fragment in self._fragment_destinations.values():
            in_doubt += fragment.close()
        return in_doubt

    @property
    def receive_tasks(self) -> list[asyncio.Task[list[ParkedMessage]]]:
        """Requests for deferred messages in flight."""
        return [
            *self._deferral.receive_tasks,
            *[task for fragment in self._fragment_destinations.values() for task in fragment.receive_tasks],
        ]

    # --- sending ------------------------------------------------------------------------------------------------------

    def _enqueue(self, message: ParkedMessage) -> None:
        session_id = message.restored.session_id
        session_queue = self._session_queues.get(session_id) if session_id is not None else None
        if session_queue is not None:
            session_queue.append(message)
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
        """Make a message ready to be sent together with the other messages of this turn of the loop."""
        if self._is_paused:
            return  # the consumer releases all messages that were not sent
        self._ready.append(message)
        self._ready_bytes += len(message.restored.payload)
        self._schedule_sends()

    def _schedule_sends(self) -> None:
        if not self._is_send_scheduled:
            self._is_send_scheduled = True
            self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        """Send ready messages. While a batch is in flight, wait until a full batch is ready or an outcome arrives."""
        self._is_send_scheduled = False
        if self._is_closed or self._is_paused or not self._ready or not self._source.has_exclusive_access():
            return
        link = self._link
        if link is None or link.failure is not None:
            if self._task is None:
                self._task = self._loop.create_task(self._run(self._attach))
            return
        while self._ready and self._can_send_now:
            batch = self._next_batch()
            payloads = [message.restored.payload for message in batch]
            future = link.send(payloads[0]) if len(batch) == 1 else link.send(data(*payloads), BATCH_FORMAT)
            self._in_flight[future] = (batch, self._loop.time(), link)
            future.add_done_callback(self._on_answer)

    @property
    def _can_send_now(self) -> bool:
        """Whether the ready messages fill a batch, or cannot share a batch, or no batch is in flight."""
        if not self._in_flight or self._sent_singly or not self._mixes_sessions or self._ready_bytes >= MAX_BATCH_BYTES:
            return True
        count = len(self._ready)
        if self._session_queues and count < MAX_BATCH_MESSAGES:
            for message in self._ready:  # plus the following messages of its session
                session_id = message.restored.session_id
                session_queue = self._session_queues.get(session_id) if session_id is not None else None
                count += len(session_queue) if session_queue is not None else 0
        return count >= MAX_BATCH_MESSAGES

    def _next_batch(self) -> list[ParkedMessage]:
        """Return the messages of the next batch: ready messages, and later messages of their sessions."""
        ready, session_queues, alone, size = self._ready, self._session_queues, self._sent_singly, 0
        batch: list[ParkedMessage] = []
        first = ready[0].restored.session_id
        while ready and len(batch) < MAX_BATCH_MESSAGES:
            restored = ready[0].restored
            session_id = restored.session_id
            goes_alone = bool(alone) and ready[0].sequence_number in alone
            size += len(restored.payload)
            if batch and (goes_alone or size > MAX_BATCH_BYTES or (not self._mixes_sessions and session_id != first)):
                break
            batch.append(ready.popleft())
            self._ready_bytes -= len(restored.payload)
            if goes_alone:
                break
            session_queue = session_queues.get(session_id) if session_id is not None else None
            while (
                session_queue
                and len(batch) < MAX_BATCH_MESSAGES
                and not (alone and session_queue[0].sequence_number in alone)
            ):
                size += len(session_queue[0].restored.payload)
                if size > MAX_BATCH_BYTES:
                    break
                batch.append(session_queue.popleft())
        return batch

    async def _attach(self) -> None:
        """Attach a link, and send the messages that are ready."""
        try:
            self._link = await self._sender.link(RECONNECT_ONCE)
        except ServiceBusError as error:
            waiting, self._ready, self._ready_bytes = self._ready, deque(), 0
            for message in waiting:
                self._on_failure([message], error)
        else:
            self._send_ready()

    def _on_answer(self, future: asyncio.Future[object]) -> None:
        batch, started_s, link = self._in_flight.pop(future)
        if self._is_closed:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            self._on_no_answer(batch, self._timeout_error(started_s, was_sent=True))
        else:
            error = future.exception()
            if error is None:
                self._on_accepted(batch)
            else:
                assert isinstance(error, ServiceBusError)
                if may_have_happened(error) or (link.failure is not None and not isinstance(error, ConnectionFailed)):
                    self._on_no_answer(batch, error)
                else:
                    self._on_failure(batch, error)
        if self._ready:
            self._schedule_sends()
        self._answer_received.set()
        if not self._in_flight:
            self._idle.set()

    def _on_no_answer(self, batch: list[ParkedMessage], error: ServiceBusError) -> None:
        """Handle a send without a clear outcome. The messages may have arrived, even if the link has failed."""
        if isinstance(error, CONNECTION_ERRORS):
            self._unanswered_messages += batch
        else:
            unsure_indexes = error.unsure if isinstance(error, PartlyStored) else None
            for message in batch if unsure_indexes is None else [batch[index] for index in unsure_indexes]:
                message.mark_possible_duplicate()
                self._possibly_delivered[message] = None
        self._on_failure(batch, error)

    def _on_accepted(self, batch: list[ParkedMessage]) -> None:
        self._rejection_policy.note_accepted()
        self._end_refusal()
        if self._wakeups.has_waiters:
            self._wakeups.notify(self._wakeup_key)
        self._complete(batch)
        if self._events.is_wanted(EventKind.MOVED):
            for message in batch:
                self._events.emit_message(EventKind.MOVED, message, self._backlog_queue)
        if self._sent_singly:
            self._sent_singly.difference_update([message.sequence_number for message in batch])
        self._advance_sessions(batch)

    def resume(self) -> None:
        """Continue after the lease has become valid again."""
        failures, self._postponed_failures = self._postponed_failures, []
        for batch, error in failures:
            self._on_failure(batch, error)
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
            self._on_accepted([message for index, message in enumerate(batch) if index in stored])
            self._resend([message for index, message in enumerate(batch) if index not in stored])
        elif len(batch) > 1:
            self._split_batch(batch)
        else:
            (message,) = batch
            self._forget_possibly_delivered(batch)
            reason = type(error).__name__
            message.dead_letter(reason, str(error)).add_done_callback(
                partial(self._deferral.log_failure, "dead-lettered", batch)
            )
            self._events.emit_message(EventKind.DEAD_LETTERED, message, self._backlog_queue, reason=str(error))
            self._end_refusal()
            self._sent_singly.discard(message.sequence_number)
            self._advance_sessions(batch)

    def _begin_refusal(self, error: ServiceBusError) -> None:
        """Publish the event that the entity refuses all messages, once for consecutive errors of the same class."""
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
        """Send a rejected batch in smaller parts. One of its messages is bad, or the batch had several sessions."""
        if self._mixes_sessions and len({message.restored.session_id for message in batch}) > 1:
            self._mixes_sessions = False
        else:
            self._sent_singly.update([message.sequence_number for message in batch])
        self._resend(batch)

    def _resend(self, batch: list[ParkedMessage]) -> None:
        """Send messages again, before all other messages of their sessions."""
        sessions: dict[str | None, list[ParkedMessage]] = {}
        for message in batch:
            sessions.setdefault(message.restored.session_id, []).append(message)
        for session_id, messages in sessions.items():
            if session_id is None:
                for message in messages:
                    self._make_ready(message)
            else:
                session_queue = self._session_queues.setdefault(session_id, deque())
                session_queue.extendleft(reversed(messages[1:]))
                self._make_ready(messages[0])

    def _advance_sessions(self, batch: list[ParkedMessage]) -> None:
        """Make the next messages of the sessions in this batch ready."""
        for session_id in dict.fromkeys(message.restored.session_id for message in batch):
            session_queue = self._session_queues.get(session_id) if session_id is not None else None
            if session_queue:
                self._make_ready(session_queue.popleft())
            elif session_queue is not None and session_id is not None:
                del self._session_queues[session_id]

    # --- fragments ----------------------------------------------------------------------------------------------------

    def _fragment_number_of(self, message: ParkedMessage) -> int:
        """Return the fragment (of a partitioned entity) that a message maps to, or -1 if the message has no key."""
        number = routing_key_in(message.restored.payload, message.restored.session_id).fragment_number(
            uses_message_id=self._uses_message_id
        )
        return -1 if number is None else number

    def _isolate_fragment(self, number: int, batch: list[ParkedMessage], error: ServiceBusError) -> bool:
        """Let the messages for a blocked fragment wait, and send the other messages again.

        Return False if no message of the batch maps to the fragment.
        """
        affected = self._messages_for_fragment(number, batch)
        if not affected:
            return False
        fragment = self._fragment_destination(number)
        fragment.postpone(affected, error)
        for message in affected:
            self._move_session_queue(message, fragment)
        waiting, self._ready, self._ready_bytes = self._ready, deque(), 0
        for message in waiting:
            if self._fragment_number_of(message) == number:
                fragment.submit(message)
                self._move_session_queue(message, fragment)
            else:
                self._make_ready(message)
        refused = {message.sequence_number for message in affected}
        self._resend([message for message in batch if message.sequence_number not in refused])
        return True

    def _messages_for_fragment(self, number: int, batch: list[ParkedMessage]) -> list[ParkedMessage]:
        """Return the messages that map to a fragment.

        Message ids are used only if no other key maps to the fragment.
        """
        affected = [message for message in batch if self._fragment_number_of(message) == number]
        if not affected and not self._uses_message_id:
            self._uses_message_id = True
            affected = [message for message in batch if self._fragment_number_of(message) == number]
            self._uses_message_id = bool(affected)
        return affected

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
        """Move the messages that wait for a message of the same session to the fragment's destination."""
        session_id = message.restored.session_id
        session_queue = self._session_queues.pop(session_id, None) if session_id is not None else None
        for waiting in session_queue or ():
            fragment.submit(waiting)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _block(self, batch: Sequence[ParkedMessage] = ()) -> None:
        """Let messages wait in the backlog queue until the entity responds; `batch` was just refused."""
        self._withheld_messages.is_withholding = self._withheld_messages.is_withholding or self._can_withhold(batch)
        self.is_blocked, self._is_recovering, self._has_accepted_probe = True, False, False
        self._block_count += 1
        self._events.publish(DeferralBegan())
        session_queues, self._session_queues = self._session_queues, {}
        ready, self._ready, self._ready_bytes = self._ready, deque(), 0
        behind, self._waiting_behind = self._waiting_behind, deque()
        for waiting in (ready, *session_queues.values(), behind):
            for message in waiting:
                self._postpone_message(message)
        self._answer_received.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run(self._recover))

    def _can_withhold(self, batch: Sequence[ParkedMessage]) -> bool:
        """Return whether all messages for the entity can be withheld.

        No message may be deferred, and the server must support withholding.
        """
        if (
            self._is_fragment
            or self._fragment_destinations
            or self._deferral
            or self._deferral.receive_tasks
            or self._is_recovering
        ):
            return False
        in_hand = [message for waiting in (batch, self._ready, self._waiting_behind) for message in waiting]
        in_hand += [message for session_queue in self._session_queues.values() for message in session_queue]
        in_hand += [message for sent, _, _ in self._in_flight.values() for message in sent]
        in_hand += [message for failed, _ in self._postponed_failures for message in failed]
        if [message for message in in_hand if not isinstance(message, DeliveredParkedMessage)]:
            return False
        return self._withheld_messages.is_possible

    def _forget_possibly_delivered(self, batch: Sequence[ParkedMessage]) -> None:
        """Forget messages whose settlement has recorded their possible-duplicate marks in the backlog queue."""
        if self._possibly_delivered:
            for message in batch:
                self._possibly_delivered.pop(message, None)

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
        """Probe until the entity responds, then send the waiting messages, in order."""
        backoff, withheld = ProbeBackoff(self._wakeups, self._wakeup_key), self._withheld_messages
        try:
            if (
                withheld.is_withholding and not withheld.is_confirmed
            ):  # arriving messages must not use up the pump's credit
                await self._withhold()
            await self._wait_until_idle()
            while (self._deferral or self._waiting_behind or withheld.received) and not self._is_paused:
                if withheld.is_withholding and not withheld.is_confirmed:
                    await self._withhold()
                has_answered = (
                    await self._recover_deferred() if self._has_accepted_probe else await self._try_probe(backoff)
                )
                if has_answered and withheld.is_withholding and not self._deferral:
                    break
        finally:
            backoff.end()
        if not withheld.may_be_withheld or self._is_paused:
            self.is_blocked = self._is_recovering = False
            return
        block_count = self._block_count
        self._forget_possibly_delivered(await withheld.release_all())
        if self._block_count == block_count and not self._deferral:  # otherwise `_run` starts again
            self.is_blocked = self._is_recovering = False
            await withheld.end()

    async def _try_probe(self, backoff: ProbeBackoff) -> bool:
        """Probe the entity when the next probe is due. Return False if the entity still accepts no messages."""
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
        )  # a failed login counts as charged, because the server logs it
        if not self.is_blocked:
            self._block()
        return False

    async def _withhold(self) -> None:
        """Withhold messages; defer them if the queue cannot withhold them."""
        released = await self._withheld_messages.begin()
        if released is not None:
            self._forget_possibly_delivered(released)
            return
        for message in self._withheld_messages.take_all():
            self._defer(message)

    async def _probe(self) -> bool:
        """Send the oldest message; return False if the entity still does not accept it."""
        block_count = self._block_count
        await self._deferral.wait_confirmed()
        messages: list[ParkedMessage] | None
        if self._deferral:
            messages = await self._deferral.messages_of(self._deferral.request(1))
        else:
            messages = [*self._withheld_messages.take_oldest()]
        for message in messages or ():
            self._send_recovered(message)
        await self._wait_until_idle()
        return messages is not None and self._block_count == block_count

    async def _can_attach(self) -> bool:
        """Attach to the entity, and return whether to receive messages for the entity.

        The attach comes first because a receive is a billed operation, but a refused attach is not.
        """
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
        return is_final  # if the refusal is final, the messages are received and dead-lettered

    async def _recover_deferred(self) -> bool:
        """Receive deferred messages with several requests at a time, and send the messages in order.

        Return False if the entity fails.
        """
        block_count, deferral = self._block_count, self._deferral
        requests: deque[ReceiveRequest] = deque()
        while self._block_count == block_count and not self._is_paused:
            await deferral.wait_confirmed()
            while len(requests) < MAX_RECEIVE_REQUESTS and deferral.has_before(self._first_number_behind):
                requests.append(deferral.request(before=self._first_number_behind))
            if requests:
                await self._send_recovered_batch(await deferral.messages_of(requests.popleft()), block_count)
            elif not self._send_waiting_behind():
                break
        for request in requests:  # the entity has not accepted earlier messages, so these messages wait, too
            for message in await deferral.messages_of(request) or ():
                self._postpone_message(message)
        await self._wait_until_idle()
        return self._block_count == block_count

    @property
    def _first_number_behind(self) -> int | None:
        """The sequence number of the first message that waits behind the deferred messages."""
        return self._waiting_behind[0].sequence_number if self._waiting_behind else None

    def _send_waiting_behind(self) -> bool:
        """Send messages that wait behind deferred messages, up to the next deferred one; return False if none waits."""
        if not self._waiting_behind:
            self._is_recovering = False  # new messages follow all recovered messages
            return False
        while self._waiting_behind and not self._deferral.has_before(self._first_number_behind):
            self._enqueue(self._waiting_behind.popleft())
        return True

    async def _send_recovered_batch(self, batch: list[ParkedMessage] | None, block_count: int) -> None:
        """Send received messages until the entity fails, and wait while too many messages have no outcome."""
        if batch is None:
            self._block()
            return
        for message in batch:
            if self._block_count == block_count:
                self._send_recovered(message)
            else:
                self._postpone_message(message)
        await self._wait_for_room(block_count)

    def _send_recovered(self, message: ParkedMessage) -> None:
        """Send a message that was received again, unless the entity has accepted it already."""
        if message.sequence_number in self._accepted_numbers:
            self._complete([message])
        else:
            self._enqueue(message)

    async def _wait_for_room(self, block_count: int) -> None:
        """Wait until at most `MAX_UNANSWERED` recovered messages have no outcome."""
        while self._block_count == block_count and self._unanswered_count > MAX_UNANSWERED:
            if not self._in_flight and (self._link is None or self._link.failure is not None):
                await self._attach()
                continue
            self._answer_received.clear()
            await self._answer_received.wait()

    @property
    def _unanswered_count(self) -> int:
        waiting = sum([len(session_queue) for session_queue in self._session_queues.values()])
        return len(self._ready) + waiting + sum([len(batch) for batch, _, _ in self._in_flight.values()])

    async def _wait_until_idle(self) -> None:
        """Wait until no message is in flight or ready."""
        while self._in_flight or (self._ready and not self._is_paused):
            if self._in_flight:
                self._idle.clear()
                await self._idle.wait()
            elif self._link is None or self._link.failure is not None:
                await self._attach()
            else:  # the ready messages are sent in the next turn, or when the lease is valid
                await asyncio.sleep(0.0 if self._source.has_exclusive_access() else EXCLUSIVE_CHECK_S)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run one task at a time, and start the next one if work remains."""
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
        """Complete messages that the entity has accepted."""
        self._forget_possibly_delivered(batch)
        deferred, future = complete_all(batch)
        if future is not None:
            future.add_done_callback(partial(self._on_completed, deferred))

    def _on_completed(self, batch: Sequence[ParkedMessage], future: asyncio.Future[None]) -> None:
        """Handle the completion of deferred messages.

        If the completion failed, the messages may still be deferred, and only this destination looks for them.
        """
        self._deferral.log_failure("completed", batch, future)
        numbers = [message.sequence_number for message in batch]
        if future.cancelled() or future.exception() is None or self._is_closed:
            self._accepted_numbers.difference_update(numbers)
            return
        self._accepted_numbers.update(numbers)
        for number in numbers:
            self._deferral.add(number)
        self._block()
