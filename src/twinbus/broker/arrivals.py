"""Arrivals: messages that other entities forward to this one, each once.

Owns: how far each source was seen, which is written in the same batch as the messages.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.fields import MESSAGE_ID
from twinbus.amqp.message import Message, Section
from twinbus.broker import keys
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.record import annotation_pairs_of, session_in, take_apart
from twinbus.model.annotations import PARTITION_KEY
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.partition_key import identity_of, partition_key
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.part import StoredPart
    from twinbus.broker.ports.callbacks import Answered

_NUMBER: Final = Struct(">Q")


class Arrivals:
    """What comes to one fragment from others."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._place = fragment.holdings.prefix + keys.SEEN
        self._seen: dict[bytes, int] = {}
        """The last number of each source that was written, synced or not."""

    def restart(self) -> None:
        """What is in memory is void."""
        self._seen.clear()

    def take(self, source: bytes, items: list[tuple[int, bytes]], destination: StoredPart, answer: Answered) -> None:
        """Store those messages of a source that were not seen before; `answer` hears when they are on disk.

        `items` are numbers that grow, with records as they are to be stored. Raises what a send to it would.
        """
        fragment = self._fragment
        fragment.journal.check_takes_sends()
        fragment.check_loaded()
        size = sum([len(record) for _, record in items])

        def store() -> None:
            self._store(source, items, destination, answer)

        if source in self._seen:
            fragment.in_order(store, answer, size)
            return
        life = fragment.life
        promise = fragment.journal.promise(answer)

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != fragment.life or isinstance(values, StoreError):
                promise.give(StoreUnavailable("the store failed before the messages were stored"))
                return
            value = values[0]
            self._seen.setdefault(source, _NUMBER.unpack(value)[0] if value is not None else 0)
            if promise.is_open:
                promise.is_open = False  # the store has spoken: if it takes longer now, that is not the store's fault
                try:
                    fragment.in_order(store, answer, size)
                except ServiceBusError as error:
                    answer(error)

        fragment.journal.get([self._place + source], read, Table.INDEX)

    def _store(self, source: bytes, items: list[tuple[int, bytes]], destination: StoredPart, answer: Answered) -> None:
        seen = self._seen[source]
        fresh = [(number, record) for number, record in items if number > seen]
        if not fresh:
            self._fragment.journal.add_loose(answer)  # what was written of them is synced by then, or never
            return
        parcel = Parcel()
        parcel.records = [record for _, record in fresh]
        terms = destination.terms
        if terms.detects_duplicates and not keys.comes_back(source, self._fragment.holdings.prefix):
            is_keyed = terms.is_partitioned
            parcel.ids = [_identity_of(record, is_keyed=is_keyed) for record in parcel.records]
        last = fresh[-1][0]

        def note() -> None:
            self._fragment.journal.batch.put(self._place + source, _NUMBER.pack(last), Table.INDEX)
            self._seen[source] = last

        destination.send(parcel, answer, beside=note)


def key_of(record: bytes, *, looks_for_duplicates: bool) -> bytes | None:
    """What says to which fragment of a partitioned entity a stored message goes. InvalidOperation."""
    parts = take_apart(record)
    session = session_in(parts.bare)
    key = next((value for name, value, _ in annotation_pairs_of(parts) if name == PARTITION_KEY), None)
    message_id = Message(parts.bare).field(Section.PROPERTIES, MESSAGE_ID) if looks_for_duplicates else None
    return partition_key(
        session.decode() if session is not None else None, str(key) if isinstance(key, str) else None, message_id
    )


def _identity_of(record: bytes, *, is_keyed: bool) -> bytes:
    message_id = Message(take_apart(record).bare).field(Section.PROPERTIES, MESSAGE_ID)
    return identity_of(message_id, key_of(record, looks_for_duplicates=True) if is_keyed else None)
