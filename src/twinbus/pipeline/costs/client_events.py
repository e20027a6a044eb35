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

from twinbus.pipeline.costs.charges import Stage
from twinbus.pipeline.journals import read_journals

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.costs.operation_kinds import Period

ROOT_KEY: Final = ("month", "namespace", "root")
"""What messages were sent to, by month."""
MAX_CLIENT_NAME_LENGTH: Final = 128
"""Of a client's name, as servers count under it."""


@dataclass(frozen=True, slots=True)
class ParkedShares:
    """How much of sends and receives is due to parked messages."""

    source_outcome: str
    """The events of clients' journals that tell: `moved back`, or `parked` where no syphon has a journal."""
    by_root: DataFrame
    """month, namespace, root; received_share, sent_share, movers_are_known: every mover's sends were counted."""
    by_mover: DataFrame
    """month, namespace, root, client, moved_share: how much of a client's sends it moved back."""


def unreceived_pings(rows: DataFrame, client_events: ClientEvents, period: Period) -> DataFrame:
    """Those that clients sent and no server heard of: of an entity that is down, that is nearly all of them (C09)."""
    by = ["period", "namespace", "root"]
    sent = (
        client_events.counted.where("outcome = 'pinged'")
        .withColumn("period", functions.date_trunc(period.value, "minute"))
        .withColumn("root", functions.lower("entity"))
        .groupBy(*by, "client")
        .agg(functions.sum("messages").alias("sent"), functions.first("entity").alias("entity"))
    )
    # A server knows a client by another name where it gives none: what was heard is compared for all of them together.
    everybody = sent.groupBy(*by).agg(functions.sum("sent").alias("all_sent"))
    heard = rows.where("kind = 'ping'").groupBy(*by).agg(functions.sum("messages").alias("heard"))
    unseen = sent.join(everybody, by).join(heard, by, "left")
    count = "round(sent * greatest(0, all_sent - coalesce(heard, 0)) / all_sent)"
    unseen = unseen.withColumn("messages", functions.expr(f"CAST({count} AS bigint)")).where("messages > 0")
    return unseen.selectExpr(
        *by,
        "entity",
        "client",
        "date_trunc('MONTH', period) AS month",
        "false AS is_backlog",
        "false AS is_subqueue",
        "'ping' AS kind",
        f"'{Stage.PING.value}' AS stage",
        "messages AS document",
        "messages AS operation",
        "messages",
        "0L AS bytes",
        "'clients' AS source",
    )


def compute_parked_shares(rows: DataFrame, client_events: ClientEvents) -> ParkedShares | None:
    """How much of the sends to, and of the receives from, each queue or topic is due to parked messages.

    None where no journal tells of parked messages.
    """
    known_by = next((one for one in ("moved back", "parked") if client_events.totals.get(one)), None)
    if known_by is None:
        return None
    by_client = _sends_by_client(rows, client_events, known_by)
    # A killed server lost what it counted last, and a client's journal may be of a part of the month: of a client's two
    # numbers, the larger one is right.
    by_root = by_client.groupBy(*ROOT_KEY).agg(
        functions.sum("parked").alias("parked"),
        functions.sum("counted").alias("counted"),
        functions.expr("sum(greatest(counted, told + IF(is_mover, parked, 0L)))").alias("messages"),
        functions.expr("sum(least(counted, parked)) = sum(parked)").alias("movers_are_known"),
    )
    by_root = by_root.where("parked > 0 AND messages > 0").selectExpr(
        *ROOT_KEY,
        "least(1D, CAST(parked AS double) / messages) AS received_share",
        "IF(movers_are_known, 0D, least(1D, coalesce(CAST(parked AS double) / nullif(counted, 0), 0D))) AS sent_share",
        "movers_are_known",
    )
    movers = by_client.where("parked > 0 AND counted > 0").selectExpr(
        *ROOT_KEY, "client", "least(1D, CAST(parked AS double) / counted) AS moved_share"
    )
    return ParkedShares(known_by, by_root, movers)


def add_parked_share(rows: DataFrame, shares: ParkedShares | None) -> DataFrame:
    """Rows with `parked`: 1 for the backlog's sends and receives, and a share of those of other entities."""
    if shares is None:
        nothing = functions.lit(0.0)
        rows = rows.withColumn("sent_share", nothing).withColumn("received_share", nothing)
    else:
        rows = rows.join(functions.broadcast(shares.by_root), list(ROOT_KEY), "left")
        rows = rows.join(functions.broadcast(shares.by_mover), [*ROOT_KEY, "client"], "left")
        own = functions.expr("IF(movers_are_known, moved_share, sent_share)")
        rows = rows.withColumn("sent_share", own).drop("movers_are_known", "moved_share")
    share = "CASE kind WHEN 'send' THEN coalesce(sent_share, 0D) WHEN 'receive' THEN coalesce(received_share, 0D) END"
    parked = f"IF(kind IN ('send', 'receive'), IF(is_backlog, 1D, IF(is_subqueue, 0D, {share})), 0D)"
    return rows.withColumn("parked", functions.expr(parked)).drop("sent_share", "received_share")


def _sends_by_client(rows: DataFrame, client_events: ClientEvents, source_outcome: str) -> DataFrame:
    """Messages that each client sent to each queue or topic, by month.

    `counted` by servers, `told` by the client's journal, and `parked`: those that the client moved back from the
    backlog (`is_mover`); where no syphon has a journal, those that it parked.
    """
    server = rows.where("kind = 'send' AND NOT is_backlog AND lower(entity) = root").selectExpr(
        *ROOT_KEY, "client", "messages AS counted", "0L AS told", "0L AS parked"
    )
    is_known = functions.col("outcome").isin("sent", source_outcome)
    journal = client_events.counted.where(is_known).selectExpr(
        "date_trunc('MONTH', minute) AS month",
        "namespace",
        "lower(entity) AS root",
        f"left(client, {MAX_CLIENT_NAME_LENGTH}) AS client",
        "0L AS counted",
        "IF(outcome = 'sent', messages, 0L) AS told",
        "IF(outcome = 'sent', 0L, messages) AS parked",
    )
    summed = server.unionByName(journal).groupBy(*ROOT_KEY, "client")
    columns = [functions.sum(name).alias(name) for name in ("counted", "told", "parked")]
    is_mover = functions.lit(source_outcome == "moved back")
    return summed.agg(*columns).withColumn("is_mover", is_mover)


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
