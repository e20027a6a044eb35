"""Sends to a partitioned entity.

Owns the choice of a fragment for each message, the split of a batch into portions, and the error for a batch that is
stored only in part.

A single message, a batch with one partition key and a batch without keys each go to one fragment. If this fragment
refuses messages without a key, the messages are sent to another fragment, so that an unavailable fragment does not
block them. If the first fragment may have stored the messages, they are marked as possible duplicates before they are
sent to the second fragment.

A batch with several keys is not atomic. Before the batch is stored, the capacity of all its fragments is checked,
including fragments in other processes (`send_order`). If a fragment fails after that, the error names the messages that
are stored.

If the fragment of a key is unavailable, the error names the fragment: sends with other keys may still work.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.field_numbers import MESSAGE_ID
from twinbus.amqp.message import Message, Section
from twinbus.broker.fragment.forwarding import partition_key_of
from twinbus.broker.intake.send_order import BatchCapacityCheck
from twinbus.broker.message_record import parse_record
from twinbus.broker.ports.callbacks import when_all
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.model.errors import (
    DiskFull,
    FragmentUnavailable,
    PartlyStored,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    StoreUnavailable,
)
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twinbus.broker.entities.part import EntityPart
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.ports.callbacks import OnDone


class Partitioner:
    """Chooses a fragment of one entity for each message."""

    def __init__(self, parts: Sequence[EntityPart], round_robin_start: int) -> None:
        """Create a partitioner; messages without a key go to the fragments in turn, from `round_robin_start` on."""
        self._parts = parts
        self._next_fragment = round_robin_start

    def choose(self, partition_key: bytes | None, excluded: Collection[int] = ()) -> int:
        """Return the number of the fragment for a message with this partition key.

        Without a key, return the next fragment that accepts sends and is not in `excluded`; if there is none, any
        fragment that is not in `excluded`.
        """
        if partition_key is not None:
            return fragment_of(partition_key)
        parts, count = self._parts, len(self._parts)
        self._next_fragment %= count
        for step in range(count):
            number = (self._next_fragment + step) % count
            if number not in excluded and parts[number].main.accepts_sends:
                break
        else:
            number = next((other for other in range(count) if other not in excluded), self._next_fragment)
        self._next_fragment = (number + 1) % count
        return number


_MAX_LISTED_IDS: Final = 100
"""Largest number of message ids in the error text of a batch that is stored only in part."""
_TRY_OTHER_FRAGMENT: Final = (StoreUnavailable, ServerBusy, QuotaExceeded)
"""Errors after which a message without a key is sent to another fragment."""
_FRAGMENT_ERRORS: Final[dict[type[ServiceBusError], type[ServiceBusError]]] = {
    StoreUnavailable: FragmentUnavailable,
    DiskFull: FragmentUnavailable,
    ServerBusy: ServerBusy,
    QuotaExceeded: QuotaExceeded,
}
"""Types of error that a sender with a key gets, by the type of the fragment's error."""


def send(target: Queue | Topic, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int]) -> None:
    """Store messages; fill in `sequence_numbers`, then call `on_done` when the messages are on disk."""
    target.check_send_enabled()
    keys = set(batch.partition_keys)
    if len(keys) > 1:
        _MultiKeyBatch(target, batch, on_done, sequence_numbers).send()
        return
    if not batch.records and len(set(batch.ping_partition_keys)) > 1:
        _ping_fragments(target, batch.ping_partition_keys, on_done)
        return
    key = next(iter(keys or batch.ping_partition_keys), None)
    if key is not None:
        _send_to_fragment(target, target.partitioner.choose(key), batch, on_done, sequence_numbers)
    else:
        _send_to_any_fragment(target, batch, on_done, sequence_numbers, set())


def _send_to_fragment(
    target: Queue | Topic, fragment_number: int, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int]
) -> None:
    """Send messages with one partition key to the fragment for this key."""

    def on_sent(error: ServiceBusError | None) -> None:
        on_done(error if error is None else fragment_error(target, fragment_number, error))

    # If a batch with messages for this fragment is being checked, a later message must not overtake the batch.
    if target.send_order.must_wait_for(fragment_number):
        size = sum([len(record) for record in batch.records])
        send_now = partial(_send_now, target.parts[fragment_number], batch, on_sent, sequence_numbers)
        target.send_order.enqueue_ready(fragment_number, size, send_now)
        return
    try:
        target.parts[fragment_number].send(batch, on_sent, sequence_numbers)
    except ServiceBusError as error:
        raise fragment_error(target, fragment_number, error) from None


def _send_now(part: EntityPart, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int]) -> None:
    try:
        part.send(batch, on_done, sequence_numbers)
    except ServiceBusError as error:  # the caller has returned, so the error goes to the callback
        on_done(error)


