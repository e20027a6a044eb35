"""How RocksDB is set up for messages, and why so.

Owns: every setting of a database. Knows nothing of what is done with it: that is `database`'s.

Figures are of a 2-core machine with incompressible values of 1 KB; ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Env, Options, WriteOptions

MIB: Final = 1_048_576


@dataclass(frozen=True, kw_only=True)
class RocksTuning:
    """What may differ from store to store; tests make some of it tiny."""

    write_buffer_bytes: int = 32 * MIB
    write_buffers: int = 4
    """Three that wait for their flush are a stall."""
    wal_bytes: int = 64 * MIB
    """Files of the log that are kept before the smaller tables are flushed for their sake.

    Bounds the time of an opening after a kill, which holds the GIL: 5 to 10 ms a MiB. Twice as much saves no CPU.
    """
    level0_slowdown_files: int = 32
    """A slowdown is a stall here (`write_options`), so it begins late: 1 GiB that waits for its compaction."""
    level0_stop_files: int = 40
    table_files: int = 512
    """Table files kept open. Fewer cost reads of files that are opened again."""
    sync: bool = True
    """False only for tests and measurements: a commit is answered though a power cut could undo it."""


DEFAULT_TUNING: Final = RocksTuning()


def make_write_options() -> WriteOptions:
    """Without sync: that is `flush_wal`'s. And a write that would have to wait fails instead, and is not applied.

    A write holds the GIL: one that waits for the disk would stop the whole process.
    """
    chosen = WriteOptions()
    chosen.sync = False
    chosen.no_slowdown = True
    return chosen


def make_options(tuning: RocksTuning, recovery: DBRecoveryMode, *, has_bloom_filter: bool) -> Options:
    """The settings of one column family, and those of the whole database, which RocksDB takes from the default one."""
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(create_if_missing=True)
    chosen.create_missing_column_families(create_missing_cfs=True)
    chosen.set_env(_background_threads())
    chosen.set_max_background_jobs(4)
    chosen.set_wal_recovery_mode(recovery)
    chosen.set_paranoid_checks(True)
    chosen.set_max_total_wal_size(tuning.wal_bytes)
    chosen.set_max_open_files(tuning.table_files)
    chosen.set_keep_log_file_num(3)  # its diary, not ours
    chosen.set_max_log_file_size(4 * MIB)
    chosen.set_max_manifest_file_size(16 * MIB)
    _set_compaction(chosen, tuning)
    chosen.set_block_based_table_factory(_make_block_options(has_bloom_filter=has_bloom_filter))
    return chosen


def _set_compaction(chosen: Options, tuning: RocksTuning) -> None:
    chosen.set_write_buffer_size(tuning.write_buffer_bytes)
    chosen.set_max_write_buffer_number(tuning.write_buffers)
    chosen.set_target_file_size_base(tuning.write_buffer_bytes)
    chosen.set_max_bytes_for_level_base(4 * tuning.write_buffer_bytes)
    chosen.set_level_zero_file_num_compaction_trigger(4)
    chosen.set_level_zero_slowdown_writes_trigger(tuning.level0_slowdown_files)
    chosen.set_level_zero_stop_writes_trigger(tuning.level0_stop_files)
    chosen.set_compression_type(DBCompressionType.none())  # LZ4 of the last level alone costs a tenth more CPU
    # A file of which half is deletions is compacted soon: a queue leaves nothing else behind it.
    chosen.add_compact_on_deletion_collector_factory(16_384, 8_192, 0.5)


def _make_block_options(*, has_bloom_filter: bool) -> BlockBasedOptions:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(_shared_cache())
    # In the cache, or else they grow with the number of messages.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if has_bloom_filter:
        blocks.set_bloom_filter(10, block_based=False)
    return blocks


@cache
def _shared_cache() -> Cache:
    """One for all stores of the process, so that their number does not change its size."""
    return Cache(64 * MIB)


@cache
def _background_threads() -> Env:
    """RocksDB's own threads, which all databases of a process share.

    A store takes one of them for its flush and up to three for compactions, and where its disk hangs they hang with it.
    There are many, so that the other stores need not wait for that one. They cost nothing while they sleep.
    """
    threads = Env()
    threads.set_high_priority_background_threads(16)
    threads.set_low_priority_background_threads(32)
    return threads
