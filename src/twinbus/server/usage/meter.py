"""The meter of a process: all of its counters, and how many connections there are.

    counter = meter.counter("orders", "shop")
    counter.sends += 1

Owns: which counter is whose, how many there may be, and the rows that a minute comes to. Knows nothing of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.usage import COUNTS, NO_ENTITY, OTHER_ENTITY, ROWS_MAX, UsageRow, add_rows, operations
from twinbus.server.usage.counter import UsageCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from twinbus.server.auth.grants import ConnectionGrants

    # REMOVEPASS

CLIENT_ID_PROPERTY: Final = "twinbus:client-id"
"""A property of a connection."""


class ConnectionUsage:
    """Of one connection."""

    def __init__(self, meter: UsageMeter) -> None:
        """It is not open yet."""
        self._meter = meter
        self._client_name: str | None = None
        self._is_open = False
        self._counters: dict[tuple[str, str], UsageCounter] = {}

    def on_open(self, properties: Mapping[Any, object] | None) -> None:
        """The connection is there, with what its client says of itself."""
        told = (properties or {}).get(CLIENT_ID_PROPERTY)
        self._client_name = str(told) if isinstance(told, str) and told else None
        self._is_open = True
        self._meter.on_connected()

    def on_close(self) -> None:
        """The connection is over."""
        if self._is_open:
            self._is_open = False
            self._meter.on_disconnected()
        for counter in self._counters.values():
            counter.user_count -= 1
        self._counters.clear()

    def counter(self, grants: ConnectionGrants, path: str) -> UsageCounter:
        """Where a link to an entity counts."""
        client = self._client_name or _key_name(grants, path)
        found = self._counters.get((path, client))
        if found is None:
            found = self._counters[path, client] = self._meter.counter(path, client)
            found.user_count += 1
        return found


def _key_name(grants: ConnectionGrants, path: str) -> str:
    """Of the key by which it may use an entity."""
    return next((grant.key_name for grant in grants.current_grants() if grant.covers_path(path)), NO_ENTITY)


MAX_COUNTERS: Final = 50_000
"""Who comes when there are so many is counted with all others."""
MAX_CLIENT_CHARACTERS: Final = 128
_COUNTER_FIELDS: Final = COUNTS[:-1]
"""By a counter."""


class UsageMeter:
    """Of one process."""

    def __init__(self, max_counters: int = MAX_COUNTERS) -> None:
        """With `most` counters at a time."""
        self.connections = 0
        self._peak_connections = 0
        self._max_counters = max_counters
        self._counters: dict[tuple[str, str], UsageCounter] = {}
        self._overflow_counter = UsageCounter(OTHER_ENTITY, OTHER_ENTITY)

    # --- counting -----------------------------------------------------------------------------------------------------

    def counter(self, entity: str, client: str) -> UsageCounter:
        """Of a client at an entity; who keeps it for longer than a moment says so by its `users`."""
        key = (entity, client[:MAX_CLIENT_CHARACTERS])
        found = self._counters.get(key)
        if found is not None:
            return found
        if len(self._counters) >= self._max_counters:
            return self._overflow_counter
        self._counters[key] = made = UsageCounter(*key)
        return made

    def count_forwards(self, entity: str, count: int) -> None:
        """Messages were forwarded, which nobody asked for."""
        self.counter(entity, NO_ENTITY).forwards += count

    def on_connected(self) -> None:
        """There is one connection more."""
        self.connections += 1
        self._peak_connections = max(self._peak_connections, self.connections)

    def on_disconnected(self) -> None:
        """... or less."""
        self.connections -= 1

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def peak_connections(self) -> int:
        """The most there were at a time since `take_connections`."""
        return self._peak_connections

    def take_peak_connections(self) -> int:
        """The most there were at a time since this was last asked."""
        most, self._peak_connections = self._peak_connections, self.connections
        return most

    def counters(self) -> list[UsageCounter]:
        """All there are."""
        return [*self._counters.values(), self._overflow_counter]

    def totals(self) -> list[UsageRow]:
        """All that was counted by the counters there are."""
        rows = [_make_row(0, one, one.counts()) for one in self.counters()]
        return [row for row in rows if any(getattr(row, name) for name in _COUNTER_FIELDS)]

    def remove_unused(self, unchanged: Iterable[UsageCounter]) -> None:
        """Drop those of these in which nobody counts any more."""
        for one in unchanged:
            if not one.user_count and one.is_unchanged and one is not self._overflow_counter:
                self._counters.pop((one.entity, one.client), None)


def take_rows(
    counters: Sequence[UsageCounter], minute: int, max_rows: int = ROWS_MAX
) -> tuple[list[UsageRow], list[UsageCounter]]:
    """What was counted since the last time, as so many rows at most, and the counters in which nothing was.

    Of more, those with the most operations have rows for themselves. It may be called on another thread.
    """
    rows: list[UsageRow] = []
    quiet: list[UsageCounter] = []
    for one in counters:
        taken = one.take_delta()
        if taken is None:
            quiet.append(one)
        else:
            rows.append(_make_row(minute, one, taken))
    return _limit_rows(rows, max_rows), quiet


def take_partial_rows(counters: Sequence[UsageCounter], minute: int, max_rows: int = ROWS_MAX) -> list[UsageRow]:
    """What was counted since this was last asked, within a minute. It may be called on another thread."""
    rows = [_make_row(minute, one, taken) for one in counters if (taken := one.take_partial_delta()) is not None]
    return _limit_rows(rows, max_rows)


def _limit_rows(rows: list[UsageRow], max_rows: int) -> list[UsageRow]:
    if len(rows) > max_rows:
        rows.sort(key=_sort_key)
        rows[max_rows - 1 :] = [add_rows(rows[max_rows - 1 :])]
    return rows


def _sort_key(row: UsageRow) -> tuple[bool, int]:
    """The row of others is the last, whatever it has."""
    return row.entity == OTHER_ENTITY, -operations(row)


def _make_row(minute: int, counter: UsageCounter, counts: Sequence[int]) -> UsageRow:
    return UsageRow(minute, counter.entity, counter.client, "", *counts)
