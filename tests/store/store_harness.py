"""Harness around both kinds of store, so that the same tests run on each.

A harness owns a store and its disk, runs the callbacks that the store posts, and can reopen the store, kill it, or make
its next sync fail.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections import deque
from itertools import count
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING, cast

from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import StoreError, Table
from twinbus.store.rocks import RocksStore
from twinbus.store.rocks_database import RocksDatabase
from twinbus.store.rocks_tuning import DEFAULT_TUNING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from twinbus.store.protocol import Row
    from twinbus.store.rocks_tuning import RocksTuning

TIMEOUT_S = 60.0
FIRST, LAST = b"", b"\xff" * 8


class StoreHarness(ABC):
    """An open store."""

    store: RocksStore | MemoryStore

    @abstractmethod
    def run_callbacks(self) -> None:
        """Wait for the next callback that the store posts, and run it."""

    @abstractmethod
    def open(self) -> None:
        """Open a store on the files of the previous one."""

    @abstractmethod
    def open_checkpoint(self, directory: Path) -> None:
        """Replace the store by a store opened on a checkpoint."""

    @abstractmethod
    def kill(self) -> None:
        """End the store without closing it, like SIGKILL or a power cut."""

    @abstractmethod
    def fail_next_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the next sync fail."""

    def call(self, call: Callable[[Callable[[object], None]], None]) -> object:
        """Call the store and wait for the result."""
        results: list[object] = []
        call(results.append)
        while not results:
            self.run_callbacks()
        return results[0]

    def call_successfully(self, call: Callable[[Callable[[object], None]], None]) -> object:
        """Call the store and wait for the result, which must not be an error."""
        result = self.call(call)
        assert not isinstance(result, StoreError), result
        return result

    def put(self, *rows: Row, table: Table = Table.LOG) -> None:
        """Commit records."""
        batch = self.store.batch()
        for key, value in rows:
            batch.put(key, value, table)
        self.call_successfully(lambda done: self.store.commit(batch, done))

    def get(self, *keys: bytes, table: Table = Table.LOG) -> list[bytes | None]:
        """Return the values of keys."""
        return cast("list[bytes | None]", self.call_successfully(lambda done: self.store.get(keys, done, table)))

    def scan(
        self,
        start: bytes = FIRST,
        end: bytes = LAST,
        *,
        limit: int = 1_000,
        max_bytes: int = 1_000_000,
        table: Table = Table.LOG,
    ) -> list[Row]:
        """Return the records in a key range."""
        return cast(
            "list[Row]",
            self.call_successfully(
                lambda done: self.store.scan(start, end, done, limit=limit, max_bytes=max_bytes, table=table)
            ),
        )

    def reopen(self) -> None:
        self.call_successfully(self.store.close)
        self.open()


class RocksHarness(StoreHarness):
    """Harness of a RocksDB store in a directory."""

    store: RocksStore

    def __init__(self, directory: Path, tuning: RocksTuning = DEFAULT_TUNING) -> None:
        self.directory = directory
        self.mailbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._tuning = tuning
        self._incarnations = count()
        self.open()

    def run_callbacks(self) -> None:
        self.mailbox.get(timeout=TIMEOUT_S)()

    def try_open(self, directory: Path) -> object:
        """Return the store, or the error."""
        return self.call(
            lambda done: RocksStore.open(
                directory, name="store 0", post_call=self.mailbox.put, on_result=done, tuning=self._tuning
            )
        )

    def open(self) -> None:
        store = self.try_open(self.directory)
        assert isinstance(store, RocksStore), store
        self.store = store

    def open_checkpoint(self, directory: Path) -> None:
        self.directory = directory
        self.reopen()

    def kill(self) -> None:
        """Continue with a copy of the current files."""
        old, self.directory = self.directory, self.directory.with_name(f"life {next(self._incarnations)}")
        while not self._is_copied(old):
            shutil.rmtree(self.directory)
        self.reopen()

    def _is_copied(self, old: Path) -> bool:
        """Copy the files; return False if RocksDB removed a file meanwhile, because the copy would be inconsistent."""
        try:
            shutil.copytree(old, self.directory)
        except shutil.Error:
            return False
        return True

    def fail_next_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_database: RocksDatabase) -> None:
            monkeypatch.undo()
            raise OSError("IO error: No space left on device")

        monkeypatch.setattr(RocksDatabase, "sync", refuse)


class MemoryHarness(StoreHarness):
    """Harness of a memory store."""

    store: MemoryStore

    def __init__(self, seed: int = 0) -> None:
        self.disk = MemoryDisk()
        self.mailbox: deque[Callable[[], None]] = deque()
        self.random = Random(seed)
        self.open()

    def run_callbacks(self) -> None:
        while not self.mailbox:
            assert self.store.has_work, "no answer will come"
            self.store.step()
        self.mailbox.popleft()()

    def open(self) -> None:
        self.store = MemoryStore(self.disk, name="store 0", post_call=self.mailbox.append)

    def open_checkpoint(self, directory: Path) -> None:
        self.disk = self.disk.checkpoints[directory]
        self.open()

    def kill(self) -> None:
        self.disk.crash(self.random)
        self.open()

    def fail_next_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        del monkeypatch
        self.store.fail_next_sync("IO error: No space left on device", self.random)
