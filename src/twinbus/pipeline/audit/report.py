"""The result of an audit: counts, parked durations, and messages that need attention.

Owns the figures. Knows nothing about how commands display the figures.
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
"""Maximum number of listed messages per kind; the written report has all messages."""
EXIT_LOST: Final = 3
EXIT_UNKNOWN: Final = 4
"""Exit codes of the command."""
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
"""Columns of the written report."""


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """A message that is listed in the result."""

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
    """Statistics on how long messages for a destination were parked."""

    destination: str
    count: int
    median_ms: int
    percentile_95_ms: int
    """95th percentile."""
    max_ms: int


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of messages by destination and verdict."""
    parked_durations: list[ParkedDurations] = field(default_factory=list)
    lost: list[NamedMessage] = field(default_factory=list)
    duplicated: list[NamedMessage] = field(default_factory=list)
    """Messages that arrived more often than they were sent."""
    duplicated_count: int = 0
    sent_repeatedly: list[NamedMessage] = field(default_factory=list)
    """Messages that the application sent several times."""
    sent_repeatedly_count: int = 0
    unknown_reasons: list[tuple[str, int]] = field(default_factory=list)
    """Reasons for the verdict `unknown`, with the number of messages."""
    missing_inputs: list[str] = field(default_factory=list)
    """Gaps in the inputs, whether or not they affect a message."""
    until: dt.datetime | None = None
    """End of the audited period."""

    def count(self, verdict: Verdict) -> int:
        """Return the number of messages with a verdict, counted once per destination."""
        return sum(count for (_, verdict_name), count in self.counts.items() if verdict_name == verdict.value)

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 if no message is lost or unknown."""
        if self.count(Verdict.LOST):
            return EXIT_LOST
        return EXIT_UNKNOWN if self.count(Verdict.UNKNOWN) else 0


def summarize(judged: DataFrame, missing_inputs: list[str], until: dt.datetime) -> AuditResult:
    """Compute the figures from all judged messages."""
    counts = judged.groupBy("destination", "verdict").agg(
        f.count("*").alias("count"),
        f.count_if("is_doubled").alias("doubled"),
        f.count_if("is_sent_again").alias("again"),
    )
    rows = counts.collect()
    is_unknown = f.col("verdict") == Verdict.UNKNOWN.value
    reasons = judged.where(is_unknown).groupBy("reason").count().orderBy(f.desc("count")).limit(MAX_NAMED)
    return AuditResult(
        counts={(row.destination, row.verdict): row["count"] for row in rows},
        parked_durations=_parked_durations(judged),
        lost=_named_messages(judged, f.col("verdict") == Verdict.LOST.value),
        duplicated=_named_messages(judged, f.col("is_doubled")),
        duplicated_count=sum(row.doubled for row in rows),
        sent_repeatedly=_named_messages(judged, f.col("is_sent_again")),
        sent_repeatedly_count=sum(row.again for row in rows),
        unknown_reasons=[(row.reason, row["count"]) for row in reasons.collect()],
        missing_inputs=missing_inputs,
        until=until,
    )


def _parked_durations(judged: DataFrame) -> list[ParkedDurations]:
    parked = judged.where("parked_for_ms is not null").groupBy("destination")
    durations = parked.agg(
        f.count("*").alias("count"),
        f.percentile_approx("parked_for_ms", [0.5, 0.95], 10_000).alias("shares"),
        f.max("parked_for_ms").alias("longest"),
    )
    return [
        ParkedDurations(row.destination, row["count"], row.shares[0], row.shares[1], row.longest)
        for row in durations.orderBy("destination").collect()
    ]


def _named_messages(judged: DataFrame, condition: Column) -> list[NamedMessage]:
    first = judged.where(condition).orderBy("first_sent", "destination", "message_id").limit(MAX_NAMED)
    return [_to_named_message(row) for row in first.collect()]


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
