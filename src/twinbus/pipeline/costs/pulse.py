"""What the rows of the namespace itself tell: how many connections there were, and which minutes may be missing.

Each process writes such a row each minute. Owns: the peaks that are charged, and the lives of processes: one that did
not end in good order has lost what it counted last, and a bill has to say so.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from twinbus.pipeline.costs.kinds import IS_OWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_TOLD: Final = 1_000
"""Lives that did not end well, of which each is told; of more, the latest."""
ALIVE: Final = dt.timedelta(minutes=3)
"""Whose last row is no older is still running."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Minutes of a process that may not be counted."""

    namespace: str
    process: int
    life: str
    since: dt.datetime
    """The first minute that may be missing."""
    why: str

    def __str__(self) -> str:
        return f"{self.namespace}, process {self.process}, life {self.life}: {self.why}"


@dataclass(frozen=True, slots=True)
class Pulse:
    """Of all namespaces."""

    first: dt.datetime | None
    last: dt.datetime | None
    """Minutes of which there is a row; None where there is none."""
    lives: int
    gaps: tuple[Gap, ...]
    gap_count: int
    hourly_peaks: dict[dt.date, int]
    """By the first day of the month: the sum of the highest numbers of connections of all hours and namespaces."""


def read_pulse(passed: DataFrame, now: dt.datetime) -> Pulse:
    """Of what `one_pass` gives."""
    rows = passed.where(IS_OWN).selectExpr(
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
    has_gap = f"NOT has_ended AND last < timestamp'{now - ALIVE:%Y-%m-%d %H:%M:%S}' OR lost IS NOT NULL"
    whole = lives.selectExpr(
        "min(first) AS first",
        "max(last) AS last",
        "count(*) AS lives",
        f"count_if({has_gap}) AS gaps",
        f"max_by(struct(*), last, {MOST_TOLD}) FILTER (WHERE {has_gap}) AS told",
    ).first()
    assert whole is not None
    return Pulse(
        first=utc(whole.first),
        last=utc(whole.last),
        lives=whole.lives,
        gaps=tuple(gap for row in whole.told or () for gap in _gaps(row, now)),
        gap_count=whole.gaps,
        hourly_peaks=_hourly_peaks(rows),
    )


def _hourly_peaks(rows: DataFrame) -> dict[dt.date, int]:
    at_once = rows.groupBy("begun", "namespace").sum("peak").withColumnRenamed("sum(peak)", "peak")
    hours = at_once.selectExpr("begun div 60 AS hour", "namespace", "peak").groupBy("hour", "namespace").max("peak")
    months = hours.selectExpr("trunc(timestamp_seconds(hour * 3600), 'MONTH') AS month", "`max(peak)` AS peak")
    return {row.month: row.peak for row in months.groupBy("month").sum("peak").toDF("month", "peak").collect()}


def _gaps(row: object, now: dt.datetime) -> list[Gap]:
    life = (row.namespace, row.process, row.life)  # type: ignore[attr-defined]  # a row of Spark's
    last, lost = utc(row.last), utc(row.lost)  # type: ignore[attr-defined]
    assert last is not None
    gaps = []
    if not row.has_ended and last < now - ALIVE:  # type: ignore[attr-defined]
        why = (
            f"ended without a last word in the minute from {last:%Y-%m-%d %H:%M} UTC: "
            "the last second of a killed process is missing, and up to a minute after a power cut"
        )
        gaps.append(Gap(*life, last, why))
    if lost is not None:
        why = f"could not write for a while: minutes before {lost:%Y-%m-%d %H:%M} UTC are missing"
        gaps.append(Gap(*life, lost, why))
    return gaps


def utc(found: dt.datetime | None) -> dt.datetime | None:
    """Spark gives local times without a zone."""
    return None if found is None else found.astimezone(dt.UTC)
