"""Failed stores: after a failed sync every call gets the same error, until the store is reopened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.store.protocol import StoreFailed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.store.store_harness import StoreHarness


def test_a_failed_sync_fails_every_commit_that_shared_it(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.fail_next_sync(monkeypatch)
    results: list[Any] = []
    for number in range(3):
        batch = harness.store.batch()
        batch.put(b"%d" % number, b"")
        harness.store.commit(batch, results.append)
    assert isinstance(harness.call(lambda done: harness.store.get([b"1"], done)), StoreFailed)
    assert [type(answer) for answer in results] == [StoreFailed] * 3
    assert "store 0" in str(results[0])
    assert "No space left" in str(results[0])
    assert harness.store.pending_commits == 0


def test_after_a_failed_sync_every_call_gets_the_same_error(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    harness.fail_next_sync(monkeypatch)
    error = harness.call(lambda done: harness.store.commit(harness.store.batch(), done))
    assert isinstance(error, StoreFailed)
    assert harness.store.failure is error
    assert harness.call(lambda done: harness.store.commit(harness.store.batch(), done)) is error
    assert harness.call(lambda done: harness.store.get([b"a"], done)) is error
    assert harness.call(lambda done: harness.store.scan(b"", b"\xff", done, limit=1)) is error
    assert harness.call(lambda done: harness.store.checkpoint(tmp_path / "copy", done)) is error
    assert harness.store.syncs == 0


def test_commits_completed_before_a_failed_sync_are_there_after_a_reopen(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.put((b"accepted", b""))
    harness.fail_next_sync(monkeypatch)
    batch = harness.store.batch()
    batch.put(b"unknown", b"")
    batch.put(b"unknown too", b"")
    assert isinstance(harness.call(lambda done: harness.store.commit(batch, done)), StoreFailed)
    harness.reopen()
    assert harness.get(b"accepted") == [b""]
    assert len(harness.scan()) in {1, 3}
    harness.put((b"works again", b""))


def test_closing_a_failed_store_succeeds_and_later_calls_still_get_its_error(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.fail_next_sync(monkeypatch)
    error = harness.call(lambda done: harness.store.commit(harness.store.batch(), done))
    assert harness.call(harness.store.close) is None
    assert harness.call(harness.store.close) is None
    assert harness.call(lambda done: harness.store.get([b"a"], done)) is error
