"""Group commit: commits that wait at the same time share one sync, and `busy_since` shows a slow sync."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from twinbus.store import rocks as module
from twinbus.store.rocks_database import RocksDatabase

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.store_harness import RocksHarness


class Gate:
    """Blocks syncs until it is opened."""

    def __init__(self, sync: Callable[[RocksDatabase], None]) -> None:
        self.is_reached = threading.Event()
        self.is_open = threading.Event()
        self._sync = sync

    def __call__(self, database: RocksDatabase) -> None:
        self.is_reached.set()
        assert self.is_open.wait(60)
        self._sync(database)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(RocksDatabase.sync)

    def sync(database: RocksDatabase) -> None:
        gate(database)

    monkeypatch.setattr(RocksDatabase, "sync", sync)
    return gate


def test_many_commits_share_one_sync(rocks: RocksHarness, gate: Gate) -> None:
    results: list[object] = []
    rocks.store.commit(rocks.store.batch(), results.append)
    assert gate.is_reached.wait(60)
    for number in range(500):
        batch = rocks.store.batch()
        batch.put(b"%d" % number, b"")
        rocks.store.commit(batch, results.append)
    assert rocks.mailbox.empty()
    assert rocks.store.pending_commits == 501
    gate.is_open.set()
    rocks.run_callbacks()
    rocks.run_callbacks()  # one callback for the results of a group
    assert results == [None] * 501
    assert (rocks.store.commits, rocks.store.syncs, rocks.store.pending_commits) == (501, 2, 0)


def test_no_commit_completes_while_the_sync_hangs_and_busy_since_is_set(rocks: RocksHarness, gate: Gate) -> None:
    rocks.store.commit(rocks.store.batch(), lambda _: None)
    assert gate.is_reached.wait(60)
    assert rocks.store.busy_since is not None
    assert rocks.mailbox.empty()
    gate.is_open.set()
    rocks.run_callbacks()
    assert rocks.store.busy_since is None


@pytest.mark.parametrize(("limit", "value"), [("GROUP_CALLS", 10), ("GROUP_BYTES", 10_000)])
def test_a_group_is_limited_by_calls_and_bytes(
    rocks: RocksHarness, gate: Gate, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(module, limit, value)
    results: list[object] = []
    rocks.store.commit(rocks.store.batch(), results.append)
    assert gate.is_reached.wait(60)
    for number in range(100):
        batch = rocks.store.batch()
        batch.put(b"%03d" % number, bytes(997))
        rocks.store.commit(batch, results.append)
    gate.is_open.set()
    while len(results) < 101:
        rocks.run_callbacks()
    assert rocks.store.syncs == 11


def test_a_callback_that_raises_does_not_stop_the_other_callbacks(rocks: RocksHarness, gate: Gate) -> None:
    results: list[object] = []

    def refuse(_answer: object) -> None:
        raise ValueError("a bug of its owner")

    rocks.store.commit(rocks.store.batch(), results.append)
    assert gate.is_reached.wait(60)
    rocks.store.get([b"a"], refuse)
    rocks.store.get([b"a"], results.append)
    gate.is_open.set()
    rocks.run_callbacks()
    with pytest.raises(ExceptionGroup, match="callbacks"):
        rocks.run_callbacks()
    assert results == [None, [None]]
