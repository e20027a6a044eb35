"""Arrivals: messages that other entities forward to this one, each once.

Owns: how far each source was seen, which is written in the same batch as the messages.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.fields import MESSAGE_ID
from twinbus.amqp.message import Message, Section
from twinbus.broker import keys
from twinbus.broker.ports.incoming import IncomingBatch
from twinbus.broker.record import annotation_pairs_of, parse_record, session_id_in
from twinbus.model.annotations import PARTITION_KEY
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.partition_key import identity_of, partition_key
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.part import LocalPart
    from twinbus.broker.ports.callbacks import OnDone

_NUMBER: Final = Struct(">Q")


class ForwardingInbox:
    """What comes to one fragment from others."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._key_prefix = fragment.message_table.key_prefix + keys.FORWARDED_UP_TO
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
        if terms.detects_duplicates and not keys.is_forwarded_to_itself(
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
