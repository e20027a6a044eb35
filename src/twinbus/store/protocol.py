"""The narrow waist: what every store can do, and no more.

    batch = store.batch()
    batch.put(key, value)
    store.commit(batch, done)       # done(None) once it is on disk; done(error) if it is not

A call returns at once. Its answer comes later, through `done`, on the thread of whoever made the store; answers come in
the order of the calls. Commits that wait at the same time share one sync.

A store that fails once stays failed: from then on every call is answered with the error that it failed with, and
nothing is tried again. Whoever owns it opens a new one on what the disk holds.

Owns: the words. What a key means is the broker's affair.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")


class Table(IntEnum):
    """A store has two sets of keys, which one batch may change together."""

    LOG = 0
    """Records that are written once, in about the order of their keys, and deleted in about that order."""
    INDEX = 1
    """Small records that are overwritten often. Among those of LOG each would cost a rewrite of its neighbours."""


class StoreError(Exception):
    """A store did not do what it was asked to. The message says which store and why."""


class StoreFailed(StoreError):
    """The disk is full, an I/O error, a corruption: the store takes nothing more."""


class StoreClosed(StoreError):
    """The store was closed before it came to this call."""


Row: TypeAlias = "tuple[bytes, bytes]"
"""A key and its value."""
OnResult: TypeAlias = "Callable[[T | StoreError], None]"
"""Is called once, with what was asked for or with the reason why not."""


class Batch(Protocol):
    """Changes that are made together or not at all, in the order in which they were added."""

    def put(self, key: bytes, value: bytes, table: Table = Table.LOG) -> None:
        """Write a record, or overwrite it."""

    def delete(self, key: bytes, table: Table = Table.LOG) -> None:
        """Remove a record; it need not be there."""

    def delete_range(self, start: bytes, end: bytes, table: Table = Table.LOG) -> None:
        """Remove every record from `start` up to and without `end`, however many, at the cost of one."""


class Store(Protocol):
    """A database of records, in the order of their keys."""

    name: str
    """For logs and errors."""

    def batch(self) -> Batch:
        """An empty batch, for this store only."""

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        """Make the changes of a batch. Answered when they are on disk (fsync), not before."""

    def get(self, keys: Sequence[bytes], on_result: OnResult[list[bytes | None]], table: Table = Table.LOG) -> None:
        """The values of some keys; None for each that is not there."""

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
        """Records from `start` up to and without `end`, in order: as many as `limit`, and no more once their values
        exceed `max_bytes` together. Fewer than `limit` rows do not mean that these were the last.

        Sees also what was committed and is not synced yet: who must not show that asks for less.
        """  # noqa: D205

    def checkpoint(self, directory: Path, on_done: OnResult[None]) -> None:
        """Make a copy of what is on disk now, which can be opened as a store of its own. `directory` must not exist."""

    def close(self, on_done: OnResult[None]) -> None:
        """Answer what was asked before, and let go of the files."""
