"""Evidence from all inputs in one format: one row per statement about a message at a destination.

Owns the rules for what each input proves. The column `what` has one of these values; `number` is a sequence number at
the destination.

| what | from | meaning |
|---|---|---|
| sent | journals | a successful send (sent, scheduled, parked or spooled), or a send in a committed transaction |
| perhaps | journals | a send without a response, or a send in a transaction whose commit had no response |
| outside | journals | a send that would be `sent` or `perhaps`, but is outside the audited period |
| not sent | journals | a send that failed or was rolled back |
| from spool | journals | a spooled message was sent from the spool; the application sent it once |
| moved | journals | a syphon moved the message to the primary |
| completed | journals | a receiver completed the message, or received and deleted it |
| tried | journals | a receiver tried to complete the message, with unknown outcome |
| seen | journals | a receiver received the message, but neither tried to complete it nor dead-lettered it |
| dead-lettered | journals | a receiver dead-lettered the message; `number` is its original number |
| dead letter | journals, captures | the message was in a dead-letter queue; `number` is its number there |
| refused | journals | a syphon dead-lettered the message, or a spool refused it |
| cancelled | journals | the message was scheduled and then cancelled |
| captured | captures | the message was at the destination |
| here | inspection | the message is at the destination, or in transit to it |
| dead here | inspection | the message is in a dead-letter queue |
| parked here | inspection | the message is in a backlog queue |
| refused here | inspection | the message is in the dead-letter queue of a backlog queue |
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
"""Maximum difference between the clocks of two machines that write journals."""
_SENT_OUTCOMES: Final = ("sent", "scheduled", "parked", "spooled")
_SETTLEMENT_EVIDENCE: Final = {
    "completed": "completed",
    "received and deleted": "completed",
    "dead-lettered": "dead-lettered",
    "not completed": "tried",
}
"""Evidence for each settlement outcome at a destination; any other outcome is `seen`."""
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
    """Filter for the journal rows that an audit reads."""

    since: dt.datetime | None
    until: dt.datetime
    """`since` and `until` limit the period of the audited sends."""
    namespaces: Collection[str] = ()
    """Namespaces whose rows count (default: all)."""
    has_transactions: bool = True
    has_cancellations: bool = True
    """`has_transactions` and `has_cancellations`: whether journals contain rows about transactions and cancellations.

    If journals contain no such rows, an audit reads fewer rows.
    """


class Evidence:
    """Converter from inputs to evidence at destinations."""

    def __init__(self, spark: SparkSession, topology: Topology) -> None:
        """Create a converter. `topology` maps entities to destinations."""
        locations = [
            (_FOUND_AT, location.path, location.destination, location.role.value, None)
            for location in topology.locations
        ]
        routes = [(_SENT_TO, entity, destination, None, at) for at, (entity, destination) in enumerate(topology.routes)]
        columns = "means string, key string, destination string, role string, route int"
        self._routes = f.broadcast(spark.createDataFrame([*locations, *routes], columns))
        """Map from paths to destinations: paths of entities to which messages were sent, and paths of locations."""

    def from_journals(self, rows: DataFrame, journal_filter: JournalFilter) -> DataFrame:
        """Return evidence from client journals."""
        rows = rows.where(f.col("kind").isin("send", "settlement", "transaction", "event"))
        if journal_filter.namespaces:
            rows = rows.where(f.col("namespace").isin(*journal_filter.namespaces) | (f.col("kind") == "transaction"))
        rows = _with_transaction_outcome(rows, has_transactions=journal_filter.has_transactions)
        means = f.when(f.col("kind") == "settlement", f.lit(_FOUND_AT)).otherwise(f.lit(_SENT_TO))
        rows = rows.withColumn("key", f.lower("entity")).withColumn("means", means)
        routed_rows = rows.join(self._routes, ["key", "means"])
        with_evidence = routed_rows.where("message_id is not null or kind = 'send'").withColumn(
            "what", _evidence_of_row(journal_filter)
        )
        evidence = _select_columns(with_evidence.where("what is not null"))
        return evidence.unionByName(_cancellations(rows, routed_rows)) if journal_filter.has_cancellations else evidence

    def from_contents(self, contents: DataFrame) -> DataFrame:
        """Return evidence from the contents of the primary."""
        rows = self._join_routes(contents.where("error is null"), "place", _FOUND_AT)
        return _select_columns(rows.withColumn("what", _mapped("role", _EVIDENCE_BY_ROLE, "here")), outcome="state")

    def from_backlog(self, contents: DataFrame) -> DataFrame:
        """Return evidence from the contents of backlog queues and their dead-letter queues."""
        rows = self._join_routes(contents.where("error is null and entity is not null"), "entity", _SENT_TO)
        is_dead = f.col("place").endswith("/$deadletterqueue")
        what = f.when(is_dead, f.lit("refused here")).otherwise(f.lit("parked here"))
        return _select_columns(
            rows.withColumn("what", what), outcome="state", number=None, enqueued=None, backlog_queue="place"
        )

    def from_captures(self, captures: DataFrame) -> DataFrame:
        """Return evidence from captures."""
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
    """Return the evidence in a journal row, or null if the row says nothing about a message."""
    kind = f.col("kind")
    return (
        f.when(kind == "send", _evidence_of_send(journal_filter))
        .when(kind == "settlement", _evidence_of_settlement())
        .when(kind == "event", _mapped("outcome", _EVENT_EVIDENCE, None))
    )


def _evidence_of_send(journal_filter: JournalFilter) -> Column:
    is_in_period = f.col("time") <= f.lit(journal_filter.until)
    if journal_filter.since is not None:
        is_in_period &= f.col("time") >= f.lit(journal_filter.since)
    is_sure = f.col("outcome").isin(*_SENT_OUTCOMES) & (f.col("transaction") == "committed")
    is_not_sent = (f.col("outcome") == "failed") | (f.col("transaction") == "rolled back")
    is_from_spool = f.coalesce(f.col("reason"), f.lit("")) == FROM_SPOOL
    return (
        # A message sent from a spool after the inspection began may have been missed by the inspection, so the message
        # counts as spooled.
        f.when(is_from_spool, f.when(f.col("time") <= f.lit(journal_filter.until), f.lit("from spool")))
        .when(~is_in_period, f.when(~is_not_sent, f.lit("outside")))
        .when(is_not_sent, f.lit("not sent"))
        .when(is_sure, f.lit("sent"))
        .otherwise(f.lit("perhaps"))
    )


def _evidence_of_settlement() -> Column:
    settled = _mapped("outcome", _SETTLEMENT_EVIDENCE, "seen")
    in_doubt = f.when(settled == "completed", f.lit("tried")).otherwise(f.lit("seen"))
    return (
        f.when(f.col("role") == LocationRole.DEAD_LETTER.value, f.lit("dead letter"))
        .when(f.col("transaction") == "committed", settled)
        .when(f.col("transaction") == "rolled back", f.lit("seen"))
        .otherwise(in_doubt)
    )


def _cancellations(rows: DataFrame, routed_rows: DataFrame) -> DataFrame:
    """Return cancellations as evidence. A cancellation names only the sequence number of a scheduled message.

    A recreated entity assigns its numbers again, so a cancellation counts for earlier sends only.
    """
    cancelled = rows.where("kind = 'settlement' and outcome = 'cancelled'")
    cancelled = cancelled.groupBy("key", "sequence_number").agg(f.max("time").alias("cancelled"))
    sends = routed_rows.where("kind = 'send' and outcome = 'scheduled'").join(cancelled, ["key", "sequence_number"])
    is_later = f.col("cancelled") >= f.col("time") - f.lit(MAX_CLOCK_SKEW)
    return _select_columns(sends.where(is_later).withColumn("what", f.lit("cancelled")), number=None)


def _with_transaction_outcome(rows: DataFrame, *, has_transactions: bool) -> DataFrame:
    """Add the outcome of each row's transaction.

    The outcome is `committed` for rows without a transaction, and `unknown` if no outcome was recorded.
    """
    in_transaction = f.coalesce(f.col("reason"), f.lit("")).like(_TRANSACTION_PATTERN)
    is_over = f.col("kind") == "transaction"
    if not has_transactions:
        return rows.withColumn("transaction", f.when(in_transaction, f.lit("unknown")).otherwise(f.lit("committed")))
    outcomes = rows.where(is_over).groupBy("reason").agg(f.max("outcome").alias("transaction"))
    alone = rows.where(~is_over & ~in_transaction).withColumn("transaction", f.lit("committed"))
    inside = rows.where(~is_over & in_transaction).join(outcomes, "reason", "left")
    return alone.unionByName(inside.withColumn("transaction", f.coalesce("transaction", f.lit("unknown"))))


def _mapped(column: str, mapping: dict[str, str], default: str | None) -> Column:
    """Map the values of a column, with a default for unmapped values."""
    result = f.lit(default)
    for value, meaning in mapping.items():
        result = f.when(f.col(column) == value, f.lit(meaning)).otherwise(result)
    return result


def _select_columns(frame: DataFrame, **others: str | None) -> DataFrame:
    """Select the evidence columns. `others` maps columns to their sources; missing columns are null."""
    sources = {"number": "sequence_number" if "sequence_number" in frame.columns else "number"} | others
    types = {"number": "bigint", "time_to_live": "bigint", "time": "timestamp", "enqueued": "timestamp", "route": "int"}
    chosen = []
    for name in EVIDENCE_COLUMNS:
        source = sources.get(name, name)
        value = f.col(source) if source in frame.columns else f.lit(None)
        chosen.append(value.cast(types.get(name, "string")).alias(name))
    return frame.select(*chosen)
