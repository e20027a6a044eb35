"""Client journal events that are not in the usage: outages, pings that no server got, destinations of parked messages.

Owns the journal rows that matter for costs, the detection of outages, and the mapping of addresses to namespaces. A
journal has a row for each message, so rows are first summed by minute, in one pass.
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
"""Columns that identify a queue or topic in a month."""
MAX_CLIENT_NAME_LENGTH: Final = 128
"""Maximum length of a client name in usage rows."""


@dataclass(frozen=True, slots=True)
class ParkedShares:
    """Shares of sends and receives that are due to parked messages."""

    source_outcome: str
    """Outcome that the shares are based on: `moved back`, or `parked` if no syphon has a journal."""
    by_root: DataFrame
    """Shares by queue or topic: month, namespace, root; received_share, sent_share, movers_are_known.

    `movers_are_known` says whether servers counted the sends of all clients that moved messages back.
    """
    by_mover: DataFrame
    """Shares by client: month, namespace, root, client, moved_share (the share of sends that moved messages back)."""


def unreceived_pings(rows: DataFrame, client_events: ClientEvents, period: Period) -> DataFrame:
    """Return pings that clients sent but no server counted: nearly all pings to an unavailable entity."""
    by = ["period", "namespace", "root"]
    sent = (
        client_events.counted.where("outcome = 'pinged'")
        .withColumn("period", functions.date_trunc(period.value, "minute"))
        .withColumn("root", functions.lower("entity"))
        .groupBy(*by, "client")
        .agg(functions.sum("messages").alias("sent"), functions.first("entity").alias("entity"))
    )
    # If a client sends no client id, the server counts its pings under another name, so pings are compared for all
    # clients together.
    all_clients = sent.groupBy(*by).agg(functions.sum("sent").alias("all_sent"))
    received = rows.where("kind = 'ping'").groupBy(*by).agg(functions.sum("messages").alias("heard"))
    unreceived = sent.join(all_clients, by).join(received, by, "left")
    count = "round(sent * greatest(0, all_sent - coalesce(heard, 0)) / all_sent)"
    unreceived = unreceived.withColumn("messages", functions.expr(f"CAST({count} AS bigint)")).where("messages > 0")
    return unreceived.selectExpr(
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
    """Compute, for each queue or topic, the share of sends and receives caused by parked messages.

    Return None if no journal contains parked messages.
    """
    source_outcome = next((outcome for outcome in ("moved back", "parked") if client_events.totals.get(outcome)), None)
    if source_outcome is None:
        return None
    by_client = _sends_by_client(rows, client_events, source_outcome)
    # A killed server lost its last counts, and a client's journal may cover only part of the month: the larger of the
    # two counts for a client is right.
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
    return ParkedShares(source_outcome, by_root, movers)


def add_parked_share(rows: DataFrame, shares: ParkedShares | None) -> DataFrame:
    """Add `parked` to rows: 1 for sends to and receives from the backlog, and a share for other entities."""
    if shares is None:
        zero = functions.lit(0.0)
        rows = rows.withColumn("sent_share", zero).withColumn("received_share", zero)
    else:
        rows = rows.join(functions.broadcast(shares.by_root), list(ROOT_KEY), "left")
        rows = rows.join(functions.broadcast(shares.by_mover), [*ROOT_KEY, "client"], "left")
        known_share = functions.expr("IF(movers_are_known, moved_share, sent_share)")
        rows = rows.withColumn("sent_share", known_share).drop("movers_are_known", "moved_share")
    share = "CASE kind WHEN 'send' THEN coalesce(sent_share, 0D) WHEN 'receive' THEN coalesce(received_share, 0D) END"
    parked = f"IF(kind IN ('send', 'receive'), IF(is_backlog, 1D, IF(is_subqueue, 0D, {share})), 0D)"
    return rows.withColumn("parked", functions.expr(parked)).drop("sent_share", "received_share")


def _sends_by_client(rows: DataFrame, client_events: ClientEvents, source_outcome: str) -> DataFrame:
    """Return the number of messages that each client sent to each queue or topic, by month.

    `counted` is the number in usage, and `told` is the number in the client's journal. `parked` is the number of
    messages that the client moved back (`is_mover`), or parked if no syphon has a journal.
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
"""Maximum number of namespaces in one set of journals."""
_CLIENT_KEY: Final = ("address", "client", "entity")
_PRIMARY_EXPRESSION: Final = "lower(substring_index(backlog_queue, '/', 1))"


