"""RocksDB database as used by a store's thread: every call is synchronous.

Owns the use of RocksDB, and the decision on whether a damaged log may be opened. Must not know threads, groups or
callbacks (see `rocks`) or settings (see `rocks_tuning`). RocksDB's errors are raised unchanged.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, cast

from rocksdict import AccessType, Checkpoint, DBRecoveryMode, Rdict, ReadOptions, WriteBatch

from twinbus.store.rocks_tuning import make_options, make_write_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twinbus.store.change_batch import ChangeBatch
    from twinbus.store.protocol import Row, Table
    from twinbus.store.rocks_tuning import RocksTuning

log: Final = logging.getLogger(__name__)

INDEX_FAMILY: Final = "index"
SYNCED_FAMILY: Final = "synced"
SYNCED_MARK_KEY: Final = b"synced"
BACKGROUND_WORK: Final = ("rocksdb.num-running-flushes", "rocksdb.num-running-compactions")
RELEASE_POLL_S: Final = 0.001
KEYS_AT_ONCE: Final = 64

_unreleased: Final[list[object]] = []
"""Databases whose background work hangs. Dropping the last reference would wait for that work while holding the GIL."""


class WriteStalled(Exception):
    """RocksDB cannot accept the write until it has compacted more. The write was not applied."""


class CannotOpen(Exception):
    """The database is already open elsewhere, or synced data is damaged."""


class RocksDatabase:
    """Open database. Each table is a column family; a third family records how far the log was synced."""

    def __init__(self, directory: Path, tuning: RocksTuning) -> None:
        """Open the database, or create a new one."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log = _open(directory, tuning)
        self._is_sync_enabled = tuning.sync
        self._tables = (self._log, self._log.get_column_family(INDEX_FAMILY))
        self._index_family = self._log.get_column_family_handle(INDEX_FAMILY)
        self._synced_family = self._log.get_column_family_handle(SYNCED_FAMILY)
        self._write_options = make_write_options()
        self._synced_mark = self._current_mark()  # opening a database flushes its log

    def write(self, batch: ChangeBatch) -> None:
        """Apply a batch, which is then in the log file, and on disk after the next `sync`."""
        native = WriteBatch(raw_mode=True)
        put, index = native.put, self._index_family
        for key, value, table in batch.changes:
            family = index if table else None
            if isinstance(value, bytes):
                put(key, value, family)
            elif value is None:
                native.delete(key, family)
            else:
                native.delete_range(key, value[0], family)
        put(SYNCED_MARK_KEY, self._synced_mark, self._synced_family)
        try:
            self._log.write(native, self._write_options)
        except Exception as error:
            if str(error).startswith("Result incomplete"):
                raise WriteStalled from error
            raise

    def sync(self) -> None:
        """Wait until all written batches are on disk. The GIL is released while waiting."""
        written = self._current_mark()
        self._log.flush_wal(sync=self._is_sync_enabled)
        if self._is_sync_enabled:
            self._synced_mark = written

    def get(self, keys: Sequence[bytes], table: Table) -> list[bytes | None]:
        """Return the values of some keys, read a few at a time because RocksDB holds the GIL during a lookup."""
        get, values = self._tables[table].get, cast("list[bytes | None]", [])
        for start in range(0, len(keys), KEYS_AT_ONCE):
            values += cast("list[bytes | None]", get([*keys[start : start + KEYS_AT_ONCE]]))
        return values

    def scan(self, start: bytes, end: bytes, limit: int, max_bytes: int, table: Table) -> tuple[list[Row], int]:
        """Return the records from `start` to `end` (exclusive), and the total size of their values."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)  # otherwise the scan would also search deleted records after the range
        records = self._tables[table].iter(options)
        records.seek(start)
        rows: list[Row] = []
        size = 0
        while len(rows) < limit and size <= max_bytes and records.valid():
            value = records.value()
            rows.append((records.key(), value))
            size += len(value)
            records.next()
        records.status()  # raises if the iteration ended because of an error
        return rows, size

    def checkpoint(self, directory: Path) -> None:
        """Create a copy that can be opened."""
        self.flush()  # a checkpoint would flush as well, but hold the GIL meanwhile
        Checkpoint(self._log).create_checkpoint(str(directory))
        directory.chmod(0o700)

    def flush(self) -> None:
        """Flush all tables, so that the next opening does not have to replay the log."""
        for table in self._tables:
            table.flush(wait=True)

    def release(self, limit_s: float) -> bool:
        """Release the files without writing. Return False if background work hangs, which keeps the files locked.

        RocksDB is closed only when the last reference to it is dropped, and dropping that reference would wait for
        background work with the GIL held.
        """
        deadline = time.monotonic() + limit_s
        self._log.cancel_all_background(wait=False)
        while any(table.property_int_value(work) for table in self._tables for work in BACKGROUND_WORK):
            if time.monotonic() > deadline:
                _unreleased.append(self)
                return False
            time.sleep(RELEASE_POLL_S)
        del self._synced_family, self._index_family, self._tables, self._log
        return True

    def _current_mark(self) -> bytes:
        return self._log.latest_sequence_number().to_bytes(8, "big")


def _open(directory: Path, tuning: RocksTuning) -> Rdict:
    """Open a database, without the torn end of its log if necessary, but never without synced data.

    After a power cut, an unsynced write may be truncated, or contain zeroes with intact pages after them. No recovery
    mode in RocksDB handles both: `absolute_consistency` refuses to open in either case;
    `tolerate_corrupted_tail_records` accepts only a truncated end; `point_in_time` accepts both, but silently drops
    everything after a flipped byte in the middle.

    So every batch records how far the log was synced when the batch was written. If the log is damaged, the last
    readable such record, found by skipping damaged parts (in blocks of 32 KiB), tells whether the damage affects synced
    data. Only damage in the very last block, or in the last group, cannot be distinguished from a torn end.
    """
    try:
        return _open_with_recovery(directory, tuning, DBRecoveryMode.absolute_consistency())
    except Exception as error:
        if f"{directory}/LOCK" in str(error):
            raise CannotOpen(f"it is already open in this or another process ({error})") from error
        if not str(error).startswith("Corruption"):
            raise
        damage = error
    last_intact, last_synced = _inspect_damage(directory, tuning)
    if last_intact < last_synced:
        raise CannotOpen(
            f"its log is damaged ({damage}) after change {last_intact:,}, but was synced up to {last_synced:,}: "
            "restore a checkpoint, or repair the log with RocksDB's tools and lose all later changes"
        )
    log.warning("%s: the end of the log, which was never synced, is torn (%s) and was dropped", directory, damage)
    return _open_with_recovery(directory, tuning, DBRecoveryMode.point_in_time())


def _inspect_damage(directory: Path, tuning: RocksTuning) -> tuple[int, int]:
    """Return the last change before the damage, and the last change known to be synced. Changes nothing on disk."""
    read_only = AccessType.read_only(error_if_log_file_exist=False)
    last_intact = _open_with_recovery(
        directory, tuning, DBRecoveryMode.point_in_time(), read_only
    ).latest_sequence_number()
    skipping = _open_with_recovery(directory, tuning, DBRecoveryMode.skip_any_corrupted_record(), read_only)
    mark = skipping.get_column_family(SYNCED_FAMILY).get(SYNCED_MARK_KEY)
    return last_intact, int.from_bytes(mark or b"", "big")


def _open_with_recovery(
    directory: Path, tuning: RocksTuning, recovery: DBRecoveryMode, access: AccessType | None = None
) -> Rdict:
    bloom_options = make_options(tuning, recovery, has_bloom_filter=True)
    families = {INDEX_FAMILY: bloom_options, SYNCED_FAMILY: bloom_options}
    log_options = make_options(tuning, recovery, has_bloom_filter=False)
    return Rdict(str(directory), log_options, families, access or AccessType.read_write())
