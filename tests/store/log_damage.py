"""Makes a database with a synced and an unsynced part of its log, and damages the log's file.

The files are copied while the database is open: so they lie there after a kill, and, once damaged, after a power cut.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.store.change_batch import ChangeBatch
from twinbus.store.protocol import Table
from twinbus.store.rocks_database import RocksDatabase
from twinbus.store.rocks_tuning import DEFAULT_TUNING

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from twinbus.store.rocks_tuning import RocksTuning

PAGE = 4_096
BLOCK = 32_768
"""RocksDB's log is made of these. From a damage on, a block cannot be read to its end."""


@dataclass(frozen=True)
class DamagedStore:
    """What a power cut left."""

    directory: Path
    log: Path
    synced_batches: int
    batches: int
    synced_bytes: int
    """Length of the log when it was synced last."""


def write_unsynced_log(
    directory: Path, random: Random, *, synced: int = 120, unsynced: int = 40, tuning: RocksTuning = DEFAULT_TUNING
) -> DamagedStore:
    """Commit batches, the first ones in groups with a sync each; the others are one group that waits for its sync."""
    database = RocksDatabase(directory / "alive", tuning)
    try:
        for number in range(synced):
            database.write(_batch(number, random))
            if random.random() < 0.3 or number == synced - 1:
                database.sync()
        (log,) = (directory / "alive").glob("*.log")
        synced_bytes = log.stat().st_size
        for number in range(synced, synced + unsynced):
            database.write(_batch(number, random))
        shutil.copytree(directory / "alive", directory / "left")
    finally:
        database.release(5.0)
    return DamagedStore(directory / "left", directory / "left" / log.name, synced, synced + unsynced, synced_bytes)


def batches_in(database: RocksDatabase) -> int:
    """How many batches are there; they must be the first ones, whole."""
    rows, _ = database.scan(b"", b"\xff", 1_000_000, 1 << 30, Table.LOG)
    numbers = sorted({int(key[:4]) for key, _ in rows})
    assert numbers == list(range(len(numbers)))
    assert len(rows) == 2 * len(numbers)
    (mark,) = database.get([b"last"], Table.INDEX)
    assert int(mark or b"-1") == len(numbers) - 1
    return len(numbers)


def cut(left: DamagedStore, random: Random) -> None:
    """The file ends somewhere in what was not synced."""
    with left.log.open("r+b") as file:
        file.truncate(random.randrange(left.synced_bytes, left.log.stat().st_size))


def cut_and_fill_with_zeroes(left: DamagedStore, random: Random) -> None:
    """The file has its length, but what was not synced is missing from somewhere on."""
    length = left.log.stat().st_size
    cut(left, random)
    with left.log.open("r+b") as file:
        file.truncate(length)


def lose_a_page(left: DamagedStore, random: Random) -> None:
    """One page of what was not synced never reached the disk; later ones did."""
    first = -(-left.synced_bytes // PAGE)
    page = random.randrange(first, left.log.stat().st_size // PAGE)
    _overwrite(left.log, page * PAGE, bytes(PAGE))


def flip_a_synced_byte(left: DamagedStore, random: Random) -> None:
    """A byte of what was synced has changed, at least a block before its end."""
    position = random.randrange(left.synced_bytes - 2 * BLOCK)
    _overwrite(left.log, position, bytes([left.log.read_bytes()[position] ^ (1 << random.randrange(8))]))


def _overwrite(file: Path, position: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(content)


def _batch(number: int, random: Random) -> ChangeBatch:
    batch = ChangeBatch()
    batch.put(b"%04d first" % number, random.randbytes(random.randrange(1_500)))
    batch.put(b"%04d second" % number, random.randbytes(random.randrange(1_500)))
    batch.put(b"last", b"%d" % number, Table.INDEX)
    return batch
