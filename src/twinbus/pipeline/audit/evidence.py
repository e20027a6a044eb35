"""All that is known of messages, in one form: a row for each word and each sight, under the destination it is about.

Owns: what each input proves. `what` of a row is one of these; `number` is a sequence number at the destination.

| what | from | |
|---|---|---|
| sent | journals | a send that was reported to have succeeded: sent, scheduled, parked or spooled; or was committed |
| perhaps | journals | one that had no answer, or whose transaction had none |
| outside | journals | one of these kinds that was made outside the time asked about |
| not sent | journals | one that has not: failed, or rolled back |
| from spool | journals | what was spooled has gone on: the application sent it once |
| moved | journals | a syphon brought it to the primary |
| completed | journals | a receiver has completed it, or received and deleted it |
| tried | journals | a receiver wanted to complete it, and does not know whether that was heard |
| seen | journals | a receiver had it, and did something else |
| dead-lettered | journals | a receiver has dead-lettered it; `number` is the one it had before |
| dead letter | journals, captures | it was in a dead-letter queue; `number` is its number there |
| refused | journals | a syphon has dead-lettered it, or a spool has put it aside |
| cancelled | journals | it was scheduled, and taken back |
| captured | captures | it was at the destination |
| here | look | it is at the destination, or on its way there |
| dead here | look | it is in a dead-letter queue |
| parked here | look | it is in a backlog queue |
| refused here | look | it is in the dead-letter queue of one |
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from twinbus.client.events import FROM_SPOOL
from twinbus.pipeline.audit.topology import LocationRole

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame, SparkSession

    from twinbus.pipeline.audit.topology import Topology

EVIDENCE_COLUMNS: Final = (
    "destination",
    "message_id",
    "session_id",
    "what",
    "outcome",
    "number",
    "time",
    "enqueued",
    "time_to_live",
    "backlog_queue",
    "entity",
    "client_id",
    "route",
)
MAX_CLOCK_SKEW: Final = dt.timedelta(minutes=1)
"""By how much the clocks of two machines that write journals may differ."""
_SENT_OUTCOMES: Final = ("sent", "scheduled", "parked", "spooled")
_SETTLEMENT_EVIDENCE: Final = {
    "completed": "completed",
    "received and deleted": "completed",
    "dead-lettered": "dead-lettered",
    "not completed": "tried",
}
"""At a destination; all else was seen."""
_EVENT_EVIDENCE: Final = {"moved back": "moved", "dead-lettered": "refused", "refused from the spool": "refused"}
_SENT_TO: Final = "entity"
_FOUND_AT: Final = "place"
_TRANSACTION_PATTERN: Final = "transaction %"
_EVIDENCE_BY_ROLE: Final = {
    LocationRole.MAIN.value: "here",
    LocationRole.TRANSIT.value: "here",
    LocationRole.DEAD_LETTER.value: "dead here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFilter:
    """What of journals is asked about."""

    since: dt.datetime | None
    until: dt.datetime
    """When sends were made."""
    namespaces: Collection[str] = ()
    """Whose rows count; none named: all."""
    has_transactions: bool = True
    has_cancellations: bool = True
    """Where there are none, less has to be read."""


class Evidence:
    """What there is, joined with where it belongs."""

    def __init__(self, spark: SparkSession, topology: Topology) -> None:
        """`topology` says which entity leads where."""
        places = [(_FOUND_AT, place.path, place.destination, place.role.value, None) for place in topology.locations]
        routes = [(_SENT_TO, entity, destination, None, at) for at, (entity, destination) in enumerate(topology.routes)]
        columns = "means string, key string, destination string, role string, route int"
        self._routes = f.broadcast(spark.createDataFrame([*places, *routes], columns))
        """From a path to destinations: one that was sent to, or one at which something was found."""

    def from_journals(self, rows: DataFrame, journal_filter: JournalFilter) -> DataFrame:
        """What clients wrote down."""
        rows = rows.where(f.col("kind").isin("send", "settlement", "transaction", "event"))
        if journal_filter.namespaces:
            rows = rows.where(f.col("namespace").isin(*journal_filter.namespaces) | (f.col("kind") == "transaction"))
        rows = _with_transaction_outcome(rows, has_transactions=journal_filter.has_transactions)
        means = f.when(f.col("kind") == "settlement", f.lit(_FOUND_AT)).otherwise(f.lit(_SENT_TO))
        rows = rows.withColumn("key", f.lower("entity")).withColumn("means", means)
        found = rows.join(self._routes, ["key", "means"])
        told = found.where("message_id is not null or kind = 'send'").withColumn(
            "what", _evidence_of_row(journal_filter)
        )
        evidence = _select_columns(told.where("what is not null"))
        return evidence.unionByName(_cancellations(rows, found)) if journal_filter.has_cancellations else evidence

    def from_contents(self, contents: DataFrame) -> DataFrame:
        """What is at places of the primary."""
        found = self._join_routes(contents.where("error is null"), "place", _FOUND_AT)
        return _select_columns(found.withColumn("what", _mapped("role", _EVIDENCE_BY_ROLE, "here")), outcome="state")

    def from_backlog(self, contents: DataFrame) -> DataFrame:
        """What is in backlog queues, and in their dead-letter queues."""
        found = self._join_routes(contents.where("error is null and entity is not null"), "entity", _SENT_TO)
        is_dead = f.col("place").endswith("/$deadletterqueue")
        what = f.when(is_dead, f.lit("refused here")).otherwise(f.lit("parked here"))
        return _select_columns(
            found.withColumn("what", what), outcome="state", number=None, enqueued=None, backlog_queue="place"
        )

    def from_captures(self, captures: DataFrame) -> DataFrame:
        """What was captured."""
        is_dead = f.col("role") == LocationRole.DEAD_LETTER.value
        what = f.when(is_dead, f.lit("dead letter")).otherwise(f.lit("captured"))
        return _select_columns(self._join_routes(captures, "place", _FOUND_AT).withColumn("what", what))

    def _join_routes(self, frame: DataFrame, column: str, means: str) -> DataFrame:
        return (
            frame.withColumn("key", f.col(column))
            .withColumn("means", f.lit(means))
            .join(self._routes, ["key", "means"])
        )


# --- journals ---------------------------------------------------------------------------------------------------------


def _evidence_of_row(journal_filter: JournalFilter) -> Column:
    """What a row says; null where it says nothing of a message."""
    kind = f.col("kind")
    return (
        f.when(kind == "send", _evidence_of_send(journal_filter))
        .when(kind == "settlement", _evidence_of_settlement())
        .when(kind == "event", _mapped("outcome", _EVENT_EVIDENCE, None))
    )


def _evidence_of_send(journal_filter: JournalFilter) -> Column:
    is_asked_about = f.col("time") <= f.lit(journal_filter.until)
    if journal_filter.since is not None:
        is_asked_about &= f.col("time") >= f.lit(journal_filter.since)
    is_sure = f.col("outcome").isin(*_SENT_OUTCOMES) & (f.col("transaction") == "committed")
    is_not_sent = (f.col("outcome") == "failed") | (f.col("transaction") == "rolled back")
    is_from_spool = f.coalesce(f.col("reason"), f.lit("")) == FROM_SPOOL
    return (
        # What went on from a spool after the look began may have come behind it: it counts as spooled.
        f.when(is_from_spool, f.when(f.col("time") <= f.lit(journal_filter.until), f.lit("from spool")))
        .when(~is_asked_about, f.when(~is_not_sent, f.lit("outside")))
        .when(is_not_sent, f.lit("not sent"))
        .when(is_sure, f.lit("sent"))
        .otherwise(f.lit("perhaps"))
    )


def _evidence_of_settlement() -> Column:
    said = _mapped("outcome", _SETTLEMENT_EVIDENCE, "seen")
    in_doubt = f.when(said == "completed", f.lit("tried")).otherwise(f.lit("seen"))
    return (
        f.when(f.col("role") == LocationRole.DEAD_LETTER.value, f.lit("dead letter"))
        .when(f.col("transaction") == "committed", said)
        .when(f.col("transaction") == "rolled back", f.lit("seen"))
        .otherwise(in_doubt)
    )


def _cancellations(rows: DataFrame, routed_rows: DataFrame) -> DataFrame:
    """Cancellations name a number only: the send that was given that number says which message it was.

    An entity that was deleted and created again gives out its numbers again, so a cancellation counts for earlier
    sends only.
    """
    cancelled = rows.where("kind = 'settlement' and outcome = 'cancelled'")
    cancelled = cancelled.groupBy("key", "sequence_number").agg(f.max("time").alias("cancelled"))
    sends = routed_rows.where("kind = 'send' and outcome = 'scheduled'").join(cancelled, ["key", "sequence_number"])
    is_later = f.col("cancelled") >= f.col("time") - f.lit(MAX_CLOCK_SKEW)
    return _select_columns(sends.where(is_later).withColumn("what", f.lit("cancelled")), number=None)


def _with_transaction_outcome(rows: DataFrame, *, has_transactions: bool) -> DataFrame:
    """Each row with what became of its transaction: `committed` where it is in none, `unknown` if nobody said."""
    names_one = f.coalesce(f.col("reason"), f.lit("")).like(_TRANSACTION_PATTERN)
    is_over = f.col("kind") == "transaction"
    if not has_transactions:
        return rows.withColumn("transaction", f.when(names_one, f.lit("unknown")).otherwise(f.lit("committed")))
    over = rows.where(is_over).groupBy("reason").agg(f.max("outcome").alias("transaction"))
    alone = rows.where(~is_over & ~names_one).withColumn("transaction", f.lit("committed"))
    inside = rows.where(~is_over & names_one).join(over, "reason", "left")
    return alone.unionByName(inside.withColumn("transaction", f.coalesce("transaction", f.lit("unknown"))))


def _mapped(column: str, mapping: dict[str, str], default: str | None) -> Column:
    """What each word means."""
    found = f.lit(default)
    for word, meaning in mapping.items():
        found = f.when(f.col(column) == word, f.lit(meaning)).otherwise(found)
    return found


def _select_columns(frame: DataFrame, **others: str | None) -> DataFrame:
    """The columns that all evidence has: by their names, or by another; null where there is none."""
    named = {"number": "sequence_number" if "sequence_number" in frame.columns else "number"} | others
    types = {"number": "bigint", "time_to_live": "bigint", "time": "timestamp", "enqueued": "timestamp", "route": "int"}
    chosen = []
    for name in EVIDENCE_COLUMNS:
        source = named.get(name, name)
        found = f.col(source) if source in frame.columns else f.lit(None)
        chosen.append(found.cast(types.get(name, "string")).alias(name))
    return frame.select(*chosen)
