"""Progress of one task: moved messages by backlog queue and destination.

Owns a task's counts and the current problems of its pumps. Knows nothing of how counts reach the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.client.pairing import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.client.pairing import PairingEvent

COUNTED_EVENTS: Final = frozenset(
    {
        EventKind.DEAD_LETTERED,
        EventKind.DEFERRED,
        EventKind.DESTINATION_REFUSES,
        EventKind.PUMP_STARTED,
        EventKind.PUMP_DISPLACED,
        EventKind.PUMP_FAILED,
    }
)
"""Events about problems and dead-lettered messages.

Creating an event for each moved message would be too slow, so moved messages are counted directly.
"""
MAX_DESTINATIONS: Final = 10_000
"""Maximum number of destinations that a task counts by name, because senders can invent any number of paths."""
OTHER_DESTINATIONS: Final = "(other)"
MAX_PROBLEM_LENGTH: Final = 500


class MovedCount(NamedTuple):
    """Counts of messages from one backlog queue to one destination."""

    backlog_queue: str
    destination: str | None
    """Path of the destination, or None for dead-lettered messages whose destination is unknown."""
    moved: int
    dead_lettered: int
    first_ms: int | None
    """Wall-clock time of the first counted message."""
    last_ms: int | None


class TaskProgress:
    """Counts and problems of one task."""

    def __init__(self, queues: Iterable[str]) -> None:
        """Create empty counts for the given backlog queues."""
        self._counts: dict[tuple[str, str | None], list[int]] = {}
        """Moved count, dead-lettered count, first time and last time."""
        self._changed_keys: set[tuple[str, str | None]] = set()
        self.problems: dict[str, str] = dict.fromkeys(queues, "")
        """Current problem of each backlog queue's pump, or of its messages for one destination; "" if none."""
        self._problem_destinations: dict[str, str] = {}
        """Destination affected by the problem of each backlog queue."""
        self._reported_problems: dict[str, str] = {}

    def on_event(self, event: PairingEvent) -> None:
        """Count a dead-lettered message, or record a problem."""
        queue = event.backlog_queue or ""
        if event.kind is EventKind.DEAD_LETTERED:
            self._count((queue, event.path), 1, event.at_ms)
        elif event.path is None:
            self._problem_destinations.pop(queue, None)
            self.problems[queue] = (event.reason or "")[:MAX_PROBLEM_LENGTH]
        elif event.reason is not None:  # otherwise an earlier message has reported the reason
            self._problem_destinations[queue] = event.path
            self.problems[queue] = f"'{event.path}': {event.reason}"[:MAX_PROBLEM_LENGTH]

    def count_moved(self, queue: str, destination: str, at_ms: int) -> None:
        """Count a moved message, and clear a problem with its destination."""
        if self._problem_destinations and self._problem_destinations.get(queue) == destination:
            del self._problem_destinations[queue]
            self.problems[queue] = ""
        self._count((queue, destination), 0, at_ms)

    def _count(self, key: tuple[str, str | None], column: int, at_ms: int) -> None:
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= MAX_DESTINATIONS:
                key = (key[0], OTHER_DESTINATIONS)
            counts = self._counts.setdefault(key, [0, 0, at_ms, at_ms])
        counts[column] += 1
        counts[3] = at_ms
        self._changed_keys.add(key)

    def rows(self) -> list[MovedCount]:
        """Return all counts, with a row of zeros for each backlog queue without counts."""
        rows = [MovedCount(*key, *counts) for key, counts in self._counts.items()]
        idle = self.problems.keys() - {row.backlog_queue for row in rows}
        return rows + [MovedCount(queue, None, 0, 0, None, None) for queue in sorted(idle)]

    def take_changes(self) -> tuple[list[MovedCount], dict[str, str]]:
        """Return the counts and problems that have changed since the last call. Counts are totals, not differences."""
        rows = [MovedCount(*key, *self._counts[key]) for key in self._changed_keys]
        problems = {
            queue: text for queue, text in self.problems.items() if self._reported_problems.get(queue, "") != text
        }
        self._changed_keys.clear()
        self._reported_problems.update(problems)
        return rows, problems
