"""What the rows of the namespace itself tell: how many connections there were, and which minutes may be missing.

Each process writes such a row each minute. Owns: the peaks that are charged, and the lives of processes: one that did
not end in good order has lost what it counted last, and a bill has to say so.
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
"""Lives that did not end well, of which each is told; of more, the latest."""
MAX_ROW_AGE: Final = dt.timedelta(minutes=3)
"""Whose last row is no older is still running."""


@dataclass(frozen=True, slots=True)
class UsageGap:
    """Minutes of a process that may not be counted."""

    namespace: str
    process: int
    life: str
    since: dt.datetime
    """The first minute that may be missing."""
    reason: str

    def __str__(self) -> str:
        return f"{self.namespace}, process {self.process}, life {self.life}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ServerActivity:
    """Of all namespaces."""

    first_minute: dt.datetime | None
    last_minute: dt.datetime | None
    """Minutes of which there is a row; None where there is none."""
    process_count: int
    gaps: tuple[UsageGap, ...]
    gap_count: int
    hourly_connection_peaks: dict[dt.date, int]
    """By the first day of the month: the sum of the highest numbers of connections of all hours and namespaces."""


def read_server_activity(usage_sums: DataFrame, now: dt.datetime) -> ServerActivity:
    """Of what `one_pass` gives."""
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
    whole = lives.selectExpr(
        "min(first) AS first",
        "max(last) AS last",
        "count(*) AS lives",
        f"count_if({has_gap}) AS gaps",
        f"max_by(struct(*), last, {MAX_NAMED_GAPS}) FILTER (WHERE {has_gap}) AS told",
    ).first()
    assert whole is not None
    return ServerActivity(
        first_minute=to_utc(whole.first),
        last_minute=to_utc(whole.last),
        process_count=whole.lives,
        gaps=tuple(gap for row in whole.told or () for gap in _gaps_of_process(row, now)),
        gap_count=whole.gaps,
        hourly_connection_peaks=_hourly_connection_peaks(rows),
    )


def _hourly_connection_peaks(rows: DataFrame) -> dict[dt.date, int]:
    at_once = rows.groupBy("begun", "namespace").sum("peak").withColumnRenamed("sum(peak)", "peak")
    hours = at_once.selectExpr("begun div 60 AS hour", "namespace", "peak").groupBy("hour", "namespace").max("peak")
    months = hours.selectExpr("trunc(timestamp_seconds(hour * 3600), 'MONTH') AS month", "`max(peak)` AS peak")
    return {row.month: row.peak for row in months.groupBy("month").sum("peak").toDF("month", "peak").collect()}


def _gaps_of_process(row: object, now: dt.datetime) -> list[UsageGap]:
    life = (row.namespace, row.process, row.life)  # type: ignore[attr-defined]  # a row of Spark's
    last, lost = to_utc(row.last), to_utc(row.lost)  # type: ignore[attr-defined]
    assert last is not None
    gaps = []
    if not row.has_ended and last < now - MAX_ROW_AGE:  # type: ignore[attr-defined]
        why = (
            f"ended without a last word in the minute from {last:%Y-%m-%d %H:%M} UTC: "
            "the last second of a killed process is missing, and up to a minute after a power cut"
        )
        gaps.append(UsageGap(*life, last, why))
    if lost is not None:
        why = f"could not write for a while: minutes before {lost:%Y-%m-%d %H:%M} UTC are missing"
        gaps.append(UsageGap(*life, lost, why))
    return gaps


def to_utc(local_time: dt.datetime | None) -> dt.datetime | None:
    """Spark gives local times without a zone."""
    return None if local_time is None else local_time.astimezone(dt.UTC)
