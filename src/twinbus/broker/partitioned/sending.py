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

from twinbus.amqp.fields import MESSAGE_ID
from twinbus.amqp.message import Message, Section
from twinbus.broker.arrivals import key_of
from twinbus.broker.partitioned.checking import Checked
from twinbus.broker.ports.callbacks import all_of
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.record import take_apart
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

    from twinbus.broker.part import Part
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic


class Spread:
    """The choice among the parts of one entity."""

    def __init__(self, parts: Sequence[Part], start: int) -> None:
        """The first message without a key goes to part `start`, if that takes messages."""
        self._parts = parts
        self._next = start

    def choose(self, key: bytes | None, but: Collection[int] = ()) -> int:
        """The number of the part for a message of that key. Without a key none of `but`, if there is another."""
        if key is not None:
            return fragment_of(key)
        parts, count = self._parts, len(self._parts)
        self._next %= count
        for step in range(count):
            number = (self._next + step) % count
            if number not in but and parts[number].main.takes_sends:
                break
        else:
            number = next((other for other in range(count) if other not in but), self._next)
        self._next = (number + 1) % count
        return number


_NAMED: Final = 100
"""Messages that are named where a batch was stored in part."""
_ELSEWHERE: Final = (StoreUnavailable, ServerBusy, QuotaExceeded)
"""Why a message without a key is sent to another part."""
_OF_FRAGMENT: Final[dict[type[ServiceBusError], type[ServiceBusError]]] = {
    StoreUnavailable: FragmentUnavailable,
    DiskFull: FragmentUnavailable,
    ServerBusy: ServerBusy,
    QuotaExceeded: QuotaExceeded,
}
"""What a part's refusal is to a sender whose key leads there."""


def send(target: Queue | Topic, parcel: Parcel, answer: Answered, numbers: list[int]) -> None:
    """Store messages; `answer` hears when they are on disk, and by then `numbers` has their sequence numbers."""
    target.check_sends()
    keys = set(parcel.keys)
    if len(keys) > 1:
        _Mixed(target, parcel, answer, numbers).send()
        return
    if not parcel.records and len(set(parcel.ping_keys)) > 1:
        _ping_each(target, parcel.ping_keys, answer)
        return
    key = next(iter(keys or parcel.ping_keys), None)
    if key is not None:
        _send_to(target, target.spread.choose(key), parcel, answer, numbers)
    else:
        _send_anywhere(target, parcel, answer, numbers, set())


def _send_to(target: Queue | Topic, number: int, parcel: Parcel, answer: Answered, numbers: list[int]) -> None:
    """To the part that a key leads to, and to no other."""

    def told(error: ServiceBusError | None) -> None:
        answer(error if error is None else of_fragment(target, number, error))

    if target.order.holds_one(number):  # behind a batch with a message of that fragment, which is being checked
        size = sum([len(record) for record in parcel.records])
        send_now = partial(_send_now, target.parts[number], parcel, told, numbers)
        target.order.enter_one(number, size, send_now)
        return
    try:
        target.parts[number].send(parcel, told, numbers)
    except ServiceBusError as error:
        raise of_fragment(target, number, error) from None


def _send_now(part: Part, parcel: Parcel, answer: Answered, numbers: list[int]) -> None:
    try:
        part.send(parcel, answer, numbers)
    except ServiceBusError as error:  # the sender waits for the answer by now
        answer(error)


def of_fragment(target: Queue | Topic, number: int, error: ServiceBusError) -> ServiceBusError:
    """What a part did not take a message for, as it is told to a sender whose key leads there.

    It is another object: a store tells all who wait for it the same.
    """
    kind = _OF_FRAGMENT.get(type(error))
    if kind is None or target.outage is not None:
        return error
    told = kind(f"fragment {number}: {error}")
    told.fragment = number
    told.may_have_happened = error.may_have_happened
    return told


