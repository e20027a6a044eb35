"""Forwarding: moving messages from a fragment to another entity, exactly once.

A *transfer* has three steps. Each step is one batch in one store, and a crash may follow any step:

    source       holds the message with sequence number n
    destination  writes the message and "n forwarded from this source" in one batch
    source       deletes the message

Messages leave the source in order, so the destination needs to store only one number per source. After a crash, the
source offers messages again, and the destination ignores messages up to the stored number.

Owns: both ends of a transfer. A message that the destination refuses is moved to the transfer dead-letter queue of the
source; if the destination is unavailable or busy, the forwarder tries again.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.field_numbers import MESSAGE_ID
from twinbus.amqp.message import Message, Section
from twinbus.broker import store_keys
from twinbus.broker.intake.message_intake import DESTINATION_ANNOTATION
from twinbus.broker.message_record import (
    ACTIVE_STATE,
    RecordFields,
    annotation_pairs_of,
    change_record,
    expiry_time,
    hop_count_of,
    make_record,
    parse_record,
    session_id_in,
    with_hop_count,
    with_original_sequence,
    with_ttl,
    without_annotations,
)
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.broker.ports.settlement import dead_letter_properties
from twinbus.model.annotations import DEADLETTER_SOURCE, PARTITION_KEY
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import (
    CallerError,
    EntityDisabled,
    EntityNotFound,
    NotAllowed,
    QuotaExceeded,
    ServiceBusError,
    StoreUnavailable,
)
from twinbus.model.partition_key import identity_of, partition_key
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Timer
    from twinbus.broker.entities.part import LocalPart
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.locks import Lock
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Delivery

    FindDestination = Callable[[str], Queue | Topic]
    OnForwarded = Callable[[int], None]

_NUMBER: Final = Struct(">Q")


class ForwardingInbox:
    """The receiving end of forwarding, for messages that other fragments forward to this fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Create the inbox for `fragment`."""
        self._fragment = fragment
        self._key_prefix = fragment.message_table.key_prefix + store_keys.FORWARDED_UP_TO
        self._last_numbers: dict[bytes, int] = {}
        """The last sequence number written from each source, on disk or not."""

    def reset(self) -> None:
        """Discard the state in memory."""
        self._last_numbers.clear()

    def accept(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], destination: LocalPart, on_done: OnDone
    ) -> None:
        """Store messages from a source that were not stored before; `on_done` is called when they are on disk.

        `numbered_records` are ascending sequence numbers in the source, with the records to store. Raises the same
        errors as a send.
        """
        fragment = self._fragment
        fragment.commit_log.check_accepts_sends()
        fragment.check_loaded()
        size = sum([len(record) for _, record in numbered_records])

        def store() -> None:
            self._store(source_prefix, numbered_records, destination, on_done)

        if source_prefix in self._last_numbers:
            fragment.run_in_order(store, on_done, size)
            return
        incarnation = fragment.incarnation
        watched_read = fragment.commit_log.watch_read(on_done)

        def on_read(values: list[bytes | None] | StoreError) -> None:
            if incarnation != fragment.incarnation or isinstance(values, StoreError):
                watched_read.finish(StoreUnavailable("the store failed before the messages were stored"))
                return
            value = values[0]
            self._last_numbers.setdefault(source_prefix, _NUMBER.unpack(value)[0] if value is not None else 0)
            if watched_read.is_pending:
                watched_read.is_pending = False  # the store has responded: later delays are not a store timeout
                try:
                    fragment.run_in_order(store, on_done, size)
                except ServiceBusError as error:
                    on_done(error)

        fragment.commit_log.get([self._key_prefix + source_prefix], on_read, Table.INDEX)

    def _store(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], destination: LocalPart, on_done: OnDone
    ) -> None:
        last_stored = self._last_numbers[source_prefix]
        new_records = [(number, record) for number, record in numbered_records if number > last_stored]
        if not new_records:
            # Call `on_done` when earlier writes of these messages are on disk.
            self._fragment.commit_log.add_without_participant(on_done)
            return
        batch = IncomingBatch()
        batch.records = [record for _, record in new_records]
        policy = destination.validation_policy
        if policy.detects_duplicates and not store_keys.is_forwarded_to_itself(
            source_prefix, self._fragment.message_table.key_prefix
        ):
            is_partitioned = policy.is_partitioned
            batch.duplicate_ids = [_identity_of(record, is_partitioned=is_partitioned) for record in batch.records]
        last_number = new_records[-1][0]

        def put_last_number() -> None:
            self._fragment.commit_log.batch.put(
                self._key_prefix + source_prefix, _NUMBER.pack(last_number), Table.INDEX
            )
            self._last_numbers[source_prefix] = last_number

        destination.send(batch, on_done, on_batched=put_last_number)


def partition_key_of(record: bytes, *, detects_duplicates: bool) -> bytes | None:
    """Return the key that selects the fragment of a partitioned entity for a record. Raises InvalidOperation."""
    fields = parse_record(record)
    session = session_id_in(fields.bare_message)
    key = next((value for name, value, _ in annotation_pairs_of(fields) if name == PARTITION_KEY), None)
    message_id = Message(fields.bare_message).field(Section.PROPERTIES, MESSAGE_ID) if detects_duplicates else None
    return partition_key(
        session.decode() if session is not None else None, str(key) if isinstance(key, str) else None, message_id
    )


def _identity_of(record: bytes, *, is_partitioned: bool) -> bytes:
    message_id = Message(parse_record(record).bare_message).field(Section.PROPERTIES, MESSAGE_ID)
    return identity_of(message_id, partition_key_of(record, detects_duplicates=True) if is_partitioned else None)


MAX_BATCH_SIZE: Final = 200
MAX_HOPS: Final = 4
RETRY_DELAYS_S: Final = (0.05, 0.2, 1.0, 5.0)
LOCK_POLL_S: Final = 0.2
"""The interval between checks for messages that receivers still hold when forwarding begins."""
DEAD_LETTER_REASONS: Final = {
    EntityNotFound: "The destination does not exist.",
    EntityDisabled: "The destination is disabled.",
    QuotaExceeded: "The destination is full.",
}
"""The dead-letter reasons for messages that cannot be forwarded."""


class TooManyHops(CallerError):
    """Raised for a message that was forwarded too often, perhaps in a loop."""


class Forwarder:
    """The consumer that moves all messages from a fragment to another entity, in batches."""

    def __init__(
        self,
        fragment: Fragment,
        target: str | None,
        find_destination: FindDestination,
        transfer_dead_letters: Fragment,
        on_forwarded: OnForwarded,
        dead_letter_source: str | None = None,
    ) -> None:
        """Create a forwarder to the path `target`.

        If `target` is None, each message goes to the path in its destination annotation. `transfer_dead_letters` gets
        messages that cannot be forwarded. `on_forwarded` is called with the number of messages that arrived.
        `dead_letter_source` is the path of the entity if its dead letters are forwarded.
        """
        self._on_forwarded = on_forwarded
        self.receive_and_delete = False
        self.is_closed = False
        self.target = target
        self._fragment = fragment
        self._find_destination = find_destination
        self._transfer_dead_letters = transfer_dead_letters
        self._dead_letter_source = dead_letter_source
        self._in_flight: deque[tuple[Lock, bytes]] = deque()
        """Messages taken from the fragment and not forwarded yet, in order."""
        self._batch_size = MAX_BATCH_SIZE
        """The number of messages to forward at once: halved after a refusal, to isolate the refused message."""
        self._is_busy = False
        """Whether messages are being offered to the destination or deleted from the source."""
        self._attempts = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to forward messages."""
        self._fragment.dispatcher.add(self)
        self._wait_for_locks()

    def _wait_for_locks(self) -> None:
        """Wait until no receiver holds a message.

        If a message were requeued after a later message was forwarded, the destination would ignore the requeued one.
        """
        self._timer = None
        if self._fragment.in_flight.locks:
            when_s = self._fragment.clock.monotonic_s() + LOCK_POLL_S
            self._timer = self._fragment.timers.call_at(when_s, self._wait_for_locks)
        else:
            self._fragment.dispatcher.dispatch_to(self)

    # --- as a consumer ------------------------------------------------------------------------------------------------

    @property
    def available_credit(self) -> int:
        """The maximum batch size, or 0 while messages are in flight."""
        return 0 if self._in_flight or self._is_busy or self.is_closed else MAX_BATCH_SIZE

    def forward(self, messages: list[tuple[Lock, bytes]]) -> None:
        """Forward messages that are locked for this forwarder."""
        self._in_flight.extend(messages)
        self._forward_next()

    def reserve_credit(self, count: int) -> None:
        """Do nothing: a forwarder does not use receive-and-delete."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Raise AssertionError: a forwarder gets stored records through `forward`."""
        raise AssertionError(deliveries)

    def request_messages(self) -> None:
        """Do nothing: a forwarder reserves no credit."""

    def force_detach(self, error: ServiceBusError) -> None:  # noqa: ARG002
        """Stop forwarding, because the entity was deleted or disabled. Remaining messages stay in the fragment."""
        self.stop()

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """Do nothing: a forwarder has no session."""

    def on_store_failed(self) -> None:
        """Drop messages in flight, because the source's store failed; continue when the store is available."""
        self._in_flight.clear()
        self._is_busy = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fragment.dispatcher.dispatch_to(self)

    def stop(self) -> None:
        """Stop forwarding after the batch that is being offered."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._return_all()
        self._fragment.dispatcher.remove(self)

    # --- forwarding ---------------------------------------------------------------------------------------------------

    def _forward_next(self) -> None:
        self._timer, self._is_busy = None, False
        if not self._in_flight:
            if not self.is_closed:
                self._fragment.dispatcher.dispatch_to(self)
            return
        if self.is_closed:
            self._return_all()
            return
        target = self._target_of(self._in_flight[0][1])
        batch: list[tuple[Lock, bytes]] = []
        for message in self._in_flight:
            if len(batch) == self._batch_size or self._target_of(message[1]) != target:
                break
            batch.append(message)
        self._is_busy, incarnation = True, self._fragment.incarnation

        def on_answer(error: ServiceBusError | None) -> None:
            if incarnation == self._fragment.incarnation:
                self._on_done(batch, error)

        try:
            destination = self._find_destination(target)
            destination.check_send_enabled()
            items = [(lock.sequence, self._prepare(lock, record, destination)) for lock, record in batch]
            destination.accept_forwarded(self._fragment.message_table.key_prefix, items, on_answer)
        except ServiceBusError as error:
            self._on_done(batch, error)

    def _target_of(self, record: bytes) -> str:
        return self.target if self.target is not None else destination_of(record)

    def _on_done(self, messages: list[tuple[Lock, bytes]], error: ServiceBusError | None) -> None:
        if error is None:
            self._attempts, self._batch_size = 0, min(2 * self._batch_size, MAX_BATCH_SIZE)
            self._on_forwarded(len(messages))
            self._drop_first(len(messages))
            self._delete_forwarded([lock for lock, _ in messages])
        elif error.is_retriable:
            wait_s = RETRY_DELAYS_S[min(self._attempts, len(RETRY_DELAYS_S) - 1)]
            self._attempts += 1
            when_s = self._fragment.clock.monotonic_s() + wait_s
            self._timer = self._fragment.timers.call_at(when_s, self._forward_next)
        elif len(messages) > 1:
            self._batch_size = len(messages) // 2
            self._forward_next()
        else:
            self._drop_first(1)
            self._dead_letter(*messages[0], error)

    def _drop_first(self, count: int) -> None:
        for _ in range(count):
            self._in_flight.popleft()

    def _delete_forwarded(self, locks: list[Lock]) -> None:
        for lock in locks:
            self._fragment.locks.by_number.pop(lock.number, None)
        incarnation = self._fragment.incarnation

        def on_removed(_error: ServiceBusError | None) -> None:
            if incarnation == self._fragment.incarnation:  # continue even after a timeout: the deletion will be applied
                self._forward_next()

        self._fragment.remove(locks, on_removed)

    def _dead_letter(self, lock: Lock, record: bytes, error: ServiceBusError) -> None:
        """Move a message to the transfer dead-letter queue."""
        reason = next(
            (text for kind, text in DEAD_LETTER_REASONS.items() if isinstance(error, kind)), type(error).__name__
        )
        if isinstance(error, TooManyHops):
            reason = "MaxTransferHopCountExceeded"
        fields = parse_record(change_record(record, properties=dead_letter_properties(reason, str(error))))
        fields = without_annotations(fields, (DESTINATION_ANNOTATION,))
        self._transfer_dead_letters.store_moved(
            make_record(fields._replace(due_ms=0, session_id=None, shared_body=0, state=ACTIVE_STATE))
        )
        self._delete_forwarded([lock])

    def _return_all(self) -> None:
        in_flight, self._in_flight = list(self._in_flight), deque()
        for lock, record in in_flight:
            self._fragment.locks.by_number.pop(lock.number, None)
            self._fragment.requeue(lock, record)
        self._fragment.dispatcher.dispatch()

    def _prepare(self, lock: Lock, record: bytes, destination: Queue | Topic) -> bytes:
        """Return the record for the destination, as if the message had just been sent there."""
        fields = with_original_sequence(parse_record(record), lock.sequence)
        hops = hop_count_of(fields.header)
        if hops >= MAX_HOPS:
            raise TooManyHops(f"the message was already forwarded {hops} times, which is the limit")
        policy, header, session = destination.validation_policy, with_hop_count(fields.header, hops + 1), None
        if policy.requires_session:
            session = session_id_in(fields.bare_message)
            if session is None:
                raise NotAllowed(f"'{destination.path}' requires sessions, and the message has no session id")
        if policy.max_ttl_ms < FOREVER_MS:
            header = with_ttl(header, policy.max_ttl_ms)
        now_ms = self._fragment.clock.wall_ms()
        fields = without_annotations(fields, (DEADLETTER_SOURCE, DESTINATION_ANNOTATION))
        new_fields = RecordFields(
            header,
            fields.bare_message,
            now_ms,
            expiry_time(header, now_ms),
            session_id=session,
            annotation_count=fields.annotation_count,
            annotations=fields.annotations,
            delivery_annotation_count=fields.delivery_annotation_count,
            delivery_annotations=fields.delivery_annotations,
        )
        if self._dead_letter_source is not None:
            return change_record(make_record(new_fields), annotations={DEADLETTER_SOURCE: self._dead_letter_source})
        return make_record(new_fields)


def with_destination(record: bytes, destination: str) -> bytes:
    """Return the record of a message sent via an entity to the entity `destination`."""
    return change_record(record, annotations={DESTINATION_ANNOTATION: destination})


def destination_of(record: bytes) -> str:
    """Return the path in the destination annotation of a record."""
    return next(
        str(value) for key, value, _ in annotation_pairs_of(parse_record(record)) if key == DESTINATION_ANNOTATION
    )
