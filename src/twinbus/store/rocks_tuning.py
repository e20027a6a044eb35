"""RocksDB settings for messages, and the reasons for them.

Owns all database settings. Must not know how the database is used: see `rocks_database`.

Measurements were made on a 2-core machine with incompressible 1 KB values; only their ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Env, Options, WriteOptions

MIB: Final = 1_048_576


@dataclass(frozen=True, kw_only=True)
class RocksTuning:
    """Settings that may differ between stores; tests use tiny values."""

    write_buffer_bytes: int = 32 * MIB
    write_buffers: int = 4
    """Maximum number of write buffers; writes stall when three of them wait to be flushed."""
    wal_bytes: int = 64 * MIB
    """Maximum size of the write-ahead log, beyond which smaller tables are flushed to free log files.

    The limit bounds the time to open a store after a kill, during which the GIL is held: 5 to 10 ms per MiB. A limit
    twice as high saves no CPU.
    """
    level0_slowdown_files: int = 32
    """Number of level-0 files at which writes slow down; 32 files are 1 GiB that awaits compaction. The limit is high
    because writes fail instead of slowing down (see `make_write_options`)."""
    level0_stop_files: int = 40
    table_files: int = 512
    """Maximum number of open table files. With fewer open files, reads often have to reopen files."""
    sync: bool = True
    """Sync before confirming commits. False is only for tests and measurements: a power cut may then undo confirmed
    commits."""


DEFAULT_TUNING: Final = RocksTuning()


def make_write_options() -> WriteOptions:
    """Return options for writes without sync (`flush_wal` syncs) that fail instead of waiting.

    A write holds the GIL, so a write that waited for the disk would stop the whole process. A failed write is not
    applied.
    """
    options = WriteOptions()
    options.sync = False
    options.no_slowdown = True
    return options


def make_options(tuning: RocksTuning, recovery: DBRecoveryMode, *, has_bloom_filter: bool) -> Options:
    """Return the settings for a column family; RocksDB takes the database settings from the default family."""
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    options.set_env(_background_threads())
    options.set_max_background_jobs(4)
    options.set_wal_recovery_mode(recovery)
    options.set_paranoid_checks(True)
    options.set_max_total_wal_size(tuning.wal_bytes)
    options.set_max_open_files(tuning.table_files)
    options.set_keep_log_file_num(3)  # RocksDB's own log files
    options.set_max_log_file_size(4 * MIB)
    options.set_max_manifest_file_size(16 * MIB)
    _set_compaction(options, tuning)
    options.set_block_based_table_factory(_make_block_options(has_bloom_filter=has_bloom_filter))
    return options


def _set_compaction(options: Options, tuning: RocksTuning) -> None:
    options.set_write_buffer_size(tuning.write_buffer_bytes)
    options.set_max_write_buffer_number(tuning.write_buffers)
    options.set_target_file_size_base(tuning.write_buffer_bytes)
    options.set_max_bytes_for_level_base(4 * tuning.write_buffer_bytes)
    options.set_level_zero_file_num_compaction_trigger(4)
    options.set_level_zero_slowdown_writes_trigger(tuning.level0_slowdown_files)
    options.set_level_zero_stop_writes_trigger(tuning.level0_stop_files)
    options.set_compression_type(DBCompressionType.none())  # even LZ4 on just the last level costs 10% more CPU
    # Compact files early if at least half of their records are deletions, since a drained queue leaves only deletions.
    options.add_compact_on_deletion_collector_factory(16_384, 8_192, 0.5)


def _make_block_options(*, has_bloom_filter: bool) -> BlockBasedOptions:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(_shared_cache())
    # Keep index and filter blocks in the cache; otherwise their memory grows with the number of messages.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if has_bloom_filter:
        blocks.set_bloom_filter(10, block_based=False)
    return blocks


@cache
def _shared_cache() -> Cache:
    """Return the block cache that all stores share, so that memory use does not depend on the number of stores."""
    return Cache(64 * MIB)


@cache
def _background_threads() -> Env:
    """Return the environment with RocksDB's background threads, which all databases in a process share.

    A store uses one thread for its flush and up to three for compactions; if its disk hangs, these threads hang. There
    are many threads, so that other stores do not have to wait for hanging threads. Idle threads cost nothing.
    """
    threads = Env()
    threads.set_high_priority_background_threads(16)
    threads.set_low_priority_background_threads(32)
    return threads
