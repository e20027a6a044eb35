"""Batch of changes, kept as a list until a store applies it.

Owns the changes and their size. Must not know how stores apply them.
"""

from __future__ import annotations

from typing import TypeAlias

from twinbus.store.protocol import Table

Change: TypeAlias = "tuple[bytes, bytes | tuple[bytes] | None, Table]"
"""Key, value and table. A value of None is a deletion; a tuple holds the end of a deleted range that starts at the
key."""


class ChangeBatch:
    """Changes in the order in which they were added. A batch must not change after its commit.

    A RocksDB batch is created from this list just before the write, because a write consumes the RocksDB batch even if
    the write stalls and must be repeated. The list costs little: list and RocksDB batch together take 0.9 us per
    record, the RocksDB batch alone takes 0.8 us.
    """

    __slots__ = ("changes", "size")

    def __init__(self) -> None:
        """Create an empty batch."""
        self.changes: list[Change] = []
        self.size = 0
        """Total size of keys and values in bytes."""

    def put(self, key: bytes, value: bytes, table: Table = Table.LOG) -> None:
        """Write or overwrite a record."""
        self.changes.append((key, value, table))
        self.size += len(key) + len(value)

    def delete(self, key: bytes, table: Table = Table.LOG) -> None:
        """Delete a record if it exists."""
        self.changes.append((key, None, table))
        self.size += len(key)

    def delete_range(self, start: bytes, end: bytes, table: Table = Table.LOG) -> None:
        """Delete all records from `start` to `end` (exclusive), at the cost of a single record."""
        if start < end:  # RocksDB refuses a range whose end is before its start
            self.changes.append((start, (end,), table))
            self.size += len(start) + len(end)