def _send_anywhere(
    target: Queue | Topic, parcel: Parcel, answer: Answered, numbers: list[int], tried: set[int]
) -> None:
    """To a part that takes it; to the next where one does not, until all have been asked: then what the last said."""
    while True:
        number = target.spread.choose(None, tried)
        tried.add(number)
        try:
            target.parts[number].send(parcel, _or_elsewhere(target, parcel, answer, numbers, tried), numbers)
        except _ELSEWHERE:
            if len(tried) == len(target.parts):
                raise
        else:
            return


def _or_elsewhere(
    target: Queue | Topic, parcel: Parcel, answer: Answered, numbers: list[int], tried: set[int]
) -> Answered:
    """What hears whether a part has stored a message without a key: if not, it is sent to another."""

    def told(error: ServiceBusError | None) -> None:
        if not isinstance(error, _ELSEWHERE) or len(tried) == len(target.parts):
            answer(error)
            return
        numbers.clear()
        onward = answer
        if error.may_have_happened:
            parcel.mark()
            onward = _in_doubt(answer)
        try:
            _send_anywhere(target, parcel, onward, numbers, tried)
        except ServiceBusError as refusal:  # whoever sent it waits for the answer by now
            onward(refusal)

    return told


def _in_doubt(answer: Answered) -> Answered:
    """What hears of a message that a part may have stored all the same: no error says that it certainly is not."""

    def told(error: ServiceBusError | None) -> None:
        answer(error if error is None else error.retold(may_have_happened=True))

    return told


def _ping_each(target: Queue | Topic, keys: Sequence[bytes | None], answer: Answered) -> None:
    """Ask all parts that several pings lead to."""
    numbers = {target.spread.choose(key) for key in keys}
    told = all_of(len(numbers), answer)
    for number in numbers:
        try:
            target.parts[number].send(Parcel(), told)
        except ServiceBusError as error:
            told(error)


def send_on(target: Queue, parcel: Parcel, destination: str, answer: Answered) -> None:
    """Store messages that go on to another entity, in the parts that their keys lead to."""
    target.check_sends()
    choose = target.spread.choose
    groups: dict[int, list[bytes]] = {}
    for number, record in zip([choose(key) for key in parcel.keys], parcel.records, strict=True):
        groups.setdefault(number, []).append(record)
    told = all_of(len(groups), answer)

    def store() -> None:
        for number, records in groups.items():
            try:
                target.parts[number].send_on(records, destination, told)
            except ServiceBusError as error:  # others may have theirs: all are answered together
                told(error)

    sizes = {number: sum([len(record) for record in records]) for number, records in groups.items()}
    refusal = Checked(target, sizes, store, lambda _number, error: answer(error)).begin()
    if refusal is not None:
        raise refusal[1]


