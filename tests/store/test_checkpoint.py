"""A checkpoint is a copy that opens as a store of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.store.protocol import StoreError, StoreFailed, Table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.store.rig import Rig


def test_a_checkpoint_holds_what_was_committed_before_it_and_nothing_later(rig: Rig, tmp_path: Path) -> None:
    batch = rig.store.batch()
    batch.put(b"before", b"log")
    batch.put(b"before", b"index", Table.INDEX)
    rig.store.commit(batch, lambda _: None)
    rig.expect(lambda done: rig.store.checkpoint(tmp_path / "copy", done))
    rig.put((b"later", b""))
    rig.open_checkpoint(tmp_path / "copy")
    assert rig.scan() == [(b"before", b"log")]
    assert rig.scan(table=Table.INDEX) == [(b"before", b"index")]
    rig.put((b"goes on", b""))


def test_the_store_goes_on_where_a_checkpoint_cannot_be_made(rig: Rig, tmp_path: Path) -> None:
    rig.expect(lambda done: rig.store.checkpoint(tmp_path / "copy", done))
    again = rig.ask(lambda done: rig.store.checkpoint(tmp_path / "copy", done))
    assert isinstance(again, StoreError)
    assert not isinstance(again, StoreFailed)
    assert str(tmp_path / "copy") in str(again)
    rig.put((b"goes on", b""))
