"""What an audit tells: counts, how long messages were parked, and the messages that need somebody's attention.

Owns: the figures. How they are shown is the command's affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from twinbus.pipeline.audit.verdicts import Verdict

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import Column, DataFrame, Row

NAMED: Final = 20
"""Messages of a kind that are named; the report has all."""
LOST: Final = 3
UNKNOWN: Final = 4
"""Exit codes."""
COLUMNS: Final = (
    "destination",
    "message_id",
    "session_id",
    "verdict",
    "reason",
    "sent",
    "perhaps",
    "came",
    "is_doubled",
    "is_sent_again",
    "entity",
    "client_id",
    "first_sent",
    "last_sent",
    "backlog_queue",
    "parked_at",
    "parked_until",
    "parked_for_ms",
    "arrived",
    "dead_here",
)
"""Of the report."""


@dataclass(frozen=True, slots=True)
class Named:
    """A message that is told by name."""

    destination: str
    message_id: str
    session_id: str | None
    sent: int
    came: int
    first_sent: dt.datetime | None
    client_id: str | None
    numbers: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Parked:
    """How long the messages for a destination were parked."""

    destination: str
    count: int
    median_ms: int
    most_ms: int
    """Of 95 in 100."""
    longest_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of an audit."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """By destination and verdict."""
    parked: list[Parked] = field(default_factory=list)
    lost: list[Named] = field(default_factory=list)
    doubled: list[Named] = field(default_factory=list)
    """Came more often than they were sent."""
    doubled_count: int = 0
    sent_again: list[Named] = field(default_factory=list)
    """Sent several times, by the application."""
    sent_again_count: int = 0
    unknown: list[tuple[str, int]] = field(default_factory=list)
    """Why, and how many."""
    missing: list[str] = field(default_factory=list)
    """What is not known of the inputs, whether it matters to a message or not."""
    until: dt.datetime | None = None
    """Later sends were not asked about."""

    def count(self, verdict: Verdict) -> int:
        """Messages, each at each destination."""
        return sum(count for (_, found), count in self.counts.items() if found == verdict.value)

    @property
    def exit_code(self) -> int:
        """0: nothing is lost."""
        if self.count(Verdict.LOST):
            return LOST
        return UNKNOWN if self.count(Verdict.UNKNOWN) else 0


def summarize(judged: DataFrame, missing: list[str], until: dt.datetime) -> Outcome:
    """The figures of all messages."""
    counts = judged.groupBy("destination", "verdict").agg(
        f.count("*").alias("count"),
        f.count_if("is_doubled").alias("doubled"),
        f.count_if("is_sent_again").alias("again"),
    )
    found = counts.collect()
    is_unknown = f.col("verdict") == Verdict.UNKNOWN.value
    reasons = judged.where(is_unknown).groupBy("reason").count().orderBy(f.desc("count")).limit(NAMED)
    return Outcome(
        counts={(one.destination, one.verdict): one["count"] for one in found},
        parked=_parked(judged),
        lost=_named(judged, f.col("verdict") == Verdict.LOST.value),
        doubled=_named(judged, f.col("is_doubled")),
        doubled_count=sum(one.doubled for one in found),
        sent_again=_named(judged, f.col("is_sent_again")),
        sent_again_count=sum(one.again for one in found),
        unknown=[(one.reason, one["count"]) for one in reasons.collect()],
        missing=missing,
        until=until,
    )


def _parked(judged: DataFrame) -> list[Parked]:
    found = judged.where("parked_for_ms is not null").groupBy("destination")
    told = found.agg(
        f.count("*").alias("count"),
        f.percentile_approx("parked_for_ms", [0.5, 0.95], 10_000).alias("shares"),
        f.max("parked_for_ms").alias("longest"),
    )
    return [
        Parked(one.destination, one["count"], one.shares[0], one.shares[1], one.longest)
        for one in told.orderBy("destination").collect()
    ]


def _named(judged: DataFrame, condition: Column) -> list[Named]:
    first = judged.where(condition).orderBy("first_sent", "destination", "message_id").limit(NAMED)
    return [_name(one) for one in first.collect()]


def _name(row: Row) -> Named:
    return Named(
        row.destination,
        row.message_id,
        row.session_id,
        row.sent,
        row.came,
        row.first_sent,
        row.client_id,
        tuple(sorted(row.arrived)),
        row.reason,
    )