class _Mixed:
    """Messages of several keys that were sent together."""

    def __init__(self, target: Queue | Topic, parcel: Parcel, answer: Answered, numbers: list[int]) -> None:
        self._target = target
        self._parcel = parcel
        self._answer = answer
        self._numbers = numbers
        self._keyed: set[int] = set()
        """Parts that a key leads to."""
        self._places = self._divide()
        self._left = set(self._places)
        """Parts that have not answered."""
        self._given: dict[int, list[int]] = {number: [] for number in self._places}
        self._errors: dict[int, ServiceBusError] = {}
        self._parcels: dict[int, Parcel] = {}
        """Each part's portion."""

    def send(self) -> None:
        self._parcels = {number: self._portion(places) for number, places in self._places.items()}
        sizes = {number: sum([len(record) for record in parcel.records]) for number, parcel in self._parcels.items()}
        refusal = Checked(self._target, sizes, self._store, self._refuse).begin()
        if refusal is not None:
            raise self._refusal(*refusal)

    def _refuse(self, number: int, error: ServiceBusError) -> None:
        """A part cannot store its portion: nothing is stored."""
        self._answer(self._refusal(number, error))

    def _refusal(self, number: int, error: ServiceBusError) -> ServiceBusError:
        """Return the error of a batch of which nothing was handed to a part."""
        return self._as_told(number, error.retold(may_have_happened=False))

    def _store(self) -> None:
        parts = self._target.parts
        for number, parcel in self._parcels.items():
            try:
                parts[number].send(parcel, partial(self._told, number), self._given[number])
            except ServiceBusError as error:
                self._told(number, error.retold(may_have_happened=False))  # it was handed nothing

    def _divide(self) -> dict[int, list[int]]:
        """The places of messages in the parcel, by the numbers of their parts."""
        choose, keyless = self._target.spread.choose, -1
        places: dict[int, list[int]] = {}
        parcel = self._parcel
        for place, key in enumerate(parcel.keys if parcel.records else parcel.ping_keys):
            if key is None and keyless < 0:
                keyless = choose(None)  # those without a key stay together
            number = choose(key) if key is not None else keyless
            if key is not None:
                self._keyed.add(number)
            places.setdefault(number, []).append(place)
        return places

    def _portion(self, places: list[int]) -> Parcel:
        portion, parcel = Parcel(), self._parcel
        if not parcel.records:  # nothing but pings: each part of them is asked whether it is there
            return portion
        portion.records = [parcel.records[place] for place in places]
        portion.ids = [parcel.ids[place] for place in places] if parcel.ids else []
        return portion

    def _told(self, number: int, error: ServiceBusError | None) -> None:
        self._left.discard(number)
        if error is not None:
            self._errors[number] = self._as_told(number, error)
        if not self._left:
            self._finish()

    def _as_told(self, number: int, error: ServiceBusError) -> ServiceBusError:
        return of_fragment(self._target, number, error) if number in self._keyed else error

    def _finish(self) -> None:
        if not self._errors and not self._parcel.records:
            self._answer(None)
            return
        if not self._errors:
            by_place = {
                place: number
                for part, places in self._places.items()
                for place, number in zip(places, self._given[part], strict=True)
            }
            self._numbers.extend(by_place[place] for place in range(len(self._parcel.records)))
            self._answer(None)
            return
        stored = [number for number in self._places if number not in self._errors]
        reason = self._reason()
        if not stored or not self._parcel.records:
            is_unsure = any(error.may_have_happened for error in self._errors.values())
            self._answer(reason.retold(may_have_happened=True) if is_unsure else reason)
            return
        places = [place for number in stored for place in self._places[number]]
        ids = [_id_of(self._parcel.records[place]) for place in places]
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        why = str(reason).rstrip(".")
        told = PartlyStored(
            f"some messages of the batch are stored, and others are not, because {why}. Stored are those with the ids "
            f"{', '.join(ids[:_NAMED])}{more}. To send the batch again doubles these, unless the entity detects "
            "duplicates."
        )
        told.stored, told.unsure = sorted(places), self._unsure()
        if isinstance(reason, FragmentUnavailable):  # the fragment that is down, not one that is full or busy
            told.fragment = reason.fragment
        self._answer(told)

    def _reason(self) -> ServiceBusError:
        """Return the error of a fragment that is down, if there is one; the first error otherwise."""
        errors = list(self._errors.values())
        return next((error for error in errors if isinstance(error, FragmentUnavailable)), errors[0])

    def _unsure(self) -> list[int]:
        """Return the places of messages that may be stored although their part answered with an error."""
        unsure = [number for number, error in self._errors.items() if error.may_have_happened]
        return sorted([place for number in unsure for place in self._places[number]])


def _id_of(record: bytes) -> str:
    return str(Message(take_apart(record).bare).field(Section.PROPERTIES, MESSAGE_ID))


def take_arrivals(target: Queue | Topic, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
    """Store those messages of a source that were not seen before; `answer` is called when all are on disk."""
    if not target.is_partitioned:
        target.parts[0].take_arrivals(source, items, answer)
        return
    groups: dict[int, list[tuple[int, bytes]]] = {}
    for number, record in items:
        key = key_of(record, looks_for_duplicates=target.terms.detects_duplicates)
        groups.setdefault(fragment_of(key) if key is not None else number % len(target.parts), []).append(
            (number, record)
        )
    told = all_of(len(groups), answer)  # if one failed all are offered again; the others have seen theirs
    for part, group in groups.items():
        try:
            target.parts[part].take_arrivals(source, group, told)
        except ServiceBusError as error:
            told(error)
