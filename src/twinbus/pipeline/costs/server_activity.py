"""Activity of server processes: connections, and minutes whose usage may be missing.

Each process writes a row for the namespace itself every minute. Owns the hourly connection peaks, which are charged,
and the detection of gaps. A process that exited unexpectedly lost its last counts, and the report must say so.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from twinbus.pipeline.costs.operation_kinds import IS_NAMESPACE_ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_NAMED_GAPS: Final = 1_000
"""Maximum number of listed process runs with gaps. If there are more, the latest runs are listed."""
MAX_ROW_AGE: Final = dt.timedelta(minutes=3)
"""A process whose last row is not older than this is considered running."""


@dataclass(frozen=True, slots=True)
class UsageGap:
    """Minutes for which a process's usage may be missing."""

    namespace: str
    process: int
    life: str
    since: dt.datetime
    """First minute that may be missing."""
    reason: str

    def __str__(self) -> str:
        return f"{self.namespace}, process {self.process}, life {self.life}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ServerActivity:
    """Activity of the servers of all namespaces."""

    first_minute: dt.datetime | None
    last_minute: dt.datetime | None
    """`first_minute` and `last_minute`: first and last minute with a row, or None if there are no rows."""
    process_count: int
    gaps: tuple[UsageGap, ...]
    gap_count: int
    hourly_connection_peaks: dict[dt.date, int]
    """Sum of the hourly connection peaks of all namespaces, by first day of the month."""


def read_server_activity(usage_sums: DataFrame, now: dt.datetime) -> ServerActivity:
    """Read the activity from the result of `sum_usage`."""
    rows = usage_sums.where(IS_NAMESPACE_ROW).selectExpr(
        "timestamp_seconds(begun * 60) AS minute",
        "namespace",
        "process",
        "life",
        "has_ended",
        "has_lost",
        "peak",
        "begun",
    )
    lives = rows.groupBy("namespace", "process", "life").agg(
        functions.expr("min(minute) AS first"),
        functions.expr("max(minute) AS last"),
        functions.expr("max_by(has_ended, minute) AS has_ended"),
        functions.expr("max(IF(has_lost, minute, NULL)) AS lost"),
    )
    has_gap = f"NOT has_ended AND last < timestamp'{now - MAX_ROW_AGE:%Y-%m-%d %H:%M:%S}' OR lost IS NOT NULL"
    totals = lives.selectExpr(
        "min(first) AS first",
        "max(last) AS last",
        "count(*) AS lives",
        f"count_if({has_gap}) AS gaps",
        f"max_by(struct(*), last, {MAX_NAMED_GAPS}) FILTER (WHERE {has_gap}) AS told",
    ).first()
    assert totals is not None
    return ServerActivity(
        first_minute=to_utc(totals.first),
        last_minute=to_utc(totals.last),
        process_count=totals.lives,
        gaps=tuple(gap for row in totals.told or () for gap in _gaps_of_process(row, now)),
        gap_count=totals.gaps,
        hourly_connection_peaks=_hourly_connection_peaks(rows),
    )


def _hourly_connection_peaks(rows: DataFrame) -> dict[dt.date, int]:
    by_minute = rows.groupBy("begun", "namespace").sum("peak").withColumnRenamed("sum(peak)", "peak")
    hours = by_minute.selectExpr("begun div 60 AS hour", "namespace", "peak").groupBy("hour", "namespace").max("peak")
    months = hours.selectExpr("trunc(timestamp_seconds(hour * 3600), 'MONTH') AS month", "`max(peak)` AS peak")
    return {row.month: row.peak for row in months.groupBy("month").sum("peak").toDF("month", "peak").collect()}


def _gaps_of_process(row: object, now: dt.datetime) -> list[UsageGap]:
    process_run = (row.namespace, row.process, row.life)  # type: ignore[attr-defined]  # a Spark row
    last, lost = to_utc(row.last), to_utc(row.lost)  # type: ignore[attr-defined]
    assert last is not None
    gaps = []
    if not row.has_ended and last < now - MAX_ROW_AGE:  # type: ignore[attr-defined]
        reason = (
            f"ended unexpectedly in the minute from {last:%Y-%m-%d %H:%M} UTC: "
            "up to a second of usage is missing after a kill, and up to a minute after a power cut"
        )
        gaps.append(UsageGap(*process_run, last, reason))
    if lost is not None:
        reason = f"could not write for a while: minutes before {lost:%Y-%m-%d %H:%M} UTC are missing"
        gaps.append(UsageGap(*process_run, lost, reason))
    return gaps


def to_utc(local_time: dt.datetime | None) -> dt.datetime | None:
    """Convert Spark's local time without a zone to UTC."""
    return None if local_time is None else local_time.astimezone(dt.UTC)
