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

    from twinbus.pipeline.syphon.line import Caller
    from twinbus.pipeline.syphon.tally import Moved
    from twinbus.pipeline.syphon.task import Yielded

SCHEMA: Final = (
    "backlogQueue string not null, destination string, moved bigint not null, deadLettered bigint not null,"
    " left bigint, firstMoved timestamp, lastMoved timestamp, attempts int not null, exact boolean not null,"
    " ended string not null"
)


class Row(NamedTuple):
    """Of one backlog queue and one destination."""

    backlog_queue: str
    destination: str | None
    """None: nothing was moved, or dead-lettered messages from which nobody can tell where they belong."""
    moved: int
    dead_lettered: int
    left: int | None
    """In the backlog queue, for whatever destination; None: it could not be asked."""
    first: dt.datetime | None
    last: dt.datetime | None
    attempts: int
    """Tasks that were started for the backlog queue."""
    exact: bool
    """False: a task was lost, and what it moved in its last moment is not counted."""
    ended: str
    """Why."""


class Ledger:
    """Of one round."""

    def __init__(self, groups: Sequence[tuple[str, ...]]) -> None:
        """The backlog queues of each task."""
        self._groups = groups
        self._heard: dict[Caller, dict[tuple[str, str | None], Moved]] = {}
        self._concluded: set[Caller] = set()
        self.troubles: dict[str, str] = {}
        self.moved = 0
        self.dead_lettered = 0

    @property
    def callers(self) -> Iterable[Caller]:
        """All tasks that were ever heard of."""
        return self._heard.keys()

    def hear(self, caller: Caller, rows: Iterable[Moved], troubles: Mapping[str, str]) -> None:
        """What a task has told, or yielded: each count takes the place of the one before."""
        known = self._heard.setdefault(caller, {})
        for row in rows:
            before = known.get((row.backlog_queue, row.destination))
            self.moved += row.moved - (before.moved if before else 0)
            self.dead_lettered += row.dead_lettered - (before.dead_lettered if before else 0)
            known[row.backlog_queue, row.destination] = row
        self.troubles.update(troubles)

    def conclude(self, yielded: Iterable[Yielded]) -> None:
        """What tasks yielded at their end: these counts are exact."""
        for one in yielded:
            self.hear(one.caller, [one.moved], {})
            self._concluded.add(one.caller)

    def rows(self, left: Mapping[str, int] | None, why: str) -> list[Row]:
        """The report of this round."""
        return [
            self._row(group, queue, destination, left, why)
            for group, queues in enumerate(self._groups)
            for queue in sorted(queues)
            for destination in self._destinations(queue)
        ]

    def _destinations(self, queue: str) -> list[str | None]:
        found = {place for known in self._heard.values() for path, place in known if path == queue}
        counted = {place for place in found if place is not None or self._parts(queue, None)}
        return sorted(counted, key=lambda place: place or "") or [None]

    def _parts(self, queue: str, destination: str | None) -> list[Moved]:
        parts = [known[queue, destination] for known in self._heard.values() if (queue, destination) in known]
        return [part for part in parts if part.moved or part.dead_lettered]

    def _row(self, group: int, queue: str, destination: str | None, left: Mapping[str, int] | None, why: str) -> Row:
        parts = self._parts(queue, destination)
        callers = {caller for caller in self._heard if caller.group == group}
        still = None if left is None else left.get(queue, 0)
        return Row(
            queue,
            destination,
            sum(part.moved for part in parts),
            sum(part.dead_lettered for part in parts),
            still,
            _moment(min((part.first_ms for part in parts if part.first_ms is not None), default=None)),
            _moment(max((part.last_ms for part in parts if part.last_ms is not None), default=None)),
            len(callers),
            callers <= self._concluded,
            "empty" if still == 0 else self.troubles.get(queue) or why,
        )


@dataclass
class Report:
    """Of a whole run."""

    rows: list[Row] = field(default_factory=list)
    """One for each backlog queue and destination."""
    is_over: bool = False
    """There is nothing more to do: the backlog queues were found empty."""
    why: str = ""
    """Why it ended."""
    failure: str | None = None
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

    def add(self, rows: Sequence[Row]) -> None:
        """Those of one more round."""
        found = {(row.backlog_queue, row.destination): row for row in self.rows}
        before = {row.backlog_queue: row for row in self.rows}
        for row in rows:
            key = (row.backlog_queue, row.destination)
            found[key] = _sum(found[key], row) if key in found else row
        now = {row.backlog_queue: row for row in rows}
        moved_from = {queue for queue, destination in found if destination is not None}
        self.rows = [
            _of_queue(row, before.get(row.backlog_queue), now.get(row.backlog_queue))
            for row in found.values()
            if row.destination is not None or row.dead_lettered or row.backlog_queue not in moved_from
        ]


def frame_of(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """The report, to Spark."""
    return spark.createDataFrame(list(rows), SCHEMA)


def write(spark: SparkSession, rows: Iterable[Row], place: str) -> None:
    """Add it to the Parquet files of a folder, or of whatever place Spark knows."""
    frame_of(spark, rows).coalesce(1).write.mode("append").parquet(place)


def _sum(one: Row, other: Row) -> Row:
    return other._replace(
        moved=one.moved + other.moved,
        dead_lettered=one.dead_lettered + other.dead_lettered,
        first=min((at for at in (one.first, other.first) if at is not None), default=None),
        last=max((at for at in (one.last, other.last) if at is not None), default=None),
    )


def _of_queue(row: Row, before: Row | None, now: Row | None) -> Row:
    """With what is the same in all rows of a backlog queue: `before` and `now` are any of them."""
    if before is None or now is None:
        return row
    attempts, exact = before.attempts + now.attempts, before.exact and now.exact
    return row._replace(left=now.left, attempts=attempts, exact=exact, ended=now.ended)


def _moment(milliseconds: int | None) -> dt.datetime | None:
    return None if milliseconds is None else dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
