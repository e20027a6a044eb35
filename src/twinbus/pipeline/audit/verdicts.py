"""The table of verdicts: the first rule that applies to a message at a destination gives the verdict.

Owns the rules, their order and their reasons. The names in conditions are facts (`compute_facts`,
`docs/pipeline-audit.md`): `wanted` is the number of copies that must be found, at least one, and `delivered` is the
number of copies that have arrived. A message is called lost only if no missing input could have shown otherwise: all
rules with the verdict `unknown` come before the last rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FACT_KEY: Final = ("destination", "message_id", "session_id")


def compute_facts(evidence: DataFrame, destinations: DataFrame) -> DataFrame:
    """Return one row of facts for each message that was or may have been sent."""
    facts = evidence.groupBy(*FACT_KEY).agg(
        _count_of("sent").alias("sent"),
        _count_of("perhaps").alias("perhaps"),
        _count_of("not sent").alias("not_sent"),
        _count_of("outside").alias("outside"),
        f.size(f.collect_set(f.when(f.col("what") == "sent", f.col("route")))).alias("routes"),
        f.min(_time_of("sent", "perhaps", "not sent")).alias("first_sent"),
        f.max(_time_of("sent", "perhaps", "not sent")).alias("last_sent"),
        f.max("time").alias("last_word"),
        f.max("time_to_live").alias("time_to_live"),
        f.min_by("entity", _time_of("sent", "perhaps", "not sent")).alias("entity"),
        f.min_by(f.when(f.col("what") == "sent", f.col("client_id")), "time").alias("client_id"),
        f.count_if((f.col("outcome") == "spooled") & (f.col("what") == "sent")).alias("spooled"),
        _count_of("from spool").alias("unspooled"),
        f.min(f.when(f.col("outcome") == "parked", f.col("time"))).alias("parked_at"),
        f.max("backlog_queue").alias("backlog_queue"),
        f.min(_time_of("moved")).alias("moved_at"),
        f.max("enqueued").alias("enqueued"),
        _count_of("parked here").alias("parked_here"),
        _numbers_of("completed").alias("completed"),
        _count_of("completed").alias("completions"),
        _numbers_of("captured").alias("captured"),
        _numbers_of("tried").alias("tried"),
        _numbers_of("here").alias("here"),
        _numbers_of("seen").alias("seen"),
        _numbers_of("dead here").alias("dead_here"),
        _numbers_of("dead-lettered").alias("dead_said"),
        _numbers_of("dead letter").alias("dead_had"),
        _count_of("refused").alias("refused"),
        _count_of("refused here").alias("refused_here"),
        _count_of("cancelled").alias("cancelled"),
    )
    sent = facts.where("sent + perhaps + not_sent > 0")
    return _with_derived_facts(sent.join(f.broadcast(destinations), "destination"))


def _with_derived_facts(facts: DataFrame) -> DataFrame:
    """Add the facts that follow from the counts and sets."""
    expressions = {
        # Copies found only in a capture. A dead letter with an unknown original number may be one of these copies, so
        # it is not counted twice.
        "dead_there": "array_union(dead_here, dead_had)",
        "unnamed_dead": "greatest(0, size(dead_there) - size(dead_said))",
        "settled": "array_union(array_union(completed, tried), array_union(here, dead_said))",
        "only_captured": "array_sort(array_except(captured, settled))",
        "perhaps_dead": "least(unnamed_dead, size(only_captured))",
        "kept": "slice(only_captured, perhaps_dead + 1, size(only_captured))",
        # Copies that have arrived at the destination. If a receiver tried to complete a copy that is no longer there,
        # the copy counts as arrived.
        "handled": "array_union(completed, kept)",
        "present": "array_union(handled, here)",
        "arrived": "if(is_looked_at, array_union(present, tried), present)",
        "again": "greatest(0, completions - size(completed))",
        "delivered": "size(arrived) + again",
        "came": "delivered + size(dead_here)",
        "dead": "greatest(size(dead_there), size(dead_said)) + greatest(refused, refused_here)",
        "lives_ms": "least(time_to_live, longest_life)",
        "is_over": "coalesce(unix_millis(last_word) + lives_ms < unix_millis(looked_at), false)",
        "seen_and_gone": "size(array_except(array_except(seen, arrived), array_union(dead_said, dead_had)))",
        "expired": "if(is_over and not coalesce(keeps_expired, false), seen_and_gone, 0)",
        "calls": "cast(sent / greatest(routes, 1) as bigint)",
        # Duplicates that the entity drops are not expected to arrive.
        "span_ms": "unix_millis(last_sent) - unix_millis(first_sent)",
        "drops": "coalesce(detects_duplicates and span_ms <= duplicate_window, false)",
        "due": "if(drops, least(sent, 1), sent)",
        "wanted": "greatest(due, 1)",
        "found": "delivered + parked_here + dead + expired + cancelled",
        "spooled_here": "greatest(0, spooled - unspooled)",
        "parked_until": "if(parked_here > 0, looked_at, coalesce(moved_at, enqueued))",
        "parked_ms": "unix_millis(parked_until) - unix_millis(parked_at)",
        "parked_for_ms": "if(parked_ms < 0, 0, parked_ms)",
        "is_doubled": "came > sent + perhaps + outside and sent + perhaps > 0",
        "is_sent_again": "calls > 1",
    }
    for name, expression in expressions.items():
        facts = facts.withColumn(name, f.expr(expression))
    return facts


def _count_of(evidence_kind: str) -> Column:
    return f.count_if(f.col("what") == evidence_kind)


def _numbers_of(evidence_kind: str) -> Column:
    return f.collect_set(f.when(f.col("what") == evidence_kind, f.col("number")))


def _time_of(*evidence_kinds: str) -> Column:
    return f.when(f.col("what").isin(*evidence_kinds), f.col("time"))


class Verdict(Enum):
    """The outcome of a message."""

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
    """A rule of the table."""

    verdict: Verdict
    condition: str
    """Spark SQL expression over facts."""
    reason: str
    """Text in the report; a fact in braces is replaced by its value."""


_D, _P, _X, _E, _C = (
    Verdict.DELIVERED,
    Verdict.PARKED,
    Verdict.DEAD_LETTERED,
    Verdict.EXPIRED,
    Verdict.CANCELLED,
)
_N, _U, _L = Verdict.NOT_SENT, Verdict.UNKNOWN, Verdict.LOST

TABLE: Final = (
    VerdictRule(_U, "message_id is null", "the message has no id to search for"),
    VerdictRule(
        _U,
        "outside > 0 and found >= wanted and found < wanted + outside",
        "also sent outside the audited period: the copies found may be from those sends",
    ),
    # The message was found.
    VerdictRule(_D, "size(handled) + again >= wanted", "a receiver or a capture received it"),
    VerdictRule(_D, "size(present) + again >= wanted", "it is in its entity"),
    VerdictRule(_D, "delivered >= wanted", "a receiver tried to complete it, and it is gone"),
    VerdictRule(_P, "delivered + parked_here >= wanted", "it is in {backlog_queue}"),
    VerdictRule(_X, "delivered + parked_here + dead >= wanted", "it is or was in a dead-letter queue"),
    VerdictRule(
        _E, "delivered + parked_here + dead + expired >= wanted", "it was seen there, and its time to live has expired"
    ),
    VerdictRule(_C, "found >= wanted", "it was scheduled and then cancelled"),
    # The message was not expected.
    VerdictRule(_N, "sent = 0 and perhaps = 0", "its send failed or was rolled back"),
    # The outcome cannot be determined.
    VerdictRule(
        _U,
        "is_due_nowhere",
        "no subscription must have it, and none is known to: filters may have rejected it, or it is lost",
    ),
    VerdictRule(_U, "spooled_here > 0", "it is in the spool of its sender, which was not inspected"),
    VerdictRule(_U, "not is_there", "the entity does not exist, or has no subscriptions"),
    VerdictRule(_U, "not is_looked_at", "the entity was not inspected: {why_not_looked_at}"),
    VerdictRule(
        _U,
        "(parked_at is not null or sent = 0) and not is_backlog_looked_at",
        "the backlog was not inspected: {why_no_backlog}",
    ),
    VerdictRule(_U, "not is_covered", "receivers without a journal may have received it"),
    VerdictRule(_U, "made_at > first_sent", "the entity was created after the send"),
    VerdictRule(_U, "gap_until >= first_sent", "{gap_why}"),
    VerdictRule(_U, "is_over and not coalesce(keeps_expired, false)", "it may have expired before a receiver saw it"),
    VerdictRule(
        _U,
        "found > 0 and (coalesce(detects_duplicates, true) or is_filtered)",
        "sent {sent} times, found {found} times: the entity may have dropped the others",
    ),
    VerdictRule(_U, "found + perhaps_dead >= wanted", "a captured copy may be the dead-lettered one or another"),
    VerdictRule(_N, "sent = 0", "its send had no answer, and it was not found"),
    VerdictRule(_L, "true", "copies are missing: sent {sent} times, found {found} times"),
)


def verdict_column() -> Column:
    """Return the verdict of the first rule that is true."""
    return _first_match([(rule, f.lit(rule.verdict.value)) for rule in TABLE])


def reason_column() -> Column:
    """Return the reason of the first rule that is true."""
    return _first_match([(rule, _formatted_reason(rule.reason)) for rule in TABLE])


def _first_match(rules: list[tuple[VerdictRule, Column]]) -> Column:
    (last, value), *others = reversed(rules)
    assert last.condition == "true", "the last rule applies to all remaining messages"
    chosen = value
    for rule, value in others:
        chosen = f.when(f.coalesce(f.expr(rule.condition), f.lit(False)), value).otherwise(chosen)  # noqa: FBT003
    return chosen


def _formatted_reason(template: str) -> Column:
    """Return the template with the values of facts filled in."""
    parts = []
    for part in template.split("{"):
        name, brace, rest = part.partition("}")
        parts += [f.coalesce(f.col(name).cast("string"), f.lit("?")), f.lit(rest)] if brace else [f.lit(part)]
    return f.concat(*parts)
