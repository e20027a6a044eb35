"""The journal of a store that another process has: nothing is written here, but it says whether that can be done there.

Owns: what is known of the store's state, and how much is on its way to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.journal import Journal
from twinbus.broker.remote.owner import AWAY
from twinbus.store.changes import Changes
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from twinbus.broker.clock import Clock, Timers
    from twinbus.broker.remote.owner import Owner
    from twinbus.store.protocol import Answer, Batch, Row


class ElsewhereStore:
    """A store that cannot be used from here. Whoever comes to it has forgotten to ask its owner."""

    def __init__(self, name: str) -> None:
        """As its owner calls it."""
        self.name = name

    def batch(self) -> Batch:
        """One that nobody commits."""
        return Changes()

    def commit(self, batch: Batch, done: Answer[None]) -> None:
        """It is elsewhere."""
        raise AssertionError(self.name, batch, done)

    def get(self, keys: Sequence[bytes], done: Answer[list[bytes | None]], table: Table = Table.LOG) -> None:
        """It is elsewhere."""
        raise AssertionError(self.name, keys, done, table)

    def scan(
        self,
        start: bytes,
        end: bytes,
        done: Answer[list[Row]],
        *,
        limit: int,
        max_bytes: int = 0,
        table: Table = Table.LOG,
    ) -> None:
        """It is elsewhere."""
        raise AssertionError(self.name, start, end, done, limit, max_bytes, table)

    def checkpoint(self, directory: Path, done: Answer[None]) -> None:
        """It is elsewhere."""
        raise AssertionError(self.name, directory, done)

    def close(self, done: Answer[None]) -> None:
        """There is nothing to close."""
        done(None)


class RemoteJournal(Journal):
    """What one process knows of another one's store."""

    def __init__(
        self, name: str, number: int, owner: Owner, *, clock: Clock, timers: Timers, max_pending_bytes: int
    ) -> None:
        """Not there until its owner is. `number` is the store's."""
        super().__init__(
            ElsewhereStore(name),
            clock=clock,
            timers=timers,
            defer=_never,
            timeout_s=0.0,
            max_pending_bytes=max_pending_bytes,
            on_failed=_nobody,
        )
        self.owner = owner
        self.trouble = None if owner.is_there else AWAY
        self.reported: str | None = None
        """Why the store does not work, as its owner said last."""
        owner.journals[number] = self


def _never(_call: Callable[[], None]) -> None:
    """Nothing is gathered here."""


def _nobody(_journal: Journal) -> None:
    """It cannot fail here."""
