"""Sending to a partitioned entity: what comes in together may go to several parts.

Owns: how a parcel is split, and what is told where a part of it could not be stored. Where one message, or a batch of
one key, or one without keys, is sent, all of it goes to one part; one without a key to another where the first does not
take it, so that what is down takes nobody with it. If the first part may have stored the message, the second one gets
it marked as a possible duplicate.

A batch of several keys is not one batch of a store. All of its parts are checked first, also those of other processes
(`checking`); if one fails after that, the response names the messages that are stored.

Whoever sends with a key, and cannot because of the one part that it leads to, is told which: other keys may work.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.field_numbers import MESSAGE_ID
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
    """The choice among the parts of one entity."""

    def __init__(self, parts: Sequence[EntityPart], first_fragment: int) -> None:
        """The first message without a key goes to part `start`, if that takes messages."""
        self._parts = parts
        self._next_fragment = first_fragment

    def choose(self, partition_key: bytes | None, excluded: Collection[int] = ()) -> int:
        """The number of the part for a message of that key. Without a key none of `but`, if there is another."""
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
"""Messages that are named where a batch was stored in part."""
_TRY_OTHER_FRAGMENT: Final = (StoreUnavailable, ServerBusy, QuotaExceeded)
"""Why a message without a key is sent to another part."""
_FRAGMENT_ERRORS: Final[dict[type[ServiceBusError], type[ServiceBusError]]] = {
    StoreUnavailable: FragmentUnavailable,
    DiskFull: FragmentUnavailable,
    ServerBusy: ServerBusy,
    QuotaExceeded: QuotaExceeded,
}
"""What a part's refusal is to a sender whose key leads there."""


def send(target: Queue | Topic, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int]) -> None:
    """Store messages; `answer` hears when they are on disk, and by then `numbers` has their sequence numbers."""
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
    """To the part that a key leads to, and to no other."""

    def told(error: ServiceBusError | None) -> None:
        on_done(error if error is None else fragment_error(target, fragment_number, error))

    if target.send_order.must_wait_for(
        fragment_number
    ):  # behind a batch with a message of that fragment, which is being checked
        size = sum([len(record) for record in batch.records])
        send_now = partial(_send_now, target.parts[fragment_number], batch, told, sequence_numbers)
        target.send_order.enqueue_ready(fragment_number, size, send_now)
        return
    try:
        target.parts[fragment_number].send(batch, told, sequence_numbers)
    except ServiceBusError as error:
        raise fragment_error(target, fragment_number, error) from None


def _send_now(part: EntityPart, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int]) -> None:
    try:
        part.send(batch, on_done, sequence_numbers)
    except ServiceBusError as error:  # the sender waits for the answer by now
        on_done(error)


def fragment_error(target: Queue | Topic, fragment_number: int, error: ServiceBusError) -> ServiceBusError:
    """What a part did not take a message for, as it is told to a sender whose key leads there.

    It is another object: a store tells all who wait for it the same.
    """
    kind = _FRAGMENT_ERRORS.get(type(error))
    if kind is None or target.outage is not None:
        return error
    told = kind(f"fragment {fragment_number}: {error}")
    told.fragment = fragment_number
    told.may_have_happened = error.may_have_happened
    return told


def _send_to_any_fragment(
    target: Queue | Topic, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int], tried: set[int]
) -> None:
    """To a part that takes it; to the next where one does not, until all have been asked: then what the last said."""
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
    """What hears whether a part has stored a message without a key: if not, it is sent to another."""

    def told(error: ServiceBusError | None) -> None:
        if not isinstance(error, _TRY_OTHER_FRAGMENT) or len(tried) == len(target.parts):
            on_done(error)
            return
        sequence_numbers.clear()
        onward = on_done
        if error.may_have_happened:
            batch.mark_possible_duplicates()
            onward = _mark_uncertain(on_done)
        try:
            _send_to_any_fragment(target, batch, onward, sequence_numbers, tried)
        except ServiceBusError as refusal:  # whoever sent it waits for the answer by now
            onward(refusal)

    return told


def _mark_uncertain(on_done: OnDone) -> OnDone:
    """What hears of a message that a part may have stored all the same: no error says that it certainly is not."""

    def told(error: ServiceBusError | None) -> None:
        on_done(error if error is None else error.copy_with(may_have_happened=True))

    return told


def _ping_fragments(target: Queue | Topic, partition_keys: Sequence[bytes | None], on_done: OnDone) -> None:
    """Ask all parts that several pings lead to."""
    numbers = {target.partitioner.choose(key) for key in partition_keys}
    told = when_all(len(numbers), on_done)
    for number in numbers:
        try:
            target.parts[number].send(IncomingBatch(), told)
        except ServiceBusError as error:
            told(error)


def send_via(target: Queue, batch: IncomingBatch, destination: str, on_done: OnDone) -> None:
    """Store messages that go on to another entity, in the parts that their keys lead to."""
    target.check_send_enabled()
    choose = target.partitioner.choose
    groups: dict[int, list[bytes]] = {}
    for number, record in zip([choose(key) for key in batch.partition_keys], batch.records, strict=True):
        groups.setdefault(number, []).append(record)
    told = when_all(len(groups), on_done)

    def store() -> None:
        for number, records in groups.items():
            try:
                target.parts[number].send_via(records, destination, told)
            except ServiceBusError as error:  # others may have theirs: all are answered together
                told(error)

    sizes = {number: sum([len(record) for record in records]) for number, records in groups.items()}
    refusal = BatchCapacityCheck(target, sizes, store, lambda _number, error: on_done(error)).start()
    if refusal is not None:
        raise refusal[1]


