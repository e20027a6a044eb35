"""What was moved, counted: by backlog queue and destination.

Owns: the counts of one task, and what hinders its pumps. Knows nothing of how a count gets to the driver.
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
"""What hinders, or is counted beside what is moved: of that there is no event, for there are so many."""
MAX_DESTINATIONS: Final = 10_000
"""Of a task, by name; others are counted together: paths come from messages, and a sender can invent any number."""
OTHER_DESTINATIONS: Final = "(other)"
MAX_PROBLEM_LENGTH: Final = 500


class MovedCount(NamedTuple):
    """Between one backlog queue and one destination."""

    backlog_queue: str
    destination: str | None
    """None for what was dead-lettered because nobody can tell where it belongs."""
    moved: int
    dead_lettered: int
    first_ms: int | None
    """Of the wall clock."""
    last_ms: int | None


class TaskProgress:
    """Of one task."""

    def __init__(self, queues: Iterable[str]) -> None:
        """Nothing was moved."""
        self._counts: dict[tuple[str, str | None], list[int]] = {}
        """Moved, dead-lettered, first and last time."""
        self._changed_keys: set[tuple[str, str | None]] = set()
        self.problems: dict[str, str] = dict.fromkeys(queues, "")
        """What hinders each pump now, or the messages for one destination; empty where nothing does."""
        self._problem_destinations: dict[str, str] = {}
        """Of each backlog queue, the destination that its trouble is about."""
        self._reported_problems: dict[str, str] = {}

    def on_event(self, event: PairingEvent) -> None:
        """Count it, or remember what hinders."""
        queue = event.backlog_queue or ""
        if event.kind is EventKind.DEAD_LETTERED:
            self._count((queue, event.path), 1, event.at_ms)
        elif event.path is None:
            self._problem_destinations.pop(queue, None)
            self.problems[queue] = (event.reason or "")[:MAX_PROBLEM_LENGTH]
        elif event.reason is not None:  # else the message waits behind another, whose reason is told
            self._problem_destinations[queue] = event.path
            self.problems[queue] = f"'{event.path}': {event.reason}"[:MAX_PROBLEM_LENGTH]

    def count_moved(self, queue: str, destination: str, at_ms: int) -> None:
        """One more."""
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
        """All that was counted; one row that says so for a queue from which nothing was moved."""
        rows = [MovedCount(*key, *counts) for key, counts in self._counts.items()]
        idle = self.problems.keys() - {row.backlog_queue for row in rows}
        return rows + [MovedCount(queue, None, 0, 0, None, None) for queue in sorted(idle)]

    def take_changes(self) -> tuple[list[MovedCount], dict[str, str]]:
        """What has changed since this was asked last: counts, each as it is now, and troubles."""
        rows = [MovedCount(*key, *self._counts[key]) for key in self._changed_keys]
        troubles = {
            queue: text for queue, text in self.problems.items() if self._reported_problems.get(queue, "") != text
        }
        self._changed_keys.clear()
        self._reported_problems.update(troubles)
        return rows, troubles
