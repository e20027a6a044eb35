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

from twinbus.pipeline.journals import journals

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_DOWN: Final = ("failed over", "unreachable")
_UP: Final = "restored"
_COUNTED: Final = ("sent", "parked", "moved back", "pinged")
_LOST: Final = "rows lost"
_ADDRESSES: Final = 10_000
"""Namespaces in one set of journals."""
_OF: Final = ("address", "client", "entity")
_PRIMARY: Final = "lower(substring_index(backlog_queue, '/', 1))"


@dataclass(frozen=True, slots=True)
class Clients:
    """What the journals say. Each DataFrame has a column `namespace`, by the name that servers count under."""

    counted: DataFrame
    """minute, namespace, entity, client, outcome, has_failed, messages."""
    outages: DataFrame
    """namespace, entity, client, since, until; `until` is null where nobody saw the end, `seen` is when it last was."""
    totals: dict[str, int]
    """Messages, by outcome."""

    @property
    def lost(self) -> int:
        """Rows that clients could not write: their disk was slower than they were."""
        return self.totals.get(_LOST, 0)


def read_clients(
    spark: SparkSession,
    folders: Sequence[str | Path],
    namespaces: Collection[str],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> Clients:
    """Of the folders that clients were given as `journal_dir`. PipelineError where there is none."""
    found = journals(spark, *folders)
    if since is not None:
        found = found.where(found.time >= since)
    if until is not None:
        found = found.where(found.time < until)
    rows = _rows(found).persist(StorageLevel.DISK_ONLY)
    found_totals = rows.groupBy("address", "primary", "outcome").sum("messages").limit(_ADDRESSES).collect()
    totals: Counter[str] = Counter()
    for row in found_totals:
        totals[row.outcome] += row["sum(messages)"]
    rows = _named(rows, [(row.address, row.primary) for row in found_totals], namespaces)
    counted = rows.where(functions.col("outcome").isin(*_COUNTED)).selectExpr(
        "time AS minute", "namespace", "entity", "client", "outcome", "has_failed", "messages"
    )
    return Clients(counted, _outages(rows), dict(totals))


def _rows(found: DataFrame) -> DataFrame:
    """A row for each change of state; for all else, one for each minute."""
    wanted = (*_DOWN, _UP, *_COUNTED, _LOST)
    return (
        found.where(functions.col("outcome").isin(*wanted))
        .selectExpr(
            f"IF(outcome IN {(*_DOWN, _UP)}, time, date_trunc('MINUTE', time)) AS time",
            "time AS at",
            "coalesce(lower(namespace), '') AS address",
            "coalesce(client_id, '') AS client",
            "coalesce(entity, '') AS entity",
            f"{_PRIMARY} AS primary",
            "outcome",
            "outcome = 'pinged' AND reason IS NOT NULL AS has_failed",
            "count AS messages",
        )
        .groupBy("time", *_OF, "primary", "outcome", "has_failed")
        .agg(functions.sum("messages").alias("messages"), functions.max("at").alias("seen"))
    )


def _named(rows: DataFrame, found: list[tuple[str, str | None]], namespaces: Collection[str]) -> DataFrame:
    """The path of a backlog queue begins with the primary's name; addresses that never parked are guessed."""
    known = {address: primary for address, primary in found if primary is not None}
    named = {name.lower(): name for name in namespaces}
    primaries = set(known.values()) & set(named)
    names = {address: known.get(address) or _guess(address, set(named), primaries) for address, _ in found}
    if not names:
        return rows.withColumn("namespace", functions.lit(""))
    pairs = [functions.lit(text) for address, name in names.items() for text in (address, named.get(name, name))]
    return rows.withColumn("namespace", functions.create_map(*pairs)[functions.col("address")])


def _guess(address: str, namespaces: set[str], primaries: set[str]) -> str:
    label = address.partition(".")[0].partition(":")[0]
    if label in namespaces:
        return label
    if len(primaries) == 1:
        return next(iter(primaries))
    return next(iter(namespaces)) if len(namespaces) == 1 else address


def _outages(rows: DataFrame) -> DataFrame:
    """From the first word that an entity is down to the next that it is not, for each client."""
    who = Window.partitionBy("namespace", *_OF)
    in_order = who.orderBy("time")
    last_seen = Window.partitionBy("address", "client")
    states = (
        rows.withColumn("seen", functions.max("seen").over(last_seen))
        .where(functions.col("outcome").isin(*_DOWN, _UP))
        .withColumn("is_down", functions.col("outcome") != _UP)
    )
    before = functions.lag("is_down").over(in_order)
    changes = states.withColumn("was_down", functions.coalesce(before, functions.expr("false")))
    changes = changes.where("is_down != was_down").withColumn("until", functions.lead("time").over(in_order))
    return changes.where("is_down").selectExpr("namespace", "entity", "client", "time AS since", "until", "seen")


def merged(outages: DataFrame) -> DataFrame:
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
