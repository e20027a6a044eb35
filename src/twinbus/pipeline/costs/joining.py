"""Where what clients tell meets what servers counted: pings that nobody heard, and what had been parked.

Owns: both joins. Paths are compared without regard to case, as namespaces do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from twinbus.pipeline.costs.charges import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from twinbus.pipeline.costs.clients import ClientEvents
    from twinbus.pipeline.costs.kinds import Period

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
