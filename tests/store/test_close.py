"""Closing answers what was asked before; nothing that was answered is missing afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.store.protocol import StoreClosed, Table

if TYPE_CHECKING:
    from tests.store.store_harness import StoreHarness


def test_close_comes_after_what_was_asked_before(harness: StoreHarness) -> None:
    told: list[Any] = []
    batch = harness.store.batch()
    batch.put(b"a", b"1")
    harness.store.commit(batch, told.append)
    harness.store.get([b"a"], told.append)
    assert harness.call(harness.store.close) is None
    assert told == [None, [b"1"]]


def test_calls_after_close_are_answered_in_order_with_store_closed(harness: StoreHarness) -> None:
    told: list[Any] = []
    harness.store.get([b"a"], told.append)
    harness.store.close(told.append)
    harness.store.get([b"a"], told.append)
    harness.store.commit(harness.store.batch(), told.append)
    harness.store.close(told.append)
    while len(told) < 5:
        harness.run_callbacks()
    assert told[:2] == [[None], None]
    assert [type(answer) for answer in told[2:]] == [StoreClosed, StoreClosed, type(None)]
    assert "store 0" in str(told[2])
    assert isinstance(harness.call(lambda done: harness.store.get([b"a"], done)), StoreClosed)
    assert harness.call(harness.store.close) is None
    assert harness.store.pending_commits == 0


def test_what_was_committed_is_there_after_a_reopening(harness: StoreHarness) -> None:
    harness.put((b"a", b"log"))
    harness.put((b"a", b"index"), table=Table.INDEX)
    harness.reopen()
    assert harness.scan() == [(b"a", b"log")]
    assert harness.scan(table=Table.INDEX) == [(b"a", b"index")]


def test_what_was_answered_is_there_after_a_kill(harness: StoreHarness) -> None:
    for number in range(50):
        harness.put((b"%02d" % number, bytes(100)))
    harness.kill()
    assert len(harness.scan()) == 50
