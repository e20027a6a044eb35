"""Forwarding: messages that go on by themselves to another entity, exactly once.

A *transfer* is made in three steps, of which each is one batch of one store, and may be the last before a crash:

    source       has the message, under its sequence number n
    destination  writes the message, and "seen n from this source", together
    source       deletes the message

A message is taken from its source in order, so that one number says how far the destination has seen. What is offered
again after a crash is known by that number, and not written twice.

Owns: the way from one fragment to its destination, and what becomes of messages that cannot go there: they are moved to
the transfer dead-letter queue of the source. What is unavailable, or too busy, is tried again.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.field_numbers import MESSAGE_ID
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
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.locks import Lock
    from twinbus.broker.ports.consumer import Delivery

    FindDestination = Callable[[str], Queue | Topic]
    OnForwarded = Callable[[int], None]
    from twinbus.broker.entities.part import LocalPart
    from twinbus.broker.ports.callbacks import OnDone

_NUMBER: Final = Struct(">Q")


class ForwardingInbox:
    """What comes to one fragment from others."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._key_prefix = fragment.message_table.key_prefix + store_keys.FORWARDED_UP_TO
        self._last_numbers: dict[bytes, int] = {}
        """The last number of each source that was written, synced or not."""

    def reset(self) -> None:
        """What is in memory is void."""
        self._last_numbers.clear()

    def accept(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], destination: LocalPart, on_done: OnDone
    ) -> None:
        """Store those messages of a source that were not seen before; `answer` hears when they are on disk.

        `items` are numbers that grow, with records as they are to be stored. Raises what a send to it would.
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
        life = fragment.incarnation
        promise = fragment.commit_log.watch_read(on_done)

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != fragment.incarnation or isinstance(values, StoreError):
                promise.finish(StoreUnavailable("the store failed before the messages were stored"))
                return
            value = values[0]
            self._last_numbers.setdefault(source_prefix, _NUMBER.unpack(value)[0] if value is not None else 0)
            if promise.is_pending:
                promise.is_pending = (
                    False  # the store has spoken: if it takes longer now, that is not the store's fault
                )
                try:
                    fragment.run_in_order(store, on_done, size)
                except ServiceBusError as error:
                    on_done(error)

        fragment.commit_log.get([self._key_prefix + source_prefix], read, Table.INDEX)

    def _store(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], destination: LocalPart, on_done: OnDone
    ) -> None:
        seen = self._last_numbers[source_prefix]
        fresh = [(number, record) for number, record in numbered_records if number > seen]
        if not fresh:
            self._fragment.commit_log.add_without_participant(
                on_done
            )  # what was written of them is synced by then, or never
            return
        parcel = IncomingBatch()
        parcel.records = [record for _, record in fresh]
        terms = destination.validation_policy
        if terms.detects_duplicates and not store_keys.is_forwarded_to_itself(
            source_prefix, self._fragment.message_table.key_prefix
        ):
            is_keyed = terms.is_partitioned
            parcel.duplicate_ids = [_identity_of(record, is_partitioned=is_keyed) for record in parcel.records]
        last = fresh[-1][0]

        def note() -> None:
            self._fragment.commit_log.batch.put(self._key_prefix + source_prefix, _NUMBER.pack(last), Table.INDEX)
            self._last_numbers[source_prefix] = last

        destination.send(parcel, on_done, on_batched=note)


def partition_key_of(record: bytes, *, detects_duplicates: bool) -> bytes | None:
    """What says to which fragment of a partitioned entity a stored message goes. InvalidOperation."""
    parts = parse_record(record)
    session = session_id_in(parts.bare_message)
    key = next((value for name, value, _ in annotation_pairs_of(parts) if name == PARTITION_KEY), None)
    message_id = Message(parts.bare_message).field(Section.PROPERTIES, MESSAGE_ID) if detects_duplicates else None
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
"""How often it is looked whether others still have messages, where forwarding begins."""
DEAD_LETTER_REASONS: Final = {
    EntityNotFound: "The destination does not exist.",
    EntityDisabled: "The destination is disabled.",
    QuotaExceeded: "The destination is full.",
}
"""Of being moved to the transfer dead-letter queue."""


class TooManyHops(CallerError):
    """A message goes round in a circle, or through too many entities."""


class Forwarder:
    """Takes all messages of one fragment to another entity, some at a time. To the fragment it is a consumer."""

    def __init__(
        self,
        fragment: Fragment,
        target: str | None,
        find_destination: FindDestination,
        transfer_dead_letters: Fragment,
        on_forwarded: OnForwarded,
        dead_letter_source: str | None = None,
    ) -> None:
        """`target` is a path; None if each message says its own. `failed` is for messages that cannot go there.

        `forwarded` hears how many have arrived. `dead_source` is the path of the entity whose dead letters these are,
        if they are.
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
        """What it has, in order."""
        self._batch_size = MAX_BATCH_SIZE
        """How many of them it tries at a time: less, where one of them is refused, to find out which."""
        self._is_busy = False
        """Some of it is offered to the destination, or being removed: nothing else is done meanwhile."""
        self._attempts = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Take what there is."""
        self._fragment.dispatcher.add(self)
        self._wait_for_locks()

    def _wait_for_locks(self) -> None:
        """What others still have may come back, and would be taken for seen if a later message had gone before it."""
        self._timer = None
        if self._fragment.in_flight.locks:
            when_s = self._fragment.clock.monotonic_s() + LOCK_POLL_S
            self._timer = self._fragment.timers.call_at(when_s, self._wait_for_locks)
        else:
            self._fragment.dispatcher.dispatch_to(self)

    # --- as a consumer ------------------------------------------------------------------------------------------------

    @property
    def available_credit(self) -> int:
        """It takes the next ones when the last are gone."""
        return 0 if self._in_flight or self._is_busy or self.is_closed else MAX_BATCH_SIZE

    def forward(self, messages: list[tuple[Lock, bytes]]) -> None:
        """Messages to be forwarded, which nobody else has."""
        self._in_flight.extend(messages)
        self._forward_next()

    def reserve_credit(self, count: int) -> None:
        """It never has messages deleted before it gets them."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """It gets messages as they are stored (`take`)."""
        raise AssertionError(deliveries)

    def request_messages(self) -> None:
        """It reserves no room that it could have back."""

    def force_detach(self, error: ServiceBusError) -> None:  # noqa: ARG002
        """The entity was deleted or disabled: what was not forwarded stays."""
        self.stop()

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """It has none."""

    def on_store_failed(self) -> None:
        """What it has is void: the source's store failed. It takes what there is when that is there again."""
        self._in_flight.clear()
        self._is_busy = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fragment.dispatcher.dispatch_to(self)

    def stop(self) -> None:
        """Nothing more is forwarded but what is on its way."""
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
        some: list[tuple[Lock, bytes]] = []
        for held in self._in_flight:
            if len(some) == self._batch_size or self._target_of(held[1]) != target:
                break
            some.append(held)
        self._is_busy, life = True, self._fragment.incarnation

        def answered(error: ServiceBusError | None) -> None:
            if life == self._fragment.incarnation:
                self._on_done(some, error)

        try:
            destination = self._find_destination(target)
            destination.check_send_enabled()
            items = [(lock.sequence, self._prepare(lock, record, destination)) for lock, record in some]
            destination.accept_forwarded(self._fragment.message_table.key_prefix, items, answered)
        except ServiceBusError as error:
            self._on_done(some, error)

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
        life = self._fragment.incarnation

        def removed(_error: ServiceBusError | None) -> None:
            if life == self._fragment.incarnation:  # also where the disk was silent for long: it will be done
                self._forward_next()

        self._fragment.remove(locks, removed)

    def _dead_letter(self, lock: Lock, record: bytes, error: ServiceBusError) -> None:
        """Move a message to those that could not be forwarded."""
        reason = next(
            (text for kind, text in DEAD_LETTER_REASONS.items() if isinstance(error, kind)), type(error).__name__
        )
        if isinstance(error, TooManyHops):
            reason = "MaxTransferHopCountExceeded"
        parts = parse_record(change_record(record, properties=dead_letter_properties(reason, str(error))))
        parts = without_annotations(parts, (DESTINATION_ANNOTATION,))
        self._transfer_dead_letters.store_moved(
            make_record(parts._replace(due_ms=0, session_id=None, shared_body=0, state=ACTIVE_STATE))
        )
        self._delete_forwarded([lock])

    def _return_all(self) -> None:
        held, self._in_flight = list(self._in_flight), deque()
        for lock, record in held:
            self._fragment.locks.by_number.pop(lock.number, None)
            self._fragment.requeue(lock, record)
        self._fragment.dispatcher.dispatch()

    def _prepare(self, lock: Lock, record: bytes, destination: Queue | Topic) -> bytes:
        """A message as it arrives at its destination: as if it had just been sent there."""
        parts = with_original_sequence(parse_record(record), lock.sequence)
        hops = hop_count_of(parts.header)
        if hops >= MAX_HOPS:
            raise TooManyHops(f"the message was forwarded {hops} times already, which is the limit")
        terms, envelope, session = destination.validation_policy, with_hop_count(parts.header, hops + 1), None
        if terms.requires_session:
            session = session_id_in(parts.bare_message)
            if session is None:
                raise NotAllowed(f"'{destination.path}' requires sessions, and the message names none")
        if terms.max_ttl_ms < FOREVER_MS:
            envelope = with_ttl(envelope, terms.max_ttl_ms)
        now_ms = self._fragment.clock.wall_ms()
        parts = without_annotations(parts, (DEADLETTER_SOURCE, DESTINATION_ANNOTATION))
        arrived = RecordFields(
            envelope,
            parts.bare_message,
            now_ms,
            expiry_time(envelope, now_ms),
            session_id=session,
            annotation_count=parts.annotation_count,
            annotations=parts.annotations,
            delivery_annotation_count=parts.delivery_annotation_count,
            delivery_annotations=parts.delivery_annotations,
        )
        if self._dead_letter_source is not None:
            return change_record(make_record(arrived), annotations={DEADLETTER_SOURCE: self._dead_letter_source})
        return make_record(arrived)


def with_destination(record: bytes, destination: str) -> bytes:
    """A message that is to go to another entity than the one it is sent to."""
    return change_record(record, annotations={DESTINATION_ANNOTATION: destination})


def destination_of(record: bytes) -> str:
    """Where it is to go."""
    return next(
        str(value) for key, value, _ in annotation_pairs_of(parse_record(record)) if key == DESTINATION_ANNOTATION
    )
