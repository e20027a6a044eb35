"""Steps of the memory store: a simulation advances the store step by step, and can stop it between any two steps."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from twinbus.store.memory import MemoryDisk, MemoryStore, StoreStep
from twinbus.store.protocol import StoreFailed, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.store_harness import MemoryHarness


def test_a_commit_advances_only_by_steps(memory: MemoryHarness) -> None:
    store = memory.store
    results: list[Any] = []
    store.commit(store.batch(), results.append)
    steps = []
    while store.has_work:
        steps.append(store.next_step)
        assert not memory.mailbox
        store.step()
    assert steps == [StoreStep.RUN, StoreStep.SYNC, StoreStep.DELIVER]
    assert results == []
    memory.mailbox.popleft()()
    assert results == [None]
    store.step()
    assert not memory.mailbox


def test_a_store_without_calls_has_no_work(memory: MemoryHarness) -> None:
    assert not memory.store.has_work


def test_a_commit_between_steps_waits_for_the_next_group(memory: MemoryHarness) -> None:
    store = memory.store
    store.commit(store.batch(), lambda _: None)
    store.step()
    store.commit(store.batch(), lambda _: None)
    store.step()
    store.step()
    assert len(memory.mailbox) == 1
    assert store.has_work


def test_a_hanging_store_has_no_work_until_it_resumes(memory: MemoryHarness) -> None:
    memory.store.commit(memory.store.batch(), lambda _: None)
    memory.store.step()
    memory.store.hang(since=7.0)
    assert memory.store.busy_since == 7.0
    assert not memory.store.has_work
    memory.store.step()
    assert memory.store.syncs == 0
    memory.store.resume()
    memory.store.step()
    assert memory.store.syncs == 1
    assert memory.store.busy_since is None


@pytest.mark.parametrize("seed", range(5))
def test_after_a_failed_sync_the_seed_decides_how_many_batches_survive(seed: int) -> None:
    disk = MemoryDisk()
    posted: list[Callable[[], None]] = []
    store = MemoryStore(disk, name="store 0", post_call=posted.append)
    for number in range(4):
        batch = store.batch()
        batch.put(b"%d" % number, b"")
        store.commit(batch, lambda _: None)
    store.fail_next_sync("IO error", Random(seed))
    while store.has_work:
        store.step()
    surviving = Random(seed).randint(0, 4)
    assert len(disk.visible[Table.LOG].keys) == surviving


def test_a_disk_can_be_opened_by_one_store_at_a_time(memory: MemoryHarness) -> None:
    with pytest.raises(StoreFailed, match="in use by store 0"):
        MemoryStore(memory.disk, name="store 1", post_call=memory.mailbox.append)
