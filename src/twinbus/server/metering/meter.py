"""The meter of a process: all of its counters, and how many connections there are.

    counter = meter.counter("orders", "shop")
    counter.sends += 1

Owns: which counter is whose, how many there may be, and the rows that a minute comes to. Knows nothing of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.usage import COUNTS, NAMESPACE, OTHER, ROWS_MAX, UsageRow, add_rows, operations
from twinbus.server.metering.counter import Counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COUNTERS_MAX: Final = 50_000
"""Who comes when there are so many is counted with all others."""
CLIENT_MAX_CHARACTERS: Final = 128
_COUNTED: Final = COUNTS[:-1]
"""By a counter."""


class Meter:
    """Of one process."""

    def __init__(self, most: int = COUNTERS_MAX) -> None:
        """With `most` counters at a time."""
        self.connections = 0
        self._most_connections = 0
        self._most = most
        self._counters: dict[tuple[str, str], Counter] = {}
        self._others = Counter(OTHER, OTHER)

    # --- counting -----------------------------------------------------------------------------------------------------

    def counter(self, entity: str, client: str) -> Counter:
        """Of a client at an entity; who keeps it for longer than a moment says so by its `users`."""
        key = (entity, client[:CLIENT_MAX_CHARACTERS])
        found = self._counters.get(key)
        if found is not None:
            return found
        if len(self._counters) >= self._most:
            return self._others
        self._counters[key] = made = Counter(*key)
        return made

    def count_forwards(self, entity: str, count: int) -> None:
        """Messages were forwarded, which nobody asked for."""
        self.counter(entity, NAMESPACE).forwards += count

    def connected(self) -> None:
        """There is one connection more."""
        self.connections += 1
        self._most_connections = max(self._most_connections, self.connections)

    def disconnected(self) -> None:
        """... or less."""
        self.connections -= 1

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def most_connections(self) -> int:
        """The most there were at a time since `take_connections`."""
        return self._most_connections

    def take_connections(self) -> int:
        """The most there were at a time since this was last asked."""
        most, self._most_connections = self._most_connections, self.connections
        return most

    def counters(self) -> list[Counter]:
        """All there are."""
        return [*self._counters.values(), self._others]

    def totals(self) -> list[UsageRow]:
        """All that was counted by the counters there are."""
        rows = [_row(0, one, one.counts()) for one in self.counters()]
        return [row for row in rows if any(getattr(row, name) for name in _COUNTED)]

    def forget(self, quiet: Iterable[Counter]) -> None:
        """Drop those of these in which nobody counts any more."""
        for one in quiet:
            if not one.users and one.is_quiet and one is not self._others:
                self._counters.pop((one.entity, one.client), None)


def take_rows(counters: Sequence[Counter], minute: int, most: int = ROWS_MAX) -> tuple[list[UsageRow], list[Counter]]:
    """What was counted since the last time, as so many rows at most, and the counters in which nothing was.

    Of more, those with the most operations have rows for themselves. It may be called on another thread.
    """
    rows: list[UsageRow] = []
    quiet: list[Counter] = []
    for one in counters:
        taken = one.take()
        if taken is None:
            quiet.append(one)
        else:
            rows.append(_row(minute, one, taken))
    return _at_most(rows, most), quiet


def take_partial_rows(counters: Sequence[Counter], minute: int, most: int = ROWS_MAX) -> list[UsageRow]:
    """What was counted since this was last asked, within a minute. It may be called on another thread."""
    rows = [_row(minute, one, taken) for one in counters if (taken := one.take_partial()) is not None]
    return _at_most(rows, most)


def _at_most(rows: list[UsageRow], most: int) -> list[UsageRow]:
    if len(rows) > most:
        rows.sort(key=_weight)
        rows[most - 1 :] = [add_rows(rows[most - 1 :])]
    return rows


def _weight(row: UsageRow) -> tuple[bool, int]:
    """The row of others is the last, whatever it has."""
    return row.entity == OTHER, -operations(row)


def _row(minute: int, counter: Counter, counts: Sequence[int]) -> UsageRow:
    return UsageRow(minute, counter.entity, counter.client, "", *counts)
