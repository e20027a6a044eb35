"""Crashes of the memory store: synced batches survive, and the seed decides how many unsynced batches do."""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from collections.abc import Callable


def run_and_crash(seed: int) -> tuple[set[int], list[bytes], list[int]]:
    """Run random commits, steps and callbacks, then crash; return completed batches, surviving keys and steps."""
    random = Random(seed)
    disk = MemoryDisk()
    posted: deque[Callable[[], None]] = deque()
    store = MemoryStore(disk, name="store 0", post_call=posted.append)
    completed: set[int] = set()

    def done(number: int, result: object) -> None:
        assert result is None
        completed.add(number)

    steps: list[int] = []
    number = 0
    for _ in range(random.randrange(80)):
        choice = random.randrange(3)
        steps.append(choice)
        if choice == 0:
            batch = store.batch()
            batch.put(b"%04d" % number, b"")
            batch.put(b"last", b"%d" % number, Table.INDEX)
            store.commit(batch, partial(done, number))
            number += 1
        elif choice == 1:
            store.step()
        elif posted:
            posted.popleft()()
    disk.crash(random)
    completed_before_crash = completed.copy()
    while posted:
        posted.popleft()()
    assert not store.has_work
    assert completed == completed_before_crash, "the dead answer nothing"
    MemoryStore(disk, name="store 0", post_call=posted.append)
    assert disk.visible[Table.INDEX].values.get(b"last", b"-1") == b"%d" % (len(disk.visible[Table.LOG].keys) - 1)
    return completed, disk.visible[Table.LOG].keys, steps


@pytest.mark.parametrize("seed", range(200))
def test_completed_batches_survive_and_survivors_have_no_gaps(seed: int) -> None:
    completed, keys, _ = run_and_crash(seed)
    survivors = [int(key) for key in keys]
    assert survivors == list(range(len(survivors)))
    assert completed <= set(survivors)


def test_the_same_seed_gives_the_same_crash() -> None:
    for seed in range(50):
        assert run_and_crash(seed) == run_and_crash(seed)


def test_different_seeds_keep_different_numbers_of_unsynced_batches() -> None:
    """Some crashes lose all unsynced batches, some keep a part, some keep all."""
    kept = set()
    for seed in range(50):
        disk = MemoryDisk()
        store = MemoryStore(disk, name="store 0", post_call=lambda _: None)
        for number in range(3):
            batch = store.batch()
            batch.put(b"%d" % number, b"")
            store.commit(batch, lambda _: None)
        store.step()
        assert len(disk.visible[Table.LOG].keys) == 3
        disk.crash(Random(seed))
        kept.add(len(disk.visible[Table.LOG].keys))
    assert kept == {0, 1, 2, 3}


def test_a_batch_that_was_synced_but_not_completed_survives() -> None:
    disk = MemoryDisk()
    posted: list[Callable[[], None]] = []
    store = MemoryStore(disk, name="store 0", post_call=posted.append)
    batch = store.batch()
    batch.put(b"a", b"1")
    store.commit(batch, lambda _: None)
    store.step()
    store.step()
    disk.crash(Random(0))
    assert disk.visible[Table.LOG].values == {b"a": b"1"}
    store.step()
    assert posted == []
