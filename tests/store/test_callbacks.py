"""Callbacks: each call gets one result, in the order of the calls, and a commit only after its sync."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.store.store_harness import StoreHarness


@pytest.mark.parametrize("seed", range(5))
def test_results_arrive_in_the_order_of_the_calls(harness: StoreHarness, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    completed: list[int] = []

    def done(number: int, _answer: object) -> None:
        completed.append(number)

    for number in range(200):
        on_result = partial(done, number)
        kind = random.choice(("commit", "commit", "get", "scan", "checkpoint" if number % 50 == 0 else "commit"))
        if kind == "commit":
            batch = harness.store.batch()
            batch.put(b"%d" % number, b"")
            harness.store.commit(batch, on_result)
        elif kind == "get":
            harness.store.get([b"1", b"2"], on_result)
        elif kind == "scan":
            harness.store.scan(b"", b"\xff", on_result, limit=10)
        else:
            harness.store.checkpoint(tmp_path / f"copy {number}", on_result)
    harness.call_successfully(harness.store.close)
    assert completed == list(range(200))


def test_no_callback_runs_before_the_call_returns(harness: StoreHarness) -> None:
    results: list[object] = []
    harness.store.get([b"a"], results.append)
    harness.store.commit(harness.store.batch(), results.append)
    assert results == []


def test_a_commit_completes_after_its_sync(harness: StoreHarness) -> None:
    for number in range(1, 4):
        harness.put((b"a", b"%d" % number))
        assert harness.store.syncs == number


def test_reads_need_no_sync(harness: StoreHarness) -> None:
    harness.get(b"a")
    harness.scan()
    assert harness.store.syncs == 0


def test_a_commit_counts_as_pending_until_it_completes(harness: StoreHarness) -> None:
    for _ in range(3):
        harness.store.commit(harness.store.batch(), lambda _: None)
    assert harness.store.pending_commits == 3
    harness.get(b"a")
    assert harness.store.pending_commits == 0
    assert harness.store.busy_since is None
