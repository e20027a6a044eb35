"""Damaged RocksDB files: a store opens with everything that was synced, or does not open at all."""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.store import log_damage
from twinbus.store.protocol import StoreFailed
from twinbus.store.rocks_database import CannotOpen, RocksDatabase
from twinbus.store.rocks_tuning import DEFAULT_TUNING, RocksTuning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.store.store_harness import RocksHarness

SEEDS = range(4)
UNSYNCED_DAMAGES = [log_damage.cut, log_damage.cut_and_fill_with_zeroes, log_damage.lose_a_page]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("damage", UNSYNCED_DAMAGES)
def test_a_log_damaged_after_its_last_sync_opens_with_all_synced_batches(
    damage: Callable[[log_damage.DamagedStore, Random], None],
    seed: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    random = Random(seed)
    damaged = log_damage.write_unsynced_log(tmp_path, random)
    damage(damaged, random)
    with caplog.at_level(logging.WARNING):
        database = RocksDatabase(damaged.directory, DEFAULT_TUNING)
    try:
        assert damaged.synced_batches <= log_damage.batches_in(database) < damaged.batches
    finally:
        database.release(5.0)
    assert "never synced" in caplog.text


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_damaged_before_its_last_sync_does_not_open(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    damaged = log_damage.write_unsynced_log(tmp_path, random)
    log_damage.flip_a_synced_byte(damaged, random)
    for _ in range(2):  # the second attempt fails too
        with pytest.raises(CannotOpen, match="damaged"):
            RocksDatabase(damaged.directory, DEFAULT_TUNING)


def test_a_store_that_never_syncs_opens_with_the_batches_before_the_damage(tmp_path: Path) -> None:
    random = Random(0)
    damaged = log_damage.write_unsynced_log(tmp_path, random, tuning=RocksTuning(sync=False))
    log_damage.flip_a_synced_byte(damaged, random)
    database = RocksDatabase(damaged.directory, DEFAULT_TUNING)
    try:
        assert log_damage.batches_in(database) < damaged.synced_batches
    finally:
        database.release(5.0)


def test_an_undamaged_log_opens_with_the_unsynced_batches_too(tmp_path: Path) -> None:
    damaged = log_damage.write_unsynced_log(tmp_path, Random(0))
    database = RocksDatabase(damaged.directory, DEFAULT_TUNING)
    try:
        assert log_damage.batches_in(database) == damaged.batches
    finally:
        database.release(5.0)


def test_a_damaged_table_file_fails_the_store_instead_of_ending_a_scan_early(rocks: RocksHarness) -> None:
    rocks.put(*((b"%03d" % number, bytes([number]) * 1_000) for number in range(200)))
    rocks.call_successfully(rocks.store.close)
    (file,) = (file for file in rocks.directory.glob("*.sst") if b"199" in file.read_bytes())
    content = bytearray(file.read_bytes())
    content[content.index(bytes([100]) * 1_000)] ^= 0xFF
    file.write_bytes(content)
    rocks.open()
    error = rocks.call(lambda done: rocks.store.scan(b"", b"\xff", done, limit=1_000))
    assert isinstance(error, StoreFailed)
    assert "Corruption" in str(error)
    assert rocks.call(lambda done: rocks.store.get([b"000"], done)) is error
    rocks.reopen()  # the files are released
