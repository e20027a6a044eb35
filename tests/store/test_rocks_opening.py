"""Opening of RocksDB stores: permissions, errors that name the directory, and the store's thread."""

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


def test_the_store_directory_is_accessible_to_its_owner_only(rocks: RocksHarness) -> None:
    assert stat.S_IMODE(rocks.directory.stat().st_mode) == 0o700


def test_a_checkpoint_directory_is_accessible_to_its_owner_only(rocks: RocksHarness, tmp_path: Path) -> None:
    rocks.call_successfully(lambda done: rocks.store.checkpoint(tmp_path / "copy", done))
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700


def test_opening_a_store_twice_is_refused_and_the_first_continues(rocks: RocksHarness) -> None:
    error = rocks.try_open(rocks.directory)
    assert isinstance(error, StoreFailed)
    assert str(error).startswith(f"store 0: {rocks.directory} cannot be opened: it is already open")
    rocks.put((b"a", b"1"))


def test_the_error_names_a_directory_that_cannot_be_created(rocks: RocksHarness, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = rocks.try_open(tmp_path / "file")
    assert isinstance(error, StoreFailed)
    assert str(tmp_path / "file") in str(error)


def test_the_error_names_a_missing_table_file(rocks: RocksHarness) -> None:
    rocks.put((b"a", b"1"))
    rocks.call_successfully(rocks.store.close)
    for file in rocks.directory.glob("*.sst"):
        file.unlink()
    error = rocks.try_open(rocks.directory)
    assert isinstance(error, StoreFailed)
    assert ".sst" in str(error)


def test_the_thread_has_the_stores_name_and_ends_on_close(rocks: RocksHarness) -> None:
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "store 0")
    assert thread.daemon
    rocks.call_successfully(rocks.store.close)
    thread.join(60)
    assert not thread.is_alive()


def test_the_thread_ends_and_releases_the_files_when_the_owners_loop_is_closed(tmp_path: Path) -> None:
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
    harness = RocksHarness(tmp_path / "store")
    harness.call_successfully(harness.store.close)


def test_close_does_not_wait_for_hanging_background_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RocksHarness(tmp_path / "store")
    monkeypatch.setattr(rocks_module, "RELEASE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(database_module, "BACKGROUND_WORK", ("rocksdb.num-live-versions",))  # never zero
    error = harness.call(harness.store.close)
    assert isinstance(error, StoreFailed)
    assert "stays locked" in str(error)
    assert "it is already open" in str(harness.try_open(harness.directory))
