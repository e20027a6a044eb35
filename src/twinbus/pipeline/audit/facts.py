"""What all evidence on a message comes to: counts, sets of sequence numbers, times.

Owns: the *facts* that verdicts are made of (`verdicts`), one row for each message at each destination. A message is
known by its destination, its id and its session; where an application has used an id several times, it is several
sends of one message, and as many copies are due. A copy is known by its sequence number there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FACT_KEY: Final = ("destination", "message_id", "session_id")


def compute_facts(evidence: DataFrame, destinations: DataFrame) -> DataFrame:
    """One row for each message that somebody has sent, or may have."""
    found = evidence.groupBy(*FACT_KEY).agg(
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
    sent = found.where("sent + perhaps + not_sent > 0")
    return _with_derived_facts(sent.join(f.broadcast(destinations), "destination"))


def _with_derived_facts(facts: DataFrame) -> DataFrame:
    """What follows from the counts and sets."""
    expressions = {
        # Copies that only a capture had: of those that are dead, and of which nobody said what their numbers were, each
        # may be one of these. It is not counted twice.
        "dead_there": "array_union(dead_here, dead_had)",
        "unnamed_dead": "greatest(0, size(dead_there) - size(dead_said))",
        "settled": "array_union(array_union(completed, tried), array_union(here, dead_said))",
        "only_captured": "array_sort(array_except(captured, settled))",
        "perhaps_dead": "least(unnamed_dead, size(only_captured))",
        "kept": "slice(only_captured, perhaps_dead + 1, size(only_captured))",
        # Copies that have come to the destination; what somebody tried to complete, and is not here, is gone.
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
        # Duplicates that the entity drops are not due.
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
