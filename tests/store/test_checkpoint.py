"""Checkpoints: a copy of the store that can be opened on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.store.protocol import StoreError, StoreFailed, Table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.store.store_harness import StoreHarness


def test_a_checkpoint_holds_exactly_the_commits_before_it(harness: StoreHarness, tmp_path: Path) -> None:
    batch = harness.store.batch()
    batch.put(b"before", b"log")
    batch.put(b"before", b"index", Table.INDEX)
    harness.store.commit(batch, lambda _: None)
    harness.call_successfully(lambda done: harness.store.checkpoint(tmp_path / "copy", done))
    harness.put((b"later", b""))
    harness.open_checkpoint(tmp_path / "copy")
    assert harness.scan() == [(b"before", b"log")]
    assert harness.scan(table=Table.INDEX) == [(b"before", b"index")]
    harness.put((b"goes on", b""))


def test_a_failed_checkpoint_does_not_fail_the_store(harness: StoreHarness, tmp_path: Path) -> None:
    harness.call_successfully(lambda done: harness.store.checkpoint(tmp_path / "copy", done))
    error = harness.call(lambda done: harness.store.checkpoint(tmp_path / "copy", done))
    assert isinstance(error, StoreError)
    assert not isinstance(error, StoreFailed)
    assert str(tmp_path / "copy") in str(error)
    harness.put((b"goes on", b""))
