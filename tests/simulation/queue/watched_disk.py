"""A disk and a store that report to the model: batches when they are synced, and when the broker learns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.queue.model_state import ACTIVE, DEAD, DEFERRED, MAIN, SCHEDULED, Location, Violation
from twinbus.broker import store_keys
from twinbus.broker.fragment.message_table import COUNTERS_STRUCT, MessageCounters
from twinbus.store.change_batch import ChangeBatch
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.queue.reference_model import ReferenceModel
    from twinbus.store.memory import PostCall
    from twinbus.store.protocol import Batch, OnResult, StoreError

ENTITY = 7
PREFIXES = {
    MAIN: store_keys.area_prefix(ENTITY, 0, store_keys.Area.MAIN),
    DEAD: store_keys.area_prefix(ENTITY, 0, store_keys.Area.DEAD_LETTER),
}
_AREAS = {prefix: area for area, prefix in PREFIXES.items()}
_KINDS = {store_keys.ACTIVE: ACTIVE, store_keys.DEFERRED: DEFERRED, store_keys.SCHEDULED: SCHEDULED}


def location_of(key: bytes) -> Location:
    """Return the location of a record."""
    kind = key[store_keys.PREFIX_BYTES : store_keys.PREFIX_BYTES + store_keys.KIND_BYTES]
    return Location(_AREAS[key[: store_keys.PREFIX_BYTES]], _KINDS[kind], store_keys.sequence_of_key(key))


class WatchedDisk(MemoryDisk):
    """A disk that reports every synced batch."""

    def __init__(self, model: ReferenceModel) -> None:
        super().__init__()
        self.model = model

    def sync(self) -> None:
        batches, self.unsynced = list(self.unsynced), []
        for batch in batches:
            before = self.synced[Table.LOG].values.copy()
            self.unsynced = [batch]
            super().sync()
            self._show_batch(batch, before)

    def _show_batch(self, batch: ChangeBatch, before: dict[bytes, bytes]) -> None:
        after = self.synced[Table.LOG].values
        touched: dict[bytes, None] = {}
        for key, value, table in batch.changes:
            if table is Table.LOG:
                if isinstance(value, tuple):
                    touched.update(
                        dict.fromkeys([existing_key for existing_key in before if key <= existing_key < value[0]])
                    )
                else:
                    touched[key] = None
        rows = {location_of(key): (before.get(key), after.get(key)) for key in touched}
        self.model.batch_synced(id(batch), {location: pair for location, pair in rows.items() if pair != (None, None)})
        for area in (MAIN, DEAD):
            self.check_counters(area)

    # --- counters and indexes ----------------------------------------------------------------------------------------

    def counters(self, area: str) -> MessageCounters:
        value = self.synced[Table.INDEX].values.get(PREFIXES[area] + store_keys.COUNTERS)
        return MessageCounters(*COUNTERS_STRUCT.unpack(value)[1:]) if value is not None else MessageCounters()

    def rows(self, area: str, kind: bytes) -> list[bytes]:
        prefix = PREFIXES[area] + kind
        return [key for key in self.synced[Table.INDEX].keys if key.startswith(prefix)]

    def check_counters(self, area: str) -> None:
        """Check, for every batch, the message counts and the low watermarks of an area."""
        model, counters = self.model, self.counters(area)
        messages = {kind: model.messages_at(area, kind) for kind in (ACTIVE, DEFERRED, SCHEDULED)}
        counted = {
            kind: (len(found_messages), sum(message.size for message in found_messages))
            for kind, found_messages in messages.items()
        }
        written = {
            ACTIVE: (counters.active_count, counters.active_bytes),
            DEFERRED: (counters.deferred_count, counters.deferred_bytes),
            SCHEDULED: (counters.scheduled_count, counters.scheduled_bytes),
        }
        if counted != written:
            raise Violation(f"{area}: there are {counted}, and the marks say {written}")
        values = self.synced[Table.INDEX].values
        states = sum(len(key) + len(values[key]) for key in self.rows(area, store_keys.SESSION_STATE))
        if counters.session_state_bytes != states:
            raise Violation(
                f"{area}: session states have {states} bytes, and the marks say {counters.session_state_bytes}"
            )
        if counters.next_sequence <= model.highest[area]:
            raise Violation(f"{area}: the next number is {counters.next_sequence}, and there was {model.highest[area]}")
        lowest = min(
            (message.location.number for message in messages[ACTIVE] if message.location),
            default=counters.low_watermark,
        )
        if lowest < counters.low_watermark:
            raise Violation(f"{area}: the low mark is {counters.low_watermark}, and there is {lowest}")
        self._check_time_index(area, store_keys.EXPIRY, (counters.expiry_low_ms, counters.expiry_low_sequence), ACTIVE)
        self._check_time_index(area, store_keys.DUE, (counters.due_low_ms, counters.due_low_sequence), SCHEDULED)

    def _check_time_index(self, area: str, kind: bytes, low: tuple[int, int], state: str) -> None:
        for key in self.rows(area, kind):
            moment = store_keys.time_entry_of_key(key)
            if moment < low and Location(area, state, moment[1]) in self.model.by_location:
                raise Violation(f"{area}: a row of {moment} is below {low}, from where on they are looked at")

    def check_index(self) -> None:
        """Check, when idle, that every message has its index rows, and that there are no others."""
        for area in (MAIN, DEAD):
            self._check_sessions(area, store_keys.SESSION_MESSAGES, (ACTIVE,))
            self._check_sessions(area, store_keys.SESSION_INACTIVE, (DEFERRED, SCHEDULED))
            self._check_expiry(area)
            due = [store_keys.time_entry_of_key(key) for key in self.rows(area, store_keys.DUE)]
            expected = sorted(
                (message.due_ms, message.location.number)
                for message in self.model.messages_at(area, SCHEDULED)
                if message.location
            )
            if due != expected:
                raise Violation(f"{area}: rows of what is due {due}, and messages {expected}")

    def check_ids(self) -> None:
        """Check that only the current and the previous generation of ids are stored."""
        offset, counters = store_keys.PREFIX_BYTES + store_keys.KIND_BYTES, self.counters(MAIN)
        generations = {
            int.from_bytes(key[offset : offset + 8], "big") for key in self.rows(MAIN, store_keys.DUPLICATE_IDS)
        }
        if not generations <= {counters.id_generation - 1, counters.id_generation}:
            raise Violation(f"ids of the generations {generations} are there, and it is {counters.id_generation}")

    def _check_sessions(self, area: str, index: bytes, kinds: tuple[str, ...]) -> None:
        rows = sorted(
            (store_keys.session_id_of_key(key), store_keys.sequence_of_key(key)) for key in self.rows(area, index)
        )
        messages = [message for kind in kinds for message in self.model.messages_at(area, kind)]
        if area == DEAD or not self.model.description.requires_session:
            messages = []
        expected = sorted((stored.session or b"", stored.location.number) for stored in messages if stored.location)
        if rows != expected:
            raise Violation(f"{area}: rows of sessions {rows}, and {' and '.join(kinds)} messages {expected}")

    def _check_expiry(self, area: str) -> None:
        rows = [store_keys.time_entry_of_key(key) for key in self.rows(area, store_keys.EXPIRY)]
        for message in self.model.messages_at(area, ACTIVE):
            assert message.location is not None
            times_ms = [when_ms for when_ms, number in rows if number == message.location.number]
            if message.due_ms and not any(when_ms >= message.due_ms for when_ms in times_ms):
                raise Violation(f"{message} expires at {message.due_ms}, and has rows at {times_ms}")


class WatchedStore(MemoryStore):
    """A store that reports when the broker learns that a batch is synced."""

    def __init__(self, disk: WatchedDisk, *, name: str, post_call: PostCall) -> None:
        super().__init__(disk, name=name, post_call=post_call)
        self.is_hanging = False
        self.is_failing = False
        """Whether the next sync fails."""
        self._model = disk.model

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        assert isinstance(batch, ChangeBatch)

        def on_committed(error: StoreError | None) -> None:
            if error is None:
                self._model.batch_visible(id(batch))
            on_done(error)

        super().commit(batch, on_committed)

    def fail_next_sync(self, error: str, random: Random) -> None:
        super().fail_next_sync(error, random)
        self.is_failing = True

    def cancel_failure(self) -> None:
        """Let the next sync succeed after all."""
        self._sync_error = None
        self.is_failing = False

    def hang(self, *, since: float | None = None) -> None:
        super().hang(since=since)
        self.is_hanging = True

    def resume(self) -> None:
        super().resume()
        self.is_hanging = False