def fragment_error(target: Queue | Topic, fragment_number: int, error: ServiceBusError) -> ServiceBusError:
    """Return a fragment's error as reported to a sender whose partition key selects this fragment.

    If the result differs, it is a new object, because a store passes the same error object to all pending callers.
    """
    kind = _FRAGMENT_ERRORS.get(type(error))
    if kind is None or target.outage is not None:
        return error
    result = kind(f"fragment {fragment_number}: {error}")
    result.fragment = fragment_number
    result.may_have_happened = error.may_have_happened
    return result


def _send_to_any_fragment(
    target: Queue | Topic, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int], tried: set[int]
) -> None:
    """Send messages without a key to any fragment that stores them; if all refuse, report the last fragment's error."""
    while True:
        number = target.partitioner.choose(None, tried)
        tried.add(number)
        try:
            target.parts[number].send(
                batch, _or_try_other_fragment(target, batch, on_done, sequence_numbers, tried), sequence_numbers
            )
        except _TRY_OTHER_FRAGMENT:
            if len(tried) == len(target.parts):
                raise
        else:
            return


def _or_try_other_fragment(
    target: Queue | Topic, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int], tried: set[int]
) -> OnDone:
    """Return a callback that sends the messages to another fragment after a failure, or else calls `on_done`."""

    def on_sent(error: ServiceBusError | None) -> None:
        if not isinstance(error, _TRY_OTHER_FRAGMENT) or len(tried) == len(target.parts):
            on_done(error)
            return
        sequence_numbers.clear()
        next_on_done = on_done
        if error.may_have_happened:
            batch.mark_possible_duplicates()
            next_on_done = _mark_uncertain(on_done)
        try:
            _send_to_any_fragment(target, batch, next_on_done, sequence_numbers, tried)
        except ServiceBusError as refusal:  # the caller has returned, so the error goes to the callback
            next_on_done(refusal)

    return on_sent


def _mark_uncertain(on_done: OnDone) -> OnDone:
    """Return a callback that sets `may_have_happened` on errors: another fragment may have stored the messages."""

    def on_sent(error: ServiceBusError | None) -> None:
        on_done(error if error is None else error.copy_with(may_have_happened=True))

    return on_sent


def _ping_fragments(target: Queue | Topic, partition_keys: Sequence[bytes | None], on_done: OnDone) -> None:
    """Send a ping to each fragment to which the pings' partition keys map."""
    numbers = {target.partitioner.choose(key) for key in partition_keys}
    on_part_done = when_all(len(numbers), on_done)
    for number in numbers:
        try:
            target.parts[number].send(IncomingBatch(), on_part_done)
        except ServiceBusError as error:
            on_part_done(error)


def send_via(target: Queue, batch: IncomingBatch, destination: str, on_done: OnDone) -> None:
    """Store messages for forwarding to `destination`, in the fragments for their partition keys."""
    target.check_send_enabled()
    choose = target.partitioner.choose
    groups: dict[int, list[bytes]] = {}
    for number, record in zip([choose(key) for key in batch.partition_keys], batch.records, strict=True):
        groups.setdefault(number, []).append(record)
    on_part_done = when_all(len(groups), on_done)

    def store() -> None:
        for number, records in groups.items():
            try:
                target.parts[number].send_via(records, destination, on_part_done)
            except ServiceBusError as error:  # other fragments may have stored their messages
                on_part_done(error)

    sizes = {number: sum([len(record) for record in records]) for number, records in groups.items()}
    refusal = BatchCapacityCheck(target, sizes, store, lambda _number, error: on_done(error)).start()
    if refusal is not None:
        raise refusal[1]