@dataclass(frozen=True, slots=True)
class ClientEvents:
    """Events from client journals. Each DataFrame has a column `namespace` with the same names as in usage."""

    counted: DataFrame
    """Columns: minute, namespace, entity, client, outcome, has_failed, messages."""
    outages: DataFrame
    """Columns: namespace, entity, client, since, until, seen.

    `until` is null if the client did not see the end of the outage; `seen` is the time of the client's last event.
    """
    totals: dict[str, int]
    """Number of messages by outcome."""

    @property
    def lost_rows(self) -> int:
        """Number of rows that clients could not write because their disk was too slow."""
        return self.totals.get(_LOST_OUTCOME, 0)


def read_client_events(
    spark: SparkSession,
    folders: Sequence[str | Path],
    namespaces: Collection[str],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> ClientEvents:
    """Read the journals in folders. Raise PipelineError if the folders contain no journals."""
    journal_rows = read_journals(spark, *folders)
    if since is not None:
        journal_rows = journal_rows.where(journal_rows.time >= since)
    if until is not None:
        journal_rows = journal_rows.where(journal_rows.time < until)
    rows = _events_by_minute(journal_rows).persist(StorageLevel.DISK_ONLY)
    sums = rows.groupBy("address", "primary", "outcome").sum("messages").limit(_MAX_ADDRESSES).collect()
    totals: Counter[str] = Counter()
    for row in sums:
        totals[row.outcome] += row["sum(messages)"]
    rows = _with_namespace(rows, [(row.address, row.primary) for row in sums], namespaces)
    counted = rows.where(functions.col("outcome").isin(*_COUNTED_OUTCOMES)).selectExpr(
        "time AS minute", "namespace", "entity", "client", "outcome", "has_failed", "messages"
    )
    return ClientEvents(counted, _outages_by_client(rows), dict(totals))


def _events_by_minute(journal_rows: DataFrame) -> DataFrame:
    """Return one row per change of state, and for all other events one row per minute."""
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
    """Add `namespace`, the name of the namespace at each address.

    Paths of backlog queues begin with the name of the primary. The names of all other namespaces are guessed.
    """
    known_primaries = {address: primary for address, primary in addresses if primary is not None}
    names_by_key = {name.lower(): name for name in namespaces}
    primaries = set(known_primaries.values()) & set(names_by_key)
    names = {
        address: known_primaries.get(address) or _guess_namespace(address, set(names_by_key), primaries)
        for address, _ in addresses
    }
    if not names:
        return rows.withColumn("namespace", functions.lit(""))
    pairs = [functions.lit(text) for address, name in names.items() for text in (address, names_by_key.get(name, name))]
    return rows.withColumn("namespace", functions.create_map(*pairs)[functions.col("address")])


def _guess_namespace(address: str, namespaces: set[str], primaries: set[str]) -> str:
    label = address.partition(".")[0].partition(":")[0]
    if label in namespaces:
        return label
    if len(primaries) == 1:
        return next(iter(primaries))
    return next(iter(namespaces)) if len(namespaces) == 1 else address


def _outages_by_client(rows: DataFrame) -> DataFrame:
    """Return the outages that each client saw, from the first report of an entity as down until its recovery."""
    by_client = Window.partitionBy("namespace", *_CLIENT_KEY)
    in_order = by_client.orderBy("time")
    last_seen = Window.partitionBy("address", "client")
    states = (
        rows.withColumn("seen", functions.max("seen").over(last_seen))
        .where(functions.col("outcome").isin(*_DOWN_OUTCOMES, _UP_OUTCOME))
        .withColumn("is_down", functions.col("outcome") != _UP_OUTCOME)
    )
    was_down = functions.lag("is_down").over(in_order)
    changes = states.withColumn("was_down", functions.coalesce(was_down, functions.expr("false")))
    changes = changes.where("is_down != was_down").withColumn("until", functions.lead("time").over(in_order))
    return changes.where("is_down").selectExpr("namespace", "entity", "client", "time AS since", "until", "seen")


def merge_outages(outages: DataFrame) -> DataFrame:
    """Merge overlapping outages of an entity that several clients saw into one.

    Columns: namespace, entity, number, since, until, clients, is_over.
    """
    in_order = Window.partitionBy("namespace", "entity").orderBy("since")
    previous_rows = in_order.rowsBetween(Window.unboundedPreceding, -1)
    ends = outages.withColumn("end", functions.coalesce("until", "seen"))
    is_new = functions.col("since") > functions.max("end").over(previous_rows)
    numbered = ends.withColumn("is_new", functions.coalesce(is_new, functions.expr("true")).cast("int"))
    numbered = numbered.withColumn("number", functions.sum("is_new").over(in_order))
    return numbered.groupBy("namespace", "entity", "number").agg(
        functions.min("since").alias("since"),
        functions.max("end").alias("until"),
        functions.countDistinct("client").alias("clients"),
        functions.bool_and(functions.col("until").isNotNull()).alias("is_over"),
    )
