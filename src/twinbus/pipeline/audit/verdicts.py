"""The verdicts: a table. The first line that is true of a message, at a destination, is the verdict on it there.

Owns: the lines, their order, and what each says. The names in `when` are facts (`facts`, `docs/pipeline-audit.md`):
`wanted` copies are due, at least one; `delivered` have arrived. Nothing is called lost that any input, had it been
there, might have shown: all lines that say unknown come before the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column


class Verdict(Enum):
    """What became of a message."""

    DELIVERED = "delivered"
    PARKED = "parked"
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class VerdictRule:
    """Of the table."""

    verdict: Verdict
    condition: str
    """An expression of Spark's SQL over facts."""
    reason: str
    """What is told; a fact in braces is put in its place."""


_D, _P, _X, _E, _C = (
    Verdict.DELIVERED,
    Verdict.PARKED,
    Verdict.DEAD_LETTERED,
    Verdict.EXPIRED,
    Verdict.CANCELLED,
)
_N, _U, _L = Verdict.NOT_SENT, Verdict.UNKNOWN, Verdict.LOST

TABLE: Final = (
    VerdictRule(_U, "message_id is null", "it has no id by which it could be found"),
    VerdictRule(
        _U,
        "outside > 0 and found >= wanted and found < wanted + outside",
        "sent outside the time asked about as well: what was found may be of those sends",
    ),
    # What was found.
    VerdictRule(_D, "size(handled) + again >= wanted", "a receiver or a capture had it"),
    VerdictRule(_D, "size(present) + again >= wanted", "it is in its entity"),
    VerdictRule(_D, "delivered >= wanted", "a receiver wanted to complete it, and it is gone"),
    VerdictRule(_P, "delivered + parked_here >= wanted", "it is in {backlog_queue}"),
    VerdictRule(_X, "delivered + parked_here + dead >= wanted", "it is in a dead-letter queue, or was"),
    VerdictRule(
        _E, "delivered + parked_here + dead + expired >= wanted", "it was seen there, and its time to live is over"
    ),
    VerdictRule(_C, "found >= wanted", "it was scheduled, and taken back"),
    # What was not to be found.
    VerdictRule(_N, "sent = 0 and perhaps = 0", "its send failed, or was rolled back"),
    # What cannot be told.
    VerdictRule(
        _U,
        "is_due_nowhere",
        "no subscription had to take it, and none is known to have: filters may have kept it out, or it is lost",
    ),
    VerdictRule(_U, "spooled_here > 0", "it went to the spool of its sender, where nobody has looked"),
    VerdictRule(_U, "not is_there", "the entity is not there, or nobody has a subscription to it"),
    VerdictRule(_U, "not is_looked_at", "nobody has looked whether it is there: {why_not_looked_at}"),
    VerdictRule(
        _U,
        "(parked_at is not null or sent = 0) and not is_backlog_looked_at",
        "nobody has looked into the backlog: {why_no_backlog}",
    ),
    VerdictRule(_U, "not is_covered", "receivers that write no journal may have had it"),
    VerdictRule(_U, "made_at > first_sent", "the entity was made after it was sent"),
    VerdictRule(_U, "gap_until >= first_sent", "{gap_why}"),
    VerdictRule(_U, "is_over and not coalesce(keeps_expired, false)", "it may have expired before anybody saw it"),
    VerdictRule(
        _U,
        "found > 0 and (coalesce(detects_duplicates, true) or is_filtered)",
        "sent {sent} times, found {found} times: the entity may have dropped the others",
    ),
    VerdictRule(
        _U, "found + perhaps_dead >= wanted", "a copy that was captured may be one that was dead-lettered, or another"
    ),
    VerdictRule(_N, "sent = 0", "its send had no answer, and it is nowhere"),
    VerdictRule(_L, "true", "it is nowhere: sent {sent} times, found {found} times"),
)


def verdict_column() -> Column:
    """The verdict of the first line that is true."""
    return _first_match([(line, f.lit(line.verdict.value)) for line in TABLE])


def reason_column() -> Column:
    """What that line says."""
    return _first_match([(line, _formatted_reason(line.reason)) for line in TABLE])


def _first_match(rules: list[tuple[VerdictRule, Column]]) -> Column:
    (last, value), *others = reversed(rules)
    assert last.condition == "true", "the last line is for all that is left"
    chosen = value
    for line, value in others:
        chosen = f.when(f.coalesce(f.expr(line.condition), f.lit(False)), value).otherwise(chosen)  # noqa: FBT003
    return chosen


def _formatted_reason(template: str) -> Column:
    """A text with the values of facts in it."""
    parts = []
    for part in template.split("{"):
        name, brace, rest = part.partition("}")
        parts += [f.coalesce(f.col(name).cast("string"), f.lit("?")), f.lit(rest)] if brace else [f.lit(part)]
    return f.concat(*parts)
