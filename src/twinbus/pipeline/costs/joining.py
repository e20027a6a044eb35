"""Where what clients tell meets what servers counted: pings that nobody heard, and what had been parked.

Owns: both joins. Paths are compared without regard to case, as namespaces do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from twinbus.pipeline.costs.charges import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from twinbus.pipeline.costs.clients import Clients
    from twinbus.pipeline.costs.kinds import Period

ROOT: Final = ("month", "namespace", "root")
"""What messages were sent to, by month."""


def unseen_pings(rows: DataFrame, clients: Clients, period: Period) -> DataFrame:
    """Those that clients sent and no server heard of: of an entity that is down, that is nearly all of them (C09)."""
    by = ["period", "namespace", "root"]
    sent = (
        clients.counted.where("outcome = 'pinged'")
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


def parked_shares(rows: DataFrame, clients: Clients) -> tuple[str, DataFrame | None]:
    """How much of what was sent to each queue or topic had been parked before, and from which events that is known."""
    outcome = next((one for one in ("moved back", "parked") if clients.totals.get(one)), None)
    if outcome is None:
        return "backlog", None
    found = clients.counted.where(functions.col("outcome") == outcome)
    found = found.withColumn("month", functions.date_trunc("MONTH", "minute"))
    by_root = found.groupBy("month", "namespace", functions.lower("entity").alias("root")).agg(
        functions.sum("messages").alias("moved")
    )
    sent = rows.where("kind = 'send' AND NOT is_backlog AND lower(entity) = root").groupBy(*ROOT)
    both = by_root.join(sent.agg(functions.sum("messages").alias("sent")), list(ROOT))
    return outcome, both.where("sent > 0").selectExpr(*ROOT, "least(1.0D, CAST(moved AS double) / sent) AS share")
