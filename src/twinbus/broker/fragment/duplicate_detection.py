"""Duplicate detection: a message is accepted but not stored if its id was already sent in the detection window.

Owns: the stored message ids. Ids are stored in two generations, each about as long as the window. An id is looked up in
both generations; when all ids in a generation are older than the window, one range deletion removes the generation,
however many ids it has. The value stored for an id is the time when its message was sent.
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
    """The message ids of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Create the duplicate detection for `fragment`."""
        self._fragment = fragment
        self._id_prefix = fragment.message_table.key_prefix + store_keys.DUPLICATE_IDS
        self._uncommitted_ids: dict[bytes, None] = {}
        """The ids of messages that are being written."""
        self._waiting_sends = 0
        """The number of sends whose ids were looked up and that now wait for earlier sends."""
        self._recently_stored_ids: dict[bytes, None] = {}
        """Ids that were stored after the lookup for a send that still waits."""

    def reset(self) -> None:
        """Discard the state in memory."""
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
        """Store messages that are not duplicates; `sequence_numbers` gets a number for each message, 0 for a duplicate.

        `on_batched` is called when the messages are put into a batch, and may put changes into the same batch.
        """
        fragment = self._fragment
        fragment.commit_log.check_accepts_sends()
        fragment.check_loaded()
        self._rotate_generation()
        incarnation, generation = fragment.incarnation, fragment.message_table.id_generation
        watched_read = fragment.commit_log.watch_read(on_done)

        def looked_up(values: list[bytes | None] | StoreError) -> None:
            if incarnation != fragment.incarnation or isinstance(values, StoreError):
                watched_read.finish(StoreUnavailable("the store failed before the messages were stored"))
                return
            if watched_read.is_pending:  # otherwise the sender already got an error
                watched_read.is_pending = False  # the store has responded: later delays are not a store timeout
                known_values = [new or old for new, old in zip(values[::2], values[1::2], strict=True)]
                self._store_in_order(records, duplicate_ids, known_values, sequence_numbers, on_done, on_batched)

        prefixes = [self._generation_prefix(generation), self._generation_prefix(generation - 1)]
        fragment.commit_log.get(
            [prefix + duplicate_id for duplicate_id in duplicate_ids for prefix in prefixes], looked_up, Table.INDEX
        )

    def _store_in_order(
        self,
        records: Sequence[bytes],
        duplicate_ids: Sequence[bytes],
        known_values: Sequence[bytes | None],
        sequence_numbers: list[int],
        on_done: OnDone,
        on_batched: Callable[[], None] | None,
    ) -> None:
        """Store messages and their ids after all earlier sends are in a batch."""
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
        fragment, uncommitted_ids, recent_ids = self._fragment, self._uncommitted_ids, self._recently_stored_ids
        now_ms = fragment.clock.wall_ms()
        new_records: list[bytes] = []
        new_ids: dict[bytes, None] = {}
        offsets: list[int | None] = []
        for record, duplicate_id, value in zip(records, duplicate_ids, known_values, strict=True):
            is_known = duplicate_id in uncommitted_ids or duplicate_id in new_ids or duplicate_id in recent_ids
            if is_known or (value is not None and self._is_recent(value, now_ms)):
                offsets.append(None)
                continue
            offsets.append(len(new_records))
            new_ids[duplicate_id] = None
            new_records.append(record)
        if not new_records:
            sequence_numbers.extend([0] * len(offsets))
            fragment.commit_log.add(fragment, 0, do_nothing, on_done)
            if on_batched is not None:
                on_batched()
            return
        first = self._enqueue(new_records, new_ids, now_ms, on_done, on_batched)
        sequence_numbers.extend([first + offset if offset is not None else 0 for offset in offsets])

    def _enqueue(
        self,
        new_records: list[bytes],
        new_ids: dict[bytes, None],
        now_ms: int,
        on_done: OnDone,
        on_batched: Callable[[], None] | None,
    ) -> int:
        """Store messages with their ids; a topic may take several turns to put both into a batch."""
        fragment, uncommitted_ids, incarnation, is_batched = (
            self._fragment,
            self._uncommitted_ids,
            self._fragment.incarnation,
            False,
        )

        def put_ids() -> None:
            nonlocal is_batched
            is_batched = True
            value, prefix = _NUMBER.pack(now_ms), self._generation_prefix(fragment.message_table.id_generation)
            for duplicate_id in new_ids:
                fragment.commit_log.batch.put(prefix + duplicate_id, value, Table.INDEX)
            fragment.commit_log.add(fragment, 0, on_applied, ignore)
            if on_batched is not None:
                on_batched()

        def on_applied() -> None:
            for duplicate_id in new_ids:
                uncommitted_ids.pop(duplicate_id, None)
            if self._waiting_sends:
                self._recently_stored_ids.update(new_ids)

        def on_stored(error: ServiceBusError | None) -> None:
            # If an error occurs before `put_ids` is called, the ids will never be in a batch.
            if error is not None and not is_batched and incarnation == fragment.incarnation:
                for duplicate_id in new_ids:
                    uncommitted_ids.pop(duplicate_id, None)
            on_done(error)

        first = fragment.enqueue(new_records, on_stored, put_ids)
        uncommitted_ids.update(new_ids)
        return first

    def _is_recent(self, value: bytes, now_ms: int) -> bool:
        return bool(now_ms - _NUMBER.unpack(value)[0] < self._fragment.policy.duplicate_window_ms)

    def _rotate_generation(self) -> None:
        """If the current generation is older than the window, begin a new one and delete the previous generation."""
        message_table, now_ms = self._fragment.message_table, self._fragment.clock.wall_ms()
        if (
            message_table.id_generation
            and 0 <= now_ms - message_table.id_generation_started_ms < self._fragment.policy.duplicate_window_ms
        ):
            return
        if message_table.id_generation and now_ms < message_table.id_generation_started_ms:
            return  # the wall clock was set back: keep ids longer
        message_table.id_generation += 1
        message_table.id_generation_started_ms = now_ms
        old_prefix = (
            self._generation_prefix(message_table.id_generation - 2) if message_table.id_generation > 1 else None
        )
        if old_prefix is not None:
            self._fragment.commit_log.batch.delete_range(
                old_prefix, self._generation_prefix(message_table.id_generation - 1), Table.INDEX
            )
        self._fragment.commit_log.add(self._fragment, 0, do_nothing, ignore)

    def _generation_prefix(self, generation: int) -> bytes:
        return self._id_prefix + _NUMBER.pack(max(0, generation))
