"""Creates a database whose log has a synced and an unsynced part, and damages the log file.

The files are copied while the database is open: the copy is what a kill leaves behind, and, once damaged, a power cut.
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
"""Block size of RocksDB's log. RocksDB cannot read the rest of a block after a damaged byte."""


@dataclass(frozen=True)
class DamagedStore:
    """Files of a database after a power cut."""

    directory: Path
    log: Path
    synced_batches: int
    batches: int
    synced_bytes: int
    """Length of the log at its last sync."""


def write_unsynced_log(
    directory: Path, random: Random, *, synced: int = 120, unsynced: int = 40, tuning: RocksTuning = DEFAULT_TUNING
) -> DamagedStore:
    """Commit `synced` batches in groups with a sync each, then `unsynced` batches without a sync."""
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
    """Return the number of batches in the database; they must be the first ones, and complete."""
    rows, _ = database.scan(b"", b"\xff", 1_000_000, 1 << 30, Table.LOG)
    numbers = sorted({int(key[:4]) for key, _ in rows})
    assert numbers == list(range(len(numbers)))
    assert len(rows) == 2 * len(numbers)
    (last_number,) = database.get([b"last"], Table.INDEX)
    assert int(last_number or b"-1") == len(numbers) - 1
    return len(numbers)


def cut(damaged: DamagedStore, random: Random) -> None:
    """Truncate the log somewhere in its unsynced part."""
    with damaged.log.open("r+b") as file:
        file.truncate(random.randrange(damaged.synced_bytes, damaged.log.stat().st_size))


def cut_and_fill_with_zeroes(damaged: DamagedStore, random: Random) -> None:
    """Keep the length of the log, but overwrite the end of its unsynced part with zeroes."""
    length = damaged.log.stat().st_size
    cut(damaged, random)
    with damaged.log.open("r+b") as file:
        file.truncate(length)


def lose_a_page(damaged: DamagedStore, random: Random) -> None:
    """Overwrite one page of the unsynced part with zeroes; later pages stay."""
    first = -(-damaged.synced_bytes // PAGE)
    page = random.randrange(first, damaged.log.stat().st_size // PAGE)
    _overwrite(damaged.log, page * PAGE, bytes(PAGE))


def flip_a_synced_byte(damaged: DamagedStore, random: Random) -> None:
    """Flip a bit of the synced part, at least a block before its end."""
    position = random.randrange(damaged.synced_bytes - 2 * BLOCK)
    _overwrite(damaged.log, position, bytes([damaged.log.read_bytes()[position] ^ (1 << random.randrange(8))]))


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
