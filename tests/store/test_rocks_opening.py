"""Opening answers like every other call; where it fails, it says which directory and why."""

from __future__ import annotations

import stat
import threading
from typing import TYPE_CHECKING

from tests.store.store_harness import RocksHarness
from twinbus.store import rocks as rocks_module
from twinbus.store import rocks_database as database_module
from twinbus.store.protocol import StoreFailed
from twinbus.store.rocks import RocksStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def test_the_directory_is_made_for_its_owner_only(rocks: RocksHarness) -> None:
    assert stat.S_IMODE(rocks.directory.stat().st_mode) == 0o700


def test_a_checkpoint_too(rocks: RocksHarness, tmp_path: Path) -> None:
    rocks.call_successfully(lambda done: rocks.store.checkpoint(tmp_path / "copy", done))
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700


def test_opening_twice_is_refused_and_disturbs_nobody(rocks: RocksHarness) -> None:
    error = rocks.try_open(rocks.directory)
    assert isinstance(error, StoreFailed)
    assert str(error).startswith(f"store 0: {rocks.directory} cannot be opened: it is open already")
    rocks.put((b"a", b"1"))


def test_a_directory_that_cannot_be_made_is_named(rocks: RocksHarness, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = rocks.try_open(tmp_path / "file")
    assert isinstance(error, StoreFailed)
    assert str(tmp_path / "file") in str(error)


def test_a_missing_table_file_is_named(rocks: RocksHarness) -> None:
    rocks.put((b"a", b"1"))
    rocks.call_successfully(rocks.store.close)
    for file in rocks.directory.glob("*.sst"):
        file.unlink()
    error = rocks.try_open(rocks.directory)
    assert isinstance(error, StoreFailed)
    assert ".sst" in str(error)


def test_the_thread_bears_the_stores_name_and_ends_with_it(rocks: RocksHarness) -> None:
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "store 0")
    assert thread.daemon
    rocks.call_successfully(rocks.store.close)
    thread.join(60)
    assert not thread.is_alive()


def test_the_thread_ends_and_lets_go_of_the_files_once_its_owners_loop_is_closed(tmp_path: Path) -> None:
    opened = threading.Event()
    stores: list[object] = []

    def post(call: Callable[[], None]) -> None:
        if opened.is_set():
            raise RuntimeError("Event loop is closed")
        call()
        opened.set()

    RocksStore.open(tmp_path / "store", name="orphan", post_call=post, on_result=stores.append)
    assert opened.wait(60)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "orphan")
    (store,) = stores
    assert isinstance(store, RocksStore)
    store.commit(store.batch(), lambda _: None)
    thread.join(60)
    assert not thread.is_alive()
    rig = RocksHarness(tmp_path / "store")
    rig.call_successfully(rig.store.close)


def test_closing_does_not_wait_for_background_work_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RocksHarness(tmp_path / "store")
    monkeypatch.setattr(rocks_module, "RELEASE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(database_module, "BACKGROUND_WORK", ("rocksdb.num-live-versions",))  # always some
    error = rig.call(rig.store.close)
    assert isinstance(error, StoreFailed)
    assert "stays locked" in str(error)
    assert "it is open already" in str(rig.try_open(rig.directory))
