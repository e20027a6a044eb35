"""One RocksDB database, as a store's thread uses it: every call does its work before it returns.

Owns: what is done with RocksDB, and whether a damaged log may be opened. Knows nothing of threads, groups or answers
(`rocks`'s), nor of settings (`tuning`'s). What goes wrong is raised as RocksDB says it.
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
"""Databases whose background work hangs. To drop one would wait for that, and hold the GIL meanwhile."""


class WriteStalled(Exception):
    """RocksDB has no room for a write before it has compacted more. The write was not applied."""


class CannotOpen(Exception):
    """Someone else has it open, or something that was synced cannot be read any more."""


class RocksDatabase:
    """An open database. Each table is a column family; a third one notes how far the log was synced."""

    def __init__(self, directory: Path, tuning: RocksTuning) -> None:
        """Open it, or make a new one."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log = _open(directory, tuning)
        self._is_sync_enabled = tuning.sync
        self._tables = (self._log, self._log.get_column_family(INDEX_FAMILY))
        self._index_family = self._log.get_column_family_handle(INDEX_FAMILY)
        self._synced_family = self._log.get_column_family_handle(SYNCED_FAMILY)
        self._write_options = make_write_options()
        self._synced_mark = self._current_mark()  # an opening flushes what it found in the log

    def write(self, batch: ChangeBatch) -> None:
        """Apply a batch. It is in the log's file afterwards, and on disk after the next `sync`."""
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
        """Wait until all that was written is on disk. Releases the GIL meanwhile."""
        written = self._current_mark()
        self._log.flush_wal(sync=self._is_sync_enabled)
        if self._is_sync_enabled:
            self._synced_mark = written

    def get(self, keys: Sequence[bytes], table: Table) -> list[bytes | None]:
        """The values of some keys; a few at a time, since RocksDB keeps the GIL for as long as it searches."""
        get, found = self._tables[table].get, cast("list[bytes | None]", [])
        for start in range(0, len(keys), KEYS_AT_ONCE):
            found += cast("list[bytes | None]", get([*keys[start : start + KEYS_AT_ONCE]]))
        return found

    def scan(self, start: bytes, end: bytes, limit: int, max_bytes: int, table: Table) -> tuple[list[Row], int]:
        """Records from `start` up to and without `end`, and the bytes of their values."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(end)  # or it would search the deletions of the neighbour
        records = self._tables[table].iter(bounds)
        records.seek(start)
        rows: list[Row] = []
        size = 0
        while len(rows) < limit and size <= max_bytes and records.valid():
            value = records.value()
            rows.append((records.key(), value))
            size += len(value)
            records.next()
        records.status()  # raises where the end is not the end but an error
        return rows, size

    def checkpoint(self, directory: Path) -> None:
        """Make a copy that can be opened."""
        self.flush()  # a checkpoint does that too, but holds the GIL meanwhile
        Checkpoint(self._log).create_checkpoint(str(directory))
        directory.chmod(0o700)

    def flush(self) -> None:
        """Leave nothing in the log that an opening would have to read."""
        for table in self._tables:
            table.flush(wait=True)

    def release(self, limit_s: float) -> bool:
        """Let go of the files, without another write. False if background work hangs: then the lock stays.

        Only a dropped last reference closes RocksDB, and that waits for its background work with the GIL held.
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
    """Open a database, if need be without the torn end of its log, but never without something that was synced.

    What a power cut leaves of an unsynced write may be cut off, or full of zeroes with good pages behind them. No mode
    of RocksDB serves: `absolute_consistency` refuses to open on either; `tolerate_corrupted_tail_records` takes only
    what is cut off; `point_in_time` takes both, but drops without a word all that follows a flipped byte in the middle.

    So every batch says how far the log was synced when it was written. If the log is damaged, the last such mark that
    can still be read, damaged parts skipped (by blocks of 32 KiB), tells whether the damage lies in what was synced.
    Only damage in the very last block, or in the last group, cannot be told from a torn end.
    """
    try:
        return _open_with_recovery(directory, tuning, DBRecoveryMode.absolute_consistency())
    except Exception as error:
        if f"{directory}/LOCK" in str(error):
            raise CannotOpen(f"it is open already, in this process or in another one ({error})") from error
        if not str(error).startswith("Corruption"):
            raise
        damage = error
    whole, synced = _inspect_damage(directory, tuning)
    if whole < synced:
        raise CannotOpen(
            f"its log is damaged ({damage}) after change {whole:,}, and was synced up to {synced:,} at least: "
            "restore a checkpoint, or repair it with RocksDB's tools and lose what came after"
        )
    log.warning("%s: the end of its log, which was never synced, is torn (%s) and left out", directory, damage)
    return _open_with_recovery(directory, tuning, DBRecoveryMode.point_in_time())


def _inspect_damage(directory: Path, tuning: RocksTuning) -> tuple[int, int]:
    """The last change before the damage, and the last that is known to have been synced. Alters nothing."""
    look = AccessType.read_only(error_if_log_file_exist=False)
    whole = _open_with_recovery(directory, tuning, DBRecoveryMode.point_in_time(), look).latest_sequence_number()
    skipping = _open_with_recovery(directory, tuning, DBRecoveryMode.skip_any_corrupted_record(), look)
    mark = skipping.get_column_family(SYNCED_FAMILY).get(SYNCED_MARK_KEY)
    return whole, int.from_bytes(mark or b"", "big")


def _open_with_recovery(
    directory: Path, tuning: RocksTuning, recovery: DBRecoveryMode, access: AccessType | None = None
) -> Rdict:
    small = make_options(tuning, recovery, has_bloom_filter=True)
    families = {INDEX_FAMILY: small, SYNCED_FAMILY: small}
    large = make_options(tuning, recovery, has_bloom_filter=False)
    return Rdict(str(directory), large, families, access or AccessType.read_write())