class _MultiKeyBatch:
    """Messages of several keys that were sent together."""

    def __init__(
        self, target: Queue | Topic, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int]
    ) -> None:
        self._target = target
        self._batch = batch
        self._on_done = on_done
        self._sequence_numbers = sequence_numbers
        self._keyed_fragments: set[int] = set()
        """Parts that a key leads to."""
        self._positions = self._divide()
        self._pending_fragments = set(self._positions)
        """Parts that have not answered."""
        self._assigned_numbers: dict[int, list[int]] = {number: [] for number in self._positions}
        self._errors: dict[int, ServiceBusError] = {}
        self._portions: dict[int, IncomingBatch] = {}
        """Each part's portion."""

    def send(self) -> None:
        self._portions = {number: self._portion(places) for number, places in self._positions.items()}
        sizes = {number: sum([len(record) for record in parcel.records]) for number, parcel in self._portions.items()}
        refusal = BatchCapacityCheck(self._target, sizes, self._store, self._on_refused).start()
        if refusal is not None:
            raise self._refusal_error(*refusal)

    def _on_refused(self, fragment_number: int, error: ServiceBusError) -> None:
        """A part cannot store its portion: nothing is stored."""
        self._on_done(self._refusal_error(fragment_number, error))

    def _refusal_error(self, fragment_number: int, error: ServiceBusError) -> ServiceBusError:
        """Return the error of a batch of which nothing was handed to a part."""
        return self._sender_error(fragment_number, error.copy_with(may_have_happened=False))

    def _store(self) -> None:
        parts = self._target.parts
        for number, parcel in self._portions.items():
            try:
                parts[number].send(parcel, partial(self._on_part_done, number), self._assigned_numbers[number])
            except ServiceBusError as error:
                self._on_part_done(number, error.copy_with(may_have_happened=False))  # it was handed nothing

    def _divide(self) -> dict[int, list[int]]:
        """The places of messages in the parcel, by the numbers of their parts."""
        choose, keyless = self._target.partitioner.choose, -1
        places: dict[int, list[int]] = {}
        parcel = self._batch
        for place, key in enumerate(parcel.partition_keys if parcel.records else parcel.ping_partition_keys):
            if key is None and keyless < 0:
                keyless = choose(None)  # those without a key stay together
            number = choose(key) if key is not None else keyless
            if key is not None:
                self._keyed_fragments.add(number)
            places.setdefault(number, []).append(place)
        return places

    def _portion(self, positions: list[int]) -> IncomingBatch:
        portion, parcel = IncomingBatch(), self._batch
        if not parcel.records:  # nothing but pings: each part of them is asked whether it is there
            return portion
        portion.records = [parcel.records[place] for place in positions]
        portion.duplicate_ids = [parcel.duplicate_ids[place] for place in positions] if parcel.duplicate_ids else []
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
            by_place = {
                place: number
                for part, places in self._positions.items()
                for place, number in zip(places, self._assigned_numbers[part], strict=True)
            }
            self._sequence_numbers.extend(by_place[place] for place in range(len(self._batch.records)))
            self._on_done(None)
            return
        stored = [number for number in self._positions if number not in self._errors]
        reason = self._main_error()
        if not stored or not self._batch.records:
            is_unsure = any(error.may_have_happened for error in self._errors.values())
            self._on_done(reason.copy_with(may_have_happened=True) if is_unsure else reason)
            return
        places = [place for number in stored for place in self._positions[number]]
        ids = [_message_id_of(self._batch.records[place]) for place in places]
        more = f" and {len(ids) - _MAX_LISTED_IDS} more" if len(ids) > _MAX_LISTED_IDS else ""
        why = str(reason).rstrip(".")
        told = PartlyStored(
            f"some messages of the batch are stored, and others are not, because {why}. Stored are those with the ids "
            f"{', '.join(ids[:_MAX_LISTED_IDS])}{more}. To send the batch again doubles these, unless the "
            "entity detects "
            "duplicates."
        )
        told.stored, told.unsure = sorted(places), self._uncertain_positions()
        if isinstance(reason, FragmentUnavailable):  # the fragment that is down, not one that is full or busy
            told.fragment = reason.fragment
        self._on_done(told)

    def _main_error(self) -> ServiceBusError:
        """Return the error of a fragment that is down, if there is one; the first error otherwise."""
        errors = list(self._errors.values())
        return next((error for error in errors if isinstance(error, FragmentUnavailable)), errors[0])

    def _uncertain_positions(self) -> list[int]:
        """Return the places of messages that may be stored although their part answered with an error."""
        unsure = [number for number, error in self._errors.items() if error.may_have_happened]
        return sorted([place for number in unsure for place in self._positions[number]])


def _message_id_of(record: bytes) -> str:
    return str(Message(parse_record(record).bare_message).field(Section.PROPERTIES, MESSAGE_ID))


def accept_forwarded(
    target: Queue | Topic, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
) -> None:
    """Store those messages of a source that were not seen before; `answer` is called when all are on disk."""
    if not target.is_partitioned:
        target.parts[0].accept_forwarded(source_prefix, numbered_records, on_done)
        return
    groups: dict[int, list[tuple[int, bytes]]] = {}
    for number, record in numbered_records:
        key = partition_key_of(record, detects_duplicates=target.validation_policy.detects_duplicates)
        groups.setdefault(fragment_of(key) if key is not None else number % len(target.parts), []).append(
            (number, record)
        )
    told = when_all(len(groups), on_done)  # if one failed all are offered again; the others have seen theirs
    for part, group in groups.items():
        try:
            target.parts[part].accept_forwarded(source_prefix, group, told)
        except ServiceBusError as error:
            told(error)
