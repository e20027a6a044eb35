"""The report: what was moved from which backlog queue to which destination, and what is left.

Owns: the counts of a round, put together from what tasks yielded and, of those that were lost, from what they told
last; the columns; and their way into Parquet.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.syphon.driver_connection import TaskId
    from twinbus.pipeline.syphon.progress import MovedCount
    from twinbus.pipeline.syphon.task import TaskResult

SCHEMA: Final = (
    "backlogQueue string not null, destination string, moved bigint not null, deadLettered bigint not null,"
    " left bigint, firstMoved timestamp, lastMoved timestamp, attempts int not null, exact boolean not null,"
    " ended string not null"
)


class ReportRow(NamedTuple):
    """Of one backlog queue and one destination."""

    backlog_queue: str
    destination: str | None
    """None: nothing was moved, or dead-lettered messages from which nobody can tell where they belong."""
    moved: int
    dead_lettered: int
    left: int | None
    """In the backlog queue, for whatever destination; None: it could not be asked."""
    first_moved: dt.datetime | None
    last_moved: dt.datetime | None
    attempts: int
    """Tasks that were started for the backlog queue."""
    is_exact: bool
    """False: a task was lost, and what it moved in its last moment is not counted."""
    end_reason: str
    """Why."""


class RoundCounts:
    """Of one round."""

    def __init__(self, groups: Sequence[tuple[str, ...]]) -> None:
        """The backlog queues of each task."""
        self._groups = groups
        self._counts_by_task: dict[TaskId, dict[tuple[str, str | None], MovedCount]] = {}
        self._finished_tasks: set[TaskId] = set()
        self.problems: dict[str, str] = {}
        self.moved = 0
        self.dead_lettered = 0

    @property
    def tasks(self) -> Iterable[TaskId]:
        """All tasks that were ever heard of."""
        return self._counts_by_task.keys()

    def update(self, task_id: TaskId, rows: Iterable[MovedCount], problems: Mapping[str, str]) -> None:
        """What a task has told, or yielded: each count takes the place of the one before."""
        known = self._counts_by_task.setdefault(task_id, {})
        for row in rows:
            before = known.get((row.backlog_queue, row.destination))
            self.moved += row.moved - (before.moved if before else 0)
            self.dead_lettered += row.dead_lettered - (before.dead_lettered if before else 0)
            known[row.backlog_queue, row.destination] = row
        self.problems.update(problems)

    def finish(self, results: Iterable[TaskResult]) -> None:
        """What tasks yielded at their end: these counts are exact."""
        for one in results:
            self.update(one.task_id, [one.moved], {})
            self._finished_tasks.add(one.task_id)

    def rows(self, left: Mapping[str, int] | None, reason: str) -> list[ReportRow]:
        """The report of this round."""
        return [
            self._row(group, queue, destination, left, reason)
            for group, queues in enumerate(self._groups)
            for queue in sorted(queues)
            for destination in self._destinations(queue)
        ]

    def _destinations(self, queue: str) -> list[str | None]:
        found = {place for known in self._counts_by_task.values() for path, place in known if path == queue}
        counted = {place for place in found if place is not None or self._counts_of(queue, None)}
        return sorted(counted, key=lambda place: place or "") or [None]

    def _counts_of(self, queue: str, destination: str | None) -> list[MovedCount]:
        parts = [known[queue, destination] for known in self._counts_by_task.values() if (queue, destination) in known]
        return [part for part in parts if part.moved or part.dead_lettered]

    def _row(
        self, group: int, queue: str, destination: str | None, left: Mapping[str, int] | None, reason: str
    ) -> ReportRow:
        parts = self._counts_of(queue, destination)
        callers = {caller for caller in self._counts_by_task if caller.group == group}
        still = None if left is None else left.get(queue, 0)
        return ReportRow(
            queue,
            destination,
            sum(part.moved for part in parts),
            sum(part.dead_lettered for part in parts),
            still,
            _to_datetime(min((part.first_ms for part in parts if part.first_ms is not None), default=None)),
            _to_datetime(max((part.last_ms for part in parts if part.last_ms is not None), default=None)),
            len(callers),
            callers <= self._finished_tasks,
            "empty" if still == 0 else self.problems.get(queue) or reason,
        )


@dataclass
class Report:
    """Of a whole run."""

    rows: list[ReportRow] = field(default_factory=list)
    """One for each backlog queue and destination."""
    is_finished: bool = False
    """There is nothing more to do: the backlog queues were found empty."""
    reason: str = ""
    """Why it ended."""
    write_error: str | None = None
    """Why the report could not be written."""

    @property
    def moved(self) -> int:
        """Messages that are back."""
        return sum(row.moved for row in self.rows)

    @property
    def dead_lettered(self) -> int:
        """Messages that nobody will ever take."""
        return sum(row.dead_lettered for row in self.rows)

    @property
    def left(self) -> int | None:
        """Messages that are still parked; None: it could not be asked."""
        found = {row.backlog_queue: row.left for row in self.rows}
        known = [count for count in found.values() if count is not None]
        return sum(known) if len(known) == len(found) else None

    def add_round(self, rows: Sequence[ReportRow]) -> None:
        """Those of one more round."""
        found = {(row.backlog_queue, row.destination): row for row in self.rows}
        before = {row.backlog_queue: row for row in self.rows}
        for row in rows:
            key = (row.backlog_queue, row.destination)
            found[key] = _sum_rows(found[key], row) if key in found else row
        now = {row.backlog_queue: row for row in rows}
        moved_from = {queue for queue, destination in found if destination is not None}
        self.rows = [
            _with_queue_state(row, before.get(row.backlog_queue), now.get(row.backlog_queue))
            for row in found.values()
            if row.destination is not None or row.dead_lettered or row.backlog_queue not in moved_from
        ]


def to_data_frame(spark: SparkSession, rows: Iterable[ReportRow]) -> DataFrame:
    """The report, to Spark."""
    return spark.createDataFrame(list(rows), SCHEMA)


def write_report(spark: SparkSession, rows: Iterable[ReportRow], folder: str) -> None:
    """Add it to the Parquet files of a folder, or of whatever place Spark knows."""
    to_data_frame(spark, rows).coalesce(1).write.mode("append").parquet(folder)


def _sum_rows(one: ReportRow, other: ReportRow) -> ReportRow:
    return other._replace(
        moved=one.moved + other.moved,
        dead_lettered=one.dead_lettered + other.dead_lettered,
        first_moved=min((at for at in (one.first_moved, other.first_moved) if at is not None), default=None),
        last_moved=max((at for at in (one.last_moved, other.last_moved) if at is not None), default=None),
    )


def _with_queue_state(row: ReportRow, previous: ReportRow | None, current: ReportRow | None) -> ReportRow:
    """With what is the same in all rows of a backlog queue: `before` and `now` are any of them."""
    if previous is None or current is None:
        return row
    attempts, exact = previous.attempts + current.attempts, previous.is_exact and current.is_exact
    return row._replace(left=current.left, attempts=attempts, is_exact=exact, end_reason=current.end_reason)


def _to_datetime(milliseconds: int | None) -> dt.datetime | None:
    return None if milliseconds is None else dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
