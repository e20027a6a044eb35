"""A checkpoint is a copy that opens as a store of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.store.protocol import StoreError, StoreFailed, Table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.store.store_harness import StoreHarness


def test_a_checkpoint_holds_what_was_committed_before_it_and_nothing_later(
    harness: StoreHarness, tmp_path: Path
) -> None:
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


def test_the_store_goes_on_where_a_checkpoint_cannot_be_made(harness: StoreHarness, tmp_path: Path) -> None:
    harness.call_successfully(lambda done: harness.store.checkpoint(tmp_path / "copy", done))
    again = harness.call(lambda done: harness.store.checkpoint(tmp_path / "copy", done))
    assert isinstance(again, StoreError)
    assert not isinstance(again, StoreFailed)
    assert str(tmp_path / "copy") in str(again)
    harness.put((b"goes on", b""))
