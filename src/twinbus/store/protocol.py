"""Store protocol: the operations that every store provides.

    batch = store.batch()
    batch.put(key, value)
    store.commit(batch, on_done)    # on_done(None) once the batch is on disk; on_done(error) if the commit failed

Calls return at once. The result arrives later through the callback, on the thread of the store's owner; results arrive
in the order of the calls. Commits that are pending at the same time share one sync.

A store that fails once stays failed: from then on every call fails with the same error, and nothing is retried. The
owner can open a new store on the same disk.

Owns the interface. Must not know the meaning of keys, which belongs to the broker.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")


class Table(IntEnum):
    """Key space of a store. One batch may change both tables."""

    LOG = 0
    """Records that are written once, roughly in key order, and deleted roughly in key order."""
    INDEX = 1
    """Small records that are overwritten often. In LOG, each overwrite would cause a rewrite of its neighbours."""


class StoreError(Exception):
    """A store could not complete a call. The message names the store and the reason."""


class StoreFailed(StoreError):
    """The store has failed (disk full, I/O error, corruption) and refuses all further calls."""


class StoreClosed(StoreError):
    """The store was closed before it ran the call."""


Row: TypeAlias = "tuple[bytes, bytes]"
"""Key and value of a record."""
OnResult: TypeAlias = "Callable[[T | StoreError], None]"
"""Callback that is called once, with the result or with an error."""


class Batch(Protocol):
    """Atomic set of changes, applied in the order in which they were added."""

    def put(self, key: bytes, value: bytes, table: Table = Table.LOG) -> None:
        """Write or overwrite a record."""

    def delete(self, key: bytes, table: Table = Table.LOG) -> None:
        """Delete a record if it exists."""

    def delete_range(self, start: bytes, end: bytes, table: Table = Table.LOG) -> None:
        """Delete all records from `start` to `end` (exclusive), at the cost of a single record."""


class Store(Protocol):
    """Database of records in key order."""

    name: str
    """Name of the store in logs and errors."""

    def batch(self) -> Batch:
        """Return an empty batch for this store."""

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        """Apply a batch; `on_done` is called when the changes are on disk (fsync)."""

    def get(self, keys: Sequence[bytes], on_result: OnResult[list[bytes | None]], table: Table = Table.LOG) -> None:
        """Read the values of some keys, with None for each missing key."""

    def scan(
        self,
        start: bytes,
        end: bytes,
        on_result: OnResult[list[Row]],
        *,
        limit: int,
        max_bytes: int = 16_777_216,
        table: Table = Table.LOG,
    ) -> None:
        """Read up to `limit` records from `start` to `end` (exclusive), in key order.

        The scan stops early once the values exceed `max_bytes` in total, so a result with fewer than `limit` records
        does not mean that no more records exist. The scan also reads committed records that are not synced yet; a
        caller that must not show these records has to limit the range.
        """

    def checkpoint(self, directory: Path, on_done: OnResult[None]) -> None:
        """Copy the present contents to `directory`, which must not exist; the copy can be opened as a store."""

    def close(self, on_done: OnResult[None]) -> None:
        """Finish all earlier calls and release the files."""
