"""A batch, as both stores keep it until they come to it: a list.

Owns: the changes and their size. Knows nothing of how they are made.
"""

from __future__ import annotations

from typing import TypeAlias

from twinbus.store.protocol import Table

Change: TypeAlias = "tuple[bytes, bytes | tuple[bytes] | None, Table]"
"""Key, value and table. No value is a deletion; a tuple holds the end of a range of deletions, of which the key is the
start."""


class ChangeBatch:
    """Changes in the order in which they were added. Nobody adds one after the commit.

    RocksDB's own batch is made from it just before the write: that one is used up even by a write that stalls, and a
    list of tuples costs no more (0.9 us a record for both, 0.8 for RocksDB's alone).
    """

    __slots__ = ("changes", "size")

    def __init__(self) -> None:
        """Empty."""
        self.changes: list[Change] = []
        self.size = 0
        """Bytes of keys and values."""

    def put(self, key: bytes, value: bytes, table: Table = Table.LOG) -> None:
        """Write a record, or overwrite it."""
        self.changes.append((key, value, table))
        self.size += len(key) + len(value)

    def delete(self, key: bytes, table: Table = Table.LOG) -> None:
        """Remove a record; it need not be there."""
        self.changes.append((key, None, table))
        self.size += len(key)

    def delete_range(self, start: bytes, end: bytes, table: Table = Table.LOG) -> None:
        """Remove every record from `start` up to and without `end`, however many, at the cost of one."""
        if start < end:  # RocksDB refuses a range that ends before it begins
            self.changes.append((start, (end,), table))
            self.size += len(start) + len(end)