class _MultiKeyBatch:
    """A batch with several partition keys, while it is stored in several fragments."""

    def __init__(
        self, target: Queue | Topic, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int]
    ) -> None:
        self._target = target
        self._batch = batch
        self._on_done = on_done
        self._sequence_numbers = sequence_numbers
        self._keyed_fragments: set[int] = set()
        """Fragments that the key of at least one message selects; other fragments get only messages without a key."""
        self._positions = self._divide()
        self._pending_fragments = set(self._positions)
        """Fragments that have not replied yet."""
        self._assigned_numbers: dict[int, list[int]] = {number: [] for number in self._positions}
        self._errors: dict[int, ServiceBusError] = {}
        self._portions: dict[int, IncomingBatch] = {}
        """Portion for each fragment."""

    def send(self) -> None:
        self._portions = {number: self._portion(positions) for number, positions in self._positions.items()}
        sizes = {number: sum([len(record) for record in portion.records]) for number, portion in self._portions.items()}
        refusal = BatchCapacityCheck(self._target, sizes, self._store, self._on_refused).start()
        if refusal is not None:
            raise self._refusal_error(*refusal)

    def _on_refused(self, fragment_number: int, error: ServiceBusError) -> None:
        """Report that a fragment cannot store its portion, so nothing is stored."""
        self._on_done(self._refusal_error(fragment_number, error))

    def _refusal_error(self, fragment_number: int, error: ServiceBusError) -> ServiceBusError:
        """Return the error for a batch of which no portion was sent to any fragment."""
        return self._sender_error(fragment_number, error.copy_with(may_have_happened=False))

    def _store(self) -> None:
        parts = self._target.parts
        for number, portion in self._portions.items():
            try:
                parts[number].send(portion, partial(self._on_part_done, number), self._assigned_numbers[number])
            except ServiceBusError as error:
                self._on_part_done(number, error.copy_with(may_have_happened=False))  # the send itself was refused

    def _divide(self) -> dict[int, list[int]]:
        """Return the positions of messages in the batch, by fragment number."""
        choose, keyless_fragment = self._target.partitioner.choose, -1
        positions: dict[int, list[int]] = {}
        batch = self._batch
        for position, key in enumerate(batch.partition_keys if batch.records else batch.ping_partition_keys):
            if key is None and keyless_fragment < 0:
                keyless_fragment = choose(None)  # messages without a key stay together
            number = choose(key) if key is not None else keyless_fragment
            if key is not None:
                self._keyed_fragments.add(number)
            positions.setdefault(number, []).append(position)
        return positions

    def _portion(self, positions: list[int]) -> IncomingBatch:
        portion, batch = IncomingBatch(), self._batch
        if not batch.records:  # only pings: an empty batch asks the fragment whether it is available
            return portion
        portion.records = [batch.records[position] for position in positions]
        portion.duplicate_ids = [batch.duplicate_ids[position] for position in positions] if batch.duplicate_ids else []
        return portion

    def _on_part_done(self, fragment_number: int, error: ServiceBusError | None) -> None:
        self._pending_fragments.discard(fragment_number)
        if error is not None:
            self._errors[fragment_number] = self._sender_error(fragment_number, error)
        if not self._pending_fragments:
            self._finish()

    def _sender_error(self, fragment_number: int, error: ServiceBusError) -> ServiceBusError:
        return (
            fragment_error(self._target, fragment_number, error) if fragment_number in self._keyed_fragments else error
        )

    def _finish(self) -> None:
        if not self._errors and not self._batch.records:
            self._on_done(None)
            return
        if not self._errors:
            number_at = {
                position: number
                for part, positions in self._positions.items()
                for position, number in zip(positions, self._assigned_numbers[part], strict=True)
            }
            self._sequence_numbers.extend(number_at[position] for position in range(len(self._batch.records)))
            self._on_done(None)
            return
        stored = [number for number in self._positions if number not in self._errors]
        reason = self._main_error()
        if not stored or not self._batch.records:
            is_unsure = any(error.may_have_happened for error in self._errors.values())
            self._on_done(reason.copy_with(may_have_happened=True) if is_unsure else reason)
            return
        positions = [position for number in stored for position in self._positions[number]]
        ids = [_message_id_of(self._batch.records[position]) for position in positions]
        more = f" and {len(ids) - _MAX_LISTED_IDS} more" if len(ids) > _MAX_LISTED_IDS else ""
        reason_text = str(reason).rstrip(".")
        result = PartlyStored(
            f"some messages of the batch are stored and others are not, because {reason_text}. The messages with these "
            f"ids are stored: {', '.join(ids[:_MAX_LISTED_IDS])}{more}. If the whole batch is sent again, they are "
            "stored twice, unless the entity detects duplicates."
        )
        result.stored, result.unsure = sorted(positions), self._uncertain_positions()
        if isinstance(reason, FragmentUnavailable):  # the fragment that is down, not a fragment that is full
            result.fragment = reason.fragment
        self._on_done(result)

    def _main_error(self) -> ServiceBusError:
        """Return the error of an unavailable fragment, or else the first error."""
        errors = list(self._errors.values())
        return next((error for error in errors if isinstance(error, FragmentUnavailable)), errors[0])

    def _uncertain_positions(self) -> list[int]:
        """Return the positions of messages that may be stored although their fragment reported an error."""
        unsure = [number for number, error in self._errors.items() if error.may_have_happened]
        return sorted([position for number in unsure for position in self._positions[number]])


def _message_id_of(record: bytes) -> str:
    return str(Message(parse_record(record).bare_message).field(Section.PROPERTIES, MESSAGE_ID))


def accept_forwarded(
    target: Queue | Topic, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
) -> None:
    """Store those forwarded messages that are not stored yet; call `on_done` when all messages are on disk."""
    if not target.is_partitioned:
        target.parts[0].accept_forwarded(source_prefix, numbered_records, on_done)
        return
    groups: dict[int, list[tuple[int, bytes]]] = {}
    for number, record in numbered_records:
        key = partition_key_of(record, detects_duplicates=target.validation_policy.detects_duplicates)
        groups.setdefault(fragment_of(key) if key is not None else number % len(target.parts), []).append(
            (number, record)
        )
    # After an error the source offers all messages again; fragments skip those that they have stored already.
    on_part_done = when_all(len(groups), on_done)
    for part, group in groups.items():
        try:
            target.parts[part].accept_forwarded(source_prefix, group, on_part_done)
        except ServiceBusError as error:
            on_part_done(error)
