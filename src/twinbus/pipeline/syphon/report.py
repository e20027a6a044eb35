"""The report on a run: messages moved from each backlog queue to each destination, and messages left.

Owns the counts for a round, the report's columns and its Parquet output. Counts come from task results, or from the
last progress report of a lost task.
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
    """Counts for one backlog queue and one destination."""

    backlog_queue: str
    destination: str | None
    """Path of the destination; None if nothing was moved, or for dead-lettered messages without a known destination."""
    moved: int
    dead_lettered: int
    left: int | None
    """Messages left in the backlog queue, for all destinations; None if the secondary was unreachable."""
    first_moved: dt.datetime | None
    last_moved: dt.datetime | None
    attempts: int
    """Number of tasks that were started for the backlog queue."""
    is_exact: bool
    """False if a task was lost, so that the last messages it moved may not be counted."""
    end_reason: str
    """Reason why the round ended for this backlog queue."""


class RoundCounts:
    """Counts for one round."""

    def __init__(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Create empty counts. `groups` are the backlog queues of each task."""
        self._groups = groups
        self._counts_by_task: dict[TaskId, dict[tuple[str, str | None], MovedCount]] = {}
        self._finished_tasks: set[TaskId] = set()
        self.problems: dict[str, str] = {}
        self.moved = 0
        self.dead_lettered = 0

    @property
    def tasks(self) -> Iterable[TaskId]:
        """All tasks that have connected to the driver."""
        return self._counts_by_task.keys()

    def update(self, task_id: TaskId, rows: Iterable[MovedCount], problems: Mapping[str, str]) -> None:
        """Replace the counts of a task with the counts in its report or result."""
        task_counts = self._counts_by_task.setdefault(task_id, {})
        for row in rows:
            previous = task_counts.get((row.backlog_queue, row.destination))
            self.moved += row.moved - (previous.moved if previous else 0)
            self.dead_lettered += row.dead_lettered - (previous.dead_lettered if previous else 0)
            task_counts[row.backlog_queue, row.destination] = row
        self.problems.update(problems)

    def finish(self, results: Iterable[TaskResult]) -> None:
        """Add the results of finished tasks, whose counts are exact."""
        for result in results:
            self.update(result.task_id, [result.moved], {})
            self._finished_tasks.add(result.task_id)

    def rows(self, left: Mapping[str, int] | None, reason: str) -> list[ReportRow]:
        """Return the report on this round."""
        return [
            self._row(group, queue, destination, left, reason)
            for group, queues in enumerate(self._groups)
            for queue in sorted(queues)
            for destination in self._destinations(queue)
        ]

    def _destinations(self, queue: str) -> list[str | None]:
        destinations = {
            destination
            for task_counts in self._counts_by_task.values()
            for backlog_queue, destination in task_counts
            if backlog_queue == queue
        }
        counted = {
            destination for destination in destinations if destination is not None or self._counts_of(queue, None)
        }
        return sorted(counted, key=lambda destination: destination or "") or [None]

    def _counts_of(self, queue: str, destination: str | None) -> list[MovedCount]:
        parts = [
            task_counts[queue, destination]
            for task_counts in self._counts_by_task.values()
            if (queue, destination) in task_counts
        ]
        return [part for part in parts if part.moved or part.dead_lettered]

    def _row(
        self, group: int, queue: str, destination: str | None, left: Mapping[str, int] | None, reason: str
    ) -> ReportRow:
        parts = self._counts_of(queue, destination)
        task_ids = {task_id for task_id in self._counts_by_task if task_id.group == group}
        queue_left = None if left is None else left.get(queue, 0)
        return ReportRow(
            queue,
            destination,
            sum(part.moved for part in parts),
            sum(part.dead_lettered for part in parts),
            queue_left,
            _to_datetime(min((part.first_ms for part in parts if part.first_ms is not None), default=None)),
            _to_datetime(max((part.last_ms for part in parts if part.last_ms is not None), default=None)),
            len(task_ids),
            task_ids <= self._finished_tasks,
            "empty" if queue_left == 0 else self.problems.get(queue) or reason,
        )


@dataclass
class Report:
    """Report on a whole run."""

    rows: list[ReportRow] = field(default_factory=list)
    """Rows by backlog queue and destination."""
    is_finished: bool = False
    """Whether all backlog queues were found empty."""
    reason: str = ""
    """Reason why the run stopped."""
    write_error: str | None = None
    """Reason why the report could not be written, or None."""

    @property
    def moved(self) -> int:
        """Number of messages returned to the primary."""
        return sum(row.moved for row in self.rows)

    @property
    def dead_lettered(self) -> int:
        """Number of messages dead-lettered in the backlog queues."""
        return sum(row.dead_lettered for row in self.rows)

    @property
    def left(self) -> int | None:
        """Number of messages still parked, or None if the secondary was unreachable."""
        left_by_queue = {row.backlog_queue: row.left for row in self.rows}
        counts = [count for count in left_by_queue.values() if count is not None]
        return sum(counts) if len(counts) == len(left_by_queue) else None

    def add_round(self, rows: Sequence[ReportRow]) -> None:
        """Add the rows for one more round."""
        merged = {(row.backlog_queue, row.destination): row for row in self.rows}
        previous = {row.backlog_queue: row for row in self.rows}
        for row in rows:
            key = (row.backlog_queue, row.destination)
            merged[key] = _sum_rows(merged[key], row) if key in merged else row
        current = {row.backlog_queue: row for row in rows}
        moved_from = {queue for queue, destination in merged if destination is not None}
        self.rows = [
            _with_queue_state(row, previous.get(row.backlog_queue), current.get(row.backlog_queue))
            for row in merged.values()
            if row.destination is not None or row.dead_lettered or row.backlog_queue not in moved_from
        ]


def to_data_frame(spark: SparkSession, rows: Iterable[ReportRow]) -> DataFrame:
    """Return the report as a DataFrame."""
    return spark.createDataFrame(list(rows), SCHEMA)


def write_report(spark: SparkSession, rows: Iterable[ReportRow], folder: str) -> None:
    """Append the report to Parquet files in a folder or at any location that Spark supports."""
    to_data_frame(spark, rows).coalesce(1).write.mode("append").parquet(folder)


def _sum_rows(earlier: ReportRow, later: ReportRow) -> ReportRow:
    return later._replace(
        moved=earlier.moved + later.moved,
        dead_lettered=earlier.dead_lettered + later.dead_lettered,
        first_moved=min((at for at in (earlier.first_moved, later.first_moved) if at is not None), default=None),
        last_moved=max((at for at in (earlier.last_moved, later.last_moved) if at is not None), default=None),
    )


def _with_queue_state(row: ReportRow, previous: ReportRow | None, current: ReportRow | None) -> ReportRow:
    """Set the values that all rows of a backlog queue share.

    `previous` is a row of the queue from the earlier rounds, and `current` is a row of the queue from the new round.
    """
    if previous is None or current is None:
        return row
    attempts, exact = previous.attempts + current.attempts, previous.is_exact and current.is_exact
    return row._replace(left=current.left, attempts=attempts, is_exact=exact, end_reason=current.end_reason)


def _to_datetime(milliseconds: int | None) -> dt.datetime | None:
    return None if milliseconds is None else dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
