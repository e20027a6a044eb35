"""A process's meter: all of its counters, and the number of connections.

    counter = meter.counter("orders", "shop")
    counter.sends += 1

Owns: the assignment of counters to entities and clients, the limit on the number of counters, and the rows for a
minute. Knows nothing of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.usage import COUNTS, NO_ENTITY, OTHER_ENTITY, ROWS_MAX, UsageRow, add_rows, operations
from twinbus.server.usage.counter import UsageCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from twinbus.server.auth.grants import ConnectionGrants


CLIENT_ID_PROPERTY: Final = "twinbus:client-id"
"""A connection property with the client id under which usage is counted."""


class ConnectionUsage:
    """The counters that one connection uses."""

    def __init__(self, meter: UsageMeter) -> None:
        """Create the usage for a connection that is not open yet."""
        self._meter = meter
        self._client_name: str | None = None
        self._is_open = False
        self._counters: dict[tuple[str, str], UsageCounter] = {}

    def on_open(self, properties: Mapping[Any, object] | None) -> None:
        """Count the connection as open, and remember the client id in its properties."""
        client_id = (properties or {}).get(CLIENT_ID_PROPERTY)
        self._client_name = str(client_id) if isinstance(client_id, str) and client_id else None
        self._is_open = True
        self._meter.on_connected()

    def on_close(self) -> None:
        """Count the connection as closed, and release its counters."""
        if self._is_open:
            self._is_open = False
            self._meter.on_disconnected()
        for counter in self._counters.values():
            counter.user_count -= 1
        self._counters.clear()

    def counter(self, grants: ConnectionGrants, path: str) -> UsageCounter:
        """Return the counter for a link to an entity."""
        client = self._client_name or _key_name(grants, path)
        counter = self._counters.get((path, client))
        if counter is None:
            counter = self._counters[path, client] = self._meter.counter(path, client)
            counter.user_count += 1
        return counter


def _key_name(grants: ConnectionGrants, path: str) -> str:
    """Return the name of the key that gives access to an entity."""
    return next((grant.key_name for grant in grants.current_grants() if grant.covers_path(path)), NO_ENTITY)


MAX_COUNTERS: Final = 50_000
"""When there are this many counters, further clients and entities share one counter."""
MAX_CLIENT_CHARACTERS: Final = 128
_COUNTER_FIELDS: Final = COUNTS[:-1]
"""The columns that a counter provides: all except connections."""


class UsageMeter:
    """The counters of one process."""

    def __init__(self, max_counters: int = MAX_COUNTERS) -> None:
        """Create a meter with up to `max_counters` counters at a time."""
        self.connections = 0
        self._peak_connections = 0
        self._max_counters = max_counters
        self._counters: dict[tuple[str, str], UsageCounter] = {}
        self._overflow_counter = UsageCounter(OTHER_ENTITY, OTHER_ENTITY)

    # --- counting -----------------------------------------------------------------------------------------------------

    def counter(self, entity: str, client: str) -> UsageCounter:
        """Return the counter for a client and an entity. A caller that keeps the counter increments `user_count`."""
        key = (entity, client[:MAX_CLIENT_CHARACTERS])
        existing = self._counters.get(key)
        if existing is not None:
            return existing
        if len(self._counters) >= self._max_counters:
            return self._overflow_counter
        self._counters[key] = counter = UsageCounter(*key)
        return counter

    def count_forwards(self, entity: str, count: int) -> None:
        """Count messages that the broker forwarded; they belong to no client."""
        self.counter(entity, NO_ENTITY).forwards += count

    def on_connected(self) -> None:
        """Count a new connection."""
        self.connections += 1
        self._peak_connections = max(self._peak_connections, self.connections)

    def on_disconnected(self) -> None:
        """Count a connection as closed."""
        self.connections -= 1

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def peak_connections(self) -> int:
        """The largest number of connections since the last `take_peak_connections`."""
        return self._peak_connections

    def take_peak_connections(self) -> int:
        """Return the largest number of connections since the last call."""
        peak, self._peak_connections = self._peak_connections, self.connections
        return peak

    def counters(self) -> list[UsageCounter]:
        """Return all counters."""
        return [*self._counters.values(), self._overflow_counter]

    def totals(self) -> list[UsageRow]:
        """Return a row with the totals for each counter that is not zero."""
        rows = [_make_row(0, counter, counter.counts()) for counter in self.counters()]
        return [row for row in rows if any(getattr(row, name) for name in _COUNTER_FIELDS)]

    def remove_unused(self, unchanged: Iterable[UsageCounter]) -> None:
        """Remove those `unchanged` counters that are still unchanged and have no users."""
        for counter in unchanged:
            if not counter.user_count and counter.is_unchanged and counter is not self._overflow_counter:
                self._counters.pop((counter.entity, counter.client), None)


def take_rows(
    counters: Sequence[UsageCounter], minute: int, max_rows: int = ROWS_MAX
) -> tuple[list[UsageRow], list[UsageCounter]]:
    """Return up to `max_rows` rows with the increments since the last call, and the counters without increments.

    If there are more rows, those with the most operations are kept and the remaining rows are added up. The write
    thread calls this function.
    """
    rows: list[UsageRow] = []
    unchanged: list[UsageCounter] = []
    for counter in counters:
        delta = counter.take_delta()
        if delta is None:
            unchanged.append(counter)
        else:
            rows.append(_make_row(minute, counter, delta))
    return _limit_rows(rows, max_rows), unchanged


def take_partial_rows(counters: Sequence[UsageCounter], minute: int, max_rows: int = ROWS_MAX) -> list[UsageRow]:
    """Return rows with the increments since the last call within a minute. The write thread calls this function."""
    rows = [_make_row(minute, one, delta) for one in counters if (delta := one.take_partial_delta()) is not None]
    return _limit_rows(rows, max_rows)


def _limit_rows(rows: list[UsageRow], max_rows: int) -> list[UsageRow]:
    if len(rows) > max_rows:
        rows.sort(key=_sort_key)
        rows[max_rows - 1 :] = [add_rows(rows[max_rows - 1 :])]
    return rows


def _sort_key(row: UsageRow) -> tuple[bool, int]:
    """Order rows by operations, the row of the shared counter last."""
    return row.entity == OTHER_ENTITY, -operations(row)


def _make_row(minute: int, counter: UsageCounter, counts: Sequence[int]) -> UsageRow:
    return UsageRow(minute, counter.entity, counter.client, "", *counts)
