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

MAX_NAMED: Final = 20
"""Messages of a kind that are named; the report has all."""
EXIT_LOST: Final = 3
EXIT_UNKNOWN: Final = 4
"""Exit codes."""
REPORT_COLUMNS: Final = (
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
class NamedMessage:
    """A message that is told by name."""

    destination: str
    message_id: str
    session_id: str | None
    sent_count: int
    arrived_count: int
    first_sent: dt.datetime | None
    client_id: str | None
    sequence_numbers: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ParkedDurations:
    """How long the messages for a destination were parked."""

    destination: str
    count: int
    median_ms: int
    percentile_95_ms: int
    """Of 95 in 100."""
    max_ms: int


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Of an audit."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """By destination and verdict."""
    parked_durations: list[ParkedDurations] = field(default_factory=list)
    lost: list[NamedMessage] = field(default_factory=list)
    duplicated: list[NamedMessage] = field(default_factory=list)
    """Came more often than they were sent."""
    duplicated_count: int = 0
    sent_repeatedly: list[NamedMessage] = field(default_factory=list)
    """Sent several times, by the application."""
    sent_repeatedly_count: int = 0
    unknown_reasons: list[tuple[str, int]] = field(default_factory=list)
    """Why, and how many."""
    missing_inputs: list[str] = field(default_factory=list)
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
            return EXIT_LOST
        return EXIT_UNKNOWN if self.count(Verdict.UNKNOWN) else 0


def summarize(judged: DataFrame, missing_inputs: list[str], until: dt.datetime) -> AuditResult:
    """The figures of all messages."""
    counts = judged.groupBy("destination", "verdict").agg(
        f.count("*").alias("count"),
        f.count_if("is_doubled").alias("doubled"),
        f.count_if("is_sent_again").alias("again"),
    )
    found = counts.collect()
    is_unknown = f.col("verdict") == Verdict.UNKNOWN.value
    reasons = judged.where(is_unknown).groupBy("reason").count().orderBy(f.desc("count")).limit(MAX_NAMED)
    return AuditResult(
        counts={(one.destination, one.verdict): one["count"] for one in found},
        parked_durations=_parked_durations(judged),
        lost=_named_messages(judged, f.col("verdict") == Verdict.LOST.value),
        duplicated=_named_messages(judged, f.col("is_doubled")),
        duplicated_count=sum(one.doubled for one in found),
        sent_repeatedly=_named_messages(judged, f.col("is_sent_again")),
        sent_repeatedly_count=sum(one.again for one in found),
        unknown_reasons=[(one.reason, one["count"]) for one in reasons.collect()],
        missing_inputs=missing_inputs,
        until=until,
    )


def _parked_durations(judged: DataFrame) -> list[ParkedDurations]:
    found = judged.where("parked_for_ms is not null").groupBy("destination")
    told = found.agg(
        f.count("*").alias("count"),
        f.percentile_approx("parked_for_ms", [0.5, 0.95], 10_000).alias("shares"),
        f.max("parked_for_ms").alias("longest"),
    )
    return [
        ParkedDurations(one.destination, one["count"], one.shares[0], one.shares[1], one.longest)
        for one in told.orderBy("destination").collect()
    ]


def _named_messages(judged: DataFrame, condition: Column) -> list[NamedMessage]:
    first = judged.where(condition).orderBy("first_sent", "destination", "message_id").limit(MAX_NAMED)
    return [_to_named_message(one) for one in first.collect()]


def _to_named_message(row: Row) -> NamedMessage:
    return NamedMessage(
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
