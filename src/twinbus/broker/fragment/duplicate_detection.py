"""Duplicates: messages whose id was sent before, within the queue's window, are accepted and dropped.

Owns: the ids that are remembered. They lie on disk in two generations, each about a window long: an id is looked up in
both, and when a generation is old enough all of it is removed at once, which costs no more for millions than for one.
How old an id is, is written beside it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.broker import store_keys
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.callbacks import OnDone

_NUMBER: Final = Struct(">Q")


class DuplicateDetection:
    """The ids that one fragment remembers."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._id_prefix = fragment.message_table.key_prefix + store_keys.DUPLICATE_IDS
        self._uncommitted_ids: dict[bytes, None] = {}
        """Ids whose messages are on their way to the disk."""
        self._waiting_sends = 0
        """Sends whose ids were looked up, and that wait for others of the fragment."""
        self._recently_stored_ids: dict[bytes, None] = {}
        """Ids that were stored since one of these was looked up."""

    def reset(self) -> None:
        """What is in memory is void."""
        self._uncommitted_ids.clear()
        self._recently_stored_ids.clear()
        self._waiting_sends = 0

    def enqueue(
        self,
        records: Sequence[bytes],
        duplicate_ids: Sequence[bytes],
        sequence_numbers: list[int],
        on_done: OnDone,
        on_batched: Callable[[], None] | None = None,
    ) -> None:
        """Store those messages that are new; `numbers` gets the sequence number of each, 0 for one that is not.

        `beside` is called when they are put into a batch, and may put something into the same.
        """
        fragment = self._fragment
        fragment.commit_log.check_accepts_sends()
        fragment.check_loaded()
        self._rotate_generation()
        life, generation = fragment.incarnation, fragment.message_table.id_generation
        promise = fragment.commit_log.watch_read(on_done)

        def looked_up(values: list[bytes | None] | StoreError) -> None:
            if life != fragment.incarnation or isinstance(values, StoreError):
                promise.finish(StoreUnavailable("the store failed before the messages were stored"))
                return
            if promise.is_pending:  # else the sender was told that they are not stored
                promise.is_pending = (
                    False  # the store has spoken: if it takes longer now, that is not the store's fault
                )
                seen = [new or old for new, old in zip(values[::2], values[1::2], strict=True)]
                self._store_in_order(records, duplicate_ids, seen, sequence_numbers, on_done, on_batched)

        places = [self._generation_prefix(generation), self._generation_prefix(generation - 1)]
        fragment.commit_log.get([place + one for one in duplicate_ids for place in places], looked_up, Table.INDEX)

    def _store_in_order(
        self,
        records: Sequence[bytes],
        duplicate_ids: Sequence[bytes],
        known_values: Sequence[bytes | None],
        sequence_numbers: list[int],
        on_done: OnDone,
        on_batched: Callable[[], None] | None,
    ) -> None:
        """Store the messages once those that were sent before are in a batch, and their ids with them."""
        fragment = self._fragment
        is_late = fragment.is_publishing
        self._waiting_sends += is_late

        def store() -> None:
            try:
                self._store(records, duplicate_ids, known_values, sequence_numbers, on_done, on_batched)
            finally:
                if is_late:
                    self._waiting_sends -= 1
                if not self._waiting_sends:
                    self._recently_stored_ids.clear()

        try:
            fragment.run_in_order(store, on_done, sum([len(record) for record in records]) if is_late else 0)
        except ServiceBusError as error:
            on_done(error)

    def _store(
        self,
        records: Sequence[bytes],
        duplicate_ids: Sequence[bytes],
        known_values: Sequence[bytes | None],
        sequence_numbers: list[int],
        on_done: OnDone,
        on_batched: Callable[[], None] | None,
    ) -> None:
        fragment, writing, meanwhile = self._fragment, self._uncommitted_ids, self._recently_stored_ids
        now_ms = fragment.clock.wall_ms()
        fresh: list[bytes] = []
        added: dict[bytes, None] = {}
        places: list[int | None] = []
        for record, one, value in zip(records, duplicate_ids, known_values, strict=True):
            is_known = one in writing or one in added or one in meanwhile
            if is_known or (value is not None and self._is_recent(value, now_ms)):
                places.append(None)
                continue
            places.append(len(fresh))
            added[one] = None
            fresh.append(record)
        if not fresh:
            sequence_numbers.extend([0] * len(places))
            fragment.commit_log.add(fragment, 0, do_nothing, on_done)
            if on_batched is not None:
                on_batched()
            return
        first = self._enqueue(fresh, added, now_ms, on_done, on_batched)
        sequence_numbers.extend([first + place if place is not None else 0 for place in places])

    def _enqueue(
        self,
        new_records: list[bytes],
        new_ids: dict[bytes, None],
        now_ms: int,
        on_done: OnDone,
        on_batched: Callable[[], None] | None,
    ) -> int:
        """Store messages with their ids; a topic may take some turns to put both into a batch."""
        fragment, writing, life, is_put = self._fragment, self._uncommitted_ids, self._fragment.incarnation, False

        def put() -> None:
            nonlocal is_put
            is_put = True
            value, place = _NUMBER.pack(now_ms), self._generation_prefix(fragment.message_table.id_generation)
            for one in new_ids:
                fragment.commit_log.batch.put(place + one, value, Table.INDEX)
            fragment.commit_log.add(fragment, 0, applied, ignore)
            if on_batched is not None:
                on_batched()

        def applied() -> None:
            for one in new_ids:
                writing.pop(one, None)
            if self._waiting_sends:
                self._recently_stored_ids.update(new_ids)

        def told(error: ServiceBusError | None) -> None:
            if (
                error is not None and not is_put and life == fragment.incarnation
            ):  # they are in no batch, and never will be
                for one in new_ids:
                    writing.pop(one, None)
            on_done(error)

        first = fragment.enqueue(new_records, told, put)
        writing.update(new_ids)
        return first

    def _is_recent(self, value: bytes, now_ms: int) -> bool:
        return bool(now_ms - _NUMBER.unpack(value)[0] < self._fragment.policy.duplicate_window_ms)

    def _rotate_generation(self) -> None:
        """Once the ids of the generation before are all older than the window, they are forgotten."""
        holdings, now_ms = self._fragment.message_table, self._fragment.clock.wall_ms()
        if (
            holdings.id_generation
            and 0 <= now_ms - holdings.id_generation_started_ms < self._fragment.policy.duplicate_window_ms
        ):
            return
        if holdings.id_generation and now_ms < holdings.id_generation_started_ms:
            return  # the wall clock was set back: what is remembered is remembered longer
        holdings.id_generation += 1
        holdings.id_generation_started_ms = now_ms
        old = self._generation_prefix(holdings.id_generation - 2) if holdings.id_generation > 1 else None
        if old is not None:
            self._fragment.commit_log.batch.delete_range(
                old, self._generation_prefix(holdings.id_generation - 1), Table.INDEX
            )
        self._fragment.commit_log.add(self._fragment, 0, do_nothing, ignore)

    def _generation_prefix(self, generation: int) -> bytes:
        return self._id_prefix + _NUMBER.pack(max(0, generation))
