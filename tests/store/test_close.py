"""Close: earlier calls complete first, later calls fail, and committed records survive a reopen or a kill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.store.protocol import StoreClosed, Table

if TYPE_CHECKING:
    from tests.store.store_harness import StoreHarness


def test_close_completes_after_all_earlier_calls(harness: StoreHarness) -> None:
    results: list[Any] = []
    batch = harness.store.batch()
    batch.put(b"a", b"1")
    harness.store.commit(batch, results.append)
    harness.store.get([b"a"], results.append)
    assert harness.call(harness.store.close) is None
    assert results == [None, [b"1"]]


def test_calls_after_close_fail_in_order_with_store_closed(harness: StoreHarness) -> None:
    results: list[Any] = []
    harness.store.get([b"a"], results.append)
    harness.store.close(results.append)
    harness.store.get([b"a"], results.append)
    harness.store.commit(harness.store.batch(), results.append)
    harness.store.close(results.append)
    while len(results) < 5:
        harness.run_callbacks()
    assert results[:2] == [[None], None]
    assert [type(answer) for answer in results[2:]] == [StoreClosed, StoreClosed, type(None)]
    assert "store 0" in str(results[2])
    assert isinstance(harness.call(lambda done: harness.store.get([b"a"], done)), StoreClosed)
    assert harness.call(harness.store.close) is None
    assert harness.store.pending_commits == 0


def test_committed_records_survive_a_reopen(harness: StoreHarness) -> None:
    harness.put((b"a", b"log"))
    harness.put((b"a", b"index"), table=Table.INDEX)
    harness.reopen()
    assert harness.scan() == [(b"a", b"log")]
    assert harness.scan(table=Table.INDEX) == [(b"a", b"index")]


def test_completed_commits_survive_a_kill(harness: StoreHarness) -> None:
    for number in range(50):
        harness.put((b"%02d" % number, bytes(100)))
    harness.kill()
    assert len(harness.scan()) == 50
