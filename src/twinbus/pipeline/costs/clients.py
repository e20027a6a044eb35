"""What clients' journals add to what servers counted: outages, pings that reached nobody, who messages were parked for.

Owns: the rows of journals that matter for costs, which of them make an outage, and which namespace a journal's address
is. A journal has a row for each message: they are summed by the minute, in one pass, before anything is asked of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import Window, functions

from twinbus.pipeline.journals import read_journals

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_DOWN_OUTCOMES: Final = ("failed over", "unreachable")
_UP_OUTCOME: Final = "restored"
_COUNTED_OUTCOMES: Final = ("sent", "parked", "moved back", "pinged")
_LOST_OUTCOME: Final = "rows lost"
_MAX_ADDRESSES: Final = 10_000
"""Namespaces in one set of journals."""
_CLIENT_KEY: Final = ("address", "client", "entity")
_PRIMARY_EXPRESSION: Final = "lower(substring_index(backlog_queue, '/', 1))"


@dataclass(frozen=True, slots=True)
class ClientEvents:
    """What the journals say. Each DataFrame has a column `namespace`, by the name that servers count under."""

    counted: DataFrame
    """minute, namespace, entity, client, outcome, has_failed, messages."""
    outages: DataFrame
    """namespace, entity, client, since, until; `until` is null where nobody saw the end, `seen` is when it last was."""
    totals: dict[str, int]
    """Messages, by outcome."""

    @property
    def lost_rows(self) -> int:
        """Rows that clients could not write: their disk was slower than they were."""
        return self.totals.get(_LOST_OUTCOME, 0)


def read_client_events(
    spark: SparkSession,
    folders: Sequence[str | Path],
    namespaces: Collection[str],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> ClientEvents:
    """Of the folders that clients were given as `journal_dir`. PipelineError where there is none."""
    found = read_journals(spark, *folders)
    if since is not None:
        found = found.where(found.time >= since)
    if until is not None:
        found = found.where(found.time < until)
    rows = _events_by_minute(found).persist(StorageLevel.DISK_ONLY)
    found_totals = rows.groupBy("address", "primary", "outcome").sum("messages").limit(_MAX_ADDRESSES).collect()
    totals: Counter[str] = Counter()
    for row in found_totals:
        totals[row.outcome] += row["sum(messages)"]
    rows = _with_namespace(rows, [(row.address, row.primary) for row in found_totals], namespaces)
    counted = rows.where(functions.col("outcome").isin(*_COUNTED_OUTCOMES)).selectExpr(
        "time AS minute", "namespace", "entity", "client", "outcome", "has_failed", "messages"
    )
    return ClientEvents(counted, _outages_by_client(rows), dict(totals))


def _events_by_minute(journal_rows: DataFrame) -> DataFrame:
    """A row for each change of state; for all else, one for each minute."""
    wanted = (*_DOWN_OUTCOMES, _UP_OUTCOME, *_COUNTED_OUTCOMES, _LOST_OUTCOME)
    return (
        journal_rows.where(functions.col("outcome").isin(*wanted))
        .selectExpr(
            f"IF(outcome IN {(*_DOWN_OUTCOMES, _UP_OUTCOME)}, time, date_trunc('MINUTE', time)) AS time",
            "time AS at",
            "coalesce(lower(namespace), '') AS address",
            "coalesce(client_id, '') AS client",
            "coalesce(entity, '') AS entity",
            f"{_PRIMARY_EXPRESSION} AS primary",
            "outcome",
            "outcome = 'pinged' AND reason IS NOT NULL AS has_failed",
            "count AS messages",
        )
        .groupBy("time", *_CLIENT_KEY, "primary", "outcome", "has_failed")
        .agg(functions.sum("messages").alias("messages"), functions.max("at").alias("seen"))
    )


def _with_namespace(rows: DataFrame, addresses: list[tuple[str, str | None]], namespaces: Collection[str]) -> DataFrame:
    """The path of a backlog queue begins with the primary's name; addresses that never parked are guessed."""
    known = {address: primary for address, primary in addresses if primary is not None}
    named = {name.lower(): name for name in namespaces}
    primaries = set(known.values()) & set(named)
    names = {
        address: known.get(address) or _guess_namespace(address, set(named), primaries) for address, _ in addresses
    }
    if not names:
        return rows.withColumn("namespace", functions.lit(""))
    pairs = [functions.lit(text) for address, name in names.items() for text in (address, named.get(name, name))]
    return rows.withColumn("namespace", functions.create_map(*pairs)[functions.col("address")])


def _guess_namespace(address: str, namespaces: set[str], primaries: set[str]) -> str:
    label = address.partition(".")[0].partition(":")[0]
    if label in namespaces:
        return label
    if len(primaries) == 1:
        return next(iter(primaries))
    return next(iter(namespaces)) if len(namespaces) == 1 else address


def _outages_by_client(rows: DataFrame) -> DataFrame:
    """From the first word that an entity is down to the next that it is not, for each client."""
    who = Window.partitionBy("namespace", *_CLIENT_KEY)
    in_order = who.orderBy("time")
    last_seen = Window.partitionBy("address", "client")
    states = (
        rows.withColumn("seen", functions.max("seen").over(last_seen))
        .where(functions.col("outcome").isin(*_DOWN_OUTCOMES, _UP_OUTCOME))
        .withColumn("is_down", functions.col("outcome") != _UP_OUTCOME)
    )
    before = functions.lag("is_down").over(in_order)
    changes = states.withColumn("was_down", functions.coalesce(before, functions.expr("false")))
    changes = changes.where("is_down != was_down").withColumn("until", functions.lead("time").over(in_order))
    return changes.where("is_down").selectExpr("namespace", "entity", "client", "time AS since", "until", "seen")


def merge_outages(outages: DataFrame) -> DataFrame:
    """As an operator counts them: what several clients saw of an entity at a time is one outage.

    namespace, entity, since, until, clients, is_over.
    """
    in_order = Window.partitionBy("namespace", "entity").orderBy("since")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    ends = outages.withColumn("end", functions.coalesce("until", "seen"))
    is_new = functions.col("since") > functions.max("end").over(before)
    numbered = ends.withColumn("is_new", functions.coalesce(is_new, functions.expr("true")).cast("int"))
    numbered = numbered.withColumn("number", functions.sum("is_new").over(in_order))
    return numbered.groupBy("namespace", "entity", "number").agg(
        functions.min("since").alias("since"),
        functions.max("end").alias("until"),
        functions.countDistinct("client").alias("clients"),
        functions.bool_and(functions.col("until").isNotNull()).alias("is_over"),
    )
