"""A power cut keeps what was synced, and of the rest the first few batches, whole; the same seed keeps the same."""

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


def live_and_crash(seed: int) -> tuple[set[int], list[bytes], list[int]]:
    """Commit, step and answer as chance has it; crash; and tell which batches were answered and which are there."""
    random = Random(seed)
    disk = MemoryDisk()
    posted: deque[Callable[[], None]] = deque()
    store = MemoryStore(disk, name="store 0", post_call=posted.append)
    answered: set[int] = set()

    def done(number: int, answer: object) -> None:
        assert answer is None
        answered.add(number)

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
    before = answered.copy()
    while posted:
        posted.popleft()()
    assert not store.has_work
    assert answered == before, "the dead answer nothing"
    MemoryStore(disk, name="store 0", post_call=posted.append)
    assert disk.visible[Table.INDEX].values.get(b"last", b"-1") == b"%d" % (len(disk.visible[Table.LOG].keys) - 1)
    return answered, disk.visible[Table.LOG].keys, steps


@pytest.mark.parametrize("seed", range(200))
def test_all_that_was_answered_survives_and_no_batch_without_those_before_it(seed: int) -> None:
    answered, keys, _ = live_and_crash(seed)
    survivors = [int(key) for key in keys]
    assert survivors == list(range(len(survivors)))
    assert answered <= set(survivors)


def test_a_seed_repeats_exactly() -> None:
    for seed in range(50):
        assert live_and_crash(seed) == live_and_crash(seed)


def test_crashes_differ_over_the_seeds() -> None:
    """Some lose all that was not synced, some keep a part, some keep it all."""
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


def test_what_was_synced_but_not_answered_survives() -> None:
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
