"""Everything that is charged, as rows in Spark: what servers counted, joined with what clients tell.

    account = open_account(usage, Terms(tariff=read_tariff()), journals=["audit"])

Owns: the one pass over usage, the pings that no server saw, how much of each row is due to parked messages, and the
months with their rates. Rows stay in Spark; months, which are few, are here.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import functions

from twinbus.pipeline.costs.bill import Month
from twinbus.pipeline.costs.charges import Charges, Model, Stage
from twinbus.pipeline.costs.clients import read_clients
from twinbus.pipeline.costs.kinds import Period, by_kind, sums
from twinbus.pipeline.costs.pulse import Pulse, read_pulse
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from twinbus.pipeline.costs.clients import Clients
    from twinbus.pipeline.costs.tariff import Tariff
    from twinbus.pipeline.costs.terms import Terms

ROOT: Final = ("month", "namespace", "root")
_RATE: Final = "decimal(19,18)"
"""Times a number of 18 digits that is as much as Spark counts exactly: all of a month is off by less than a cent."""
_RATE_STEP: Final = Decimal(1).scaleb(-18)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """All of it."""

    terms: Terms
    rows: DataFrame
    """period, month, namespace, entity, root, client, is_backlog, is_subqueue, kind, stage, source; document,
    operation, messages, bytes, egress_bytes; parked (0 to 1: how much of it is due to parked messages); document_cost,
    operation_cost."""
    months: tuple[Month, ...]
    pulse: Pulse
    clients: Clients | None
    parked_by: str
    """Where it is known from which messages were parked: moved back, parked, or backlog."""

    def month(self, begins: dt.date) -> Month:
        """The one that begins so."""
        return next((month for month in self.months if month.begins == begins), Month(begins=begins))


def open_account(
    usage: DataFrame,
    terms: Terms,
    *,
    journals: Sequence[str | Path] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Account:
    """Read and join it all. PipelineError where nothing was counted. `tell` is called with what is done next."""
    spark = usage.sparkSession
    tell("adding up what servers counted")
    summed = sums(usage, terms.period).persist(StorageLevel.DISK_ONLY)
    namespaces = [row.namespace for row in summed.select("namespace").distinct().collect()]
    if not namespaces:
        raise PipelineError("nothing was counted in that time")
    rows = by_kind(summed, bills_failed=terms.bills_failed).withColumn("source", functions.lit("servers"))
    parked_by, clients = "backlog", None
    if journals:
        tell("reading the clients' journals")
        clients = read_clients(spark, journals, namespaces, since=terms.since, until=terms.until)
        if terms.bills_failed:
            rows = rows.unionByName(_unseen_pings(rows, clients, terms.period))
        parked_by, shares = _shares(rows, clients)
        rows = rows.join(functions.broadcast(shares), list(ROOT), "left") if shares is not None else _no_share(rows)
    else:
        rows = _no_share(rows)
    is_theirs = functions.expr("NOT is_backlog AND NOT is_subqueue AND kind IN ('send', 'receive')")
    parked = functions.when(functions.col("is_backlog") & functions.col("kind").isin("send", "receive"), 1.0)
    parked = parked.when(is_theirs, functions.coalesce("share", functions.lit(0.0))).otherwise(0.0)
    rows = rows.withColumn("parked", parked).drop("share").withColumn("egress_bytes", _egress(terms))
    tell("looking for connections and missing minutes")
    pulse = read_pulse(usage, dt.datetime.now(dt.UTC))
    tell("joining both")
    months = _months(rows, pulse)
    return Account(
        terms=terms,
        rows=_priced(spark, rows, months, terms.tariff),
        months=months,
        pulse=pulse,
        clients=clients,
        parked_by=parked_by,
    )


def _no_share(rows: DataFrame) -> DataFrame:
    return rows.withColumn("share", functions.lit(0.0))


def _unseen_pings(rows: DataFrame, clients: Clients, period: Period) -> DataFrame:
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


def _shares(rows: DataFrame, clients: Clients) -> tuple[str, DataFrame | None]:
    """How much of what was sent to each queue or topic had been parked before."""
    moved = clients.counted.withColumn("month", functions.date_trunc("MONTH", "minute"))
    for outcome in ("moved back", "parked"):
        found = moved.where(functions.col("outcome") == outcome)
        if not found.isEmpty():
            break
    else:
        return "backlog", None
    by_root = found.groupBy("month", "namespace", functions.lower("entity").alias("root")).agg(
        functions.sum("messages").alias("moved")
    )
    sent = rows.where("kind = 'send' AND NOT is_backlog AND lower(entity) = root").groupBy(*ROOT)
    both = by_root.join(sent.agg(functions.sum("messages").alias("sent")), list(ROOT))
    return outcome, both.where("sent > 0").selectExpr(*ROOT, "least(1.0D, CAST(moved AS double) / sent) AS share")


def _egress(terms: Terms) -> Column:
    share = int(terms.egress * 10_000)
    theirs = functions.expr(f"bytes * {share}L div 1000000")
    return functions.when(functions.col("kind") != "receive", functions.lit(0)).otherwise(
        functions.when(functions.col("is_backlog"), functions.col("bytes")).otherwise(theirs)
    )


def _months(rows: DataFrame, pulse: Pulse) -> tuple[Month, ...]:
    summed = rows.groupBy(functions.to_date("month").alias("month")).agg(
        functions.sum("document").alias("document"),
        functions.sum("operation").alias("operation"),
        functions.sum("egress_bytes").alias("egress_bytes"),
    )
    found = {row.month: row for row in summed.collect()}
    months = []
    for begins in sorted({*found, *pulse.hourly_peaks}):
        row = found.get(begins)
        months.append(
            Month(
                begins=begins,
                charges=Charges(row.document, row.operation) if row else Charges(),
                hourly_peaks=pulse.hourly_peaks.get(begins, 0),
                egress_bytes=row.egress_bytes if row else 0,
            )
        )
    return tuple(months)


def _priced(spark: SparkSession, rows: DataFrame, months: tuple[Month, ...], tariff: Tariff) -> DataFrame:
    rates = spark.createDataFrame(
        [
            (
                month.begins,
                *(month.rate(tariff, model).quantize(_RATE_STEP) for model in (Model.DOCUMENT, Model.OPERATION)),
            )
            for month in months
        ],
        f"month date, document_rate {_RATE}, operation_rate {_RATE}",
    ).withColumn("month", functions.col("month").cast("timestamp"))
    return (
        rows.join(functions.broadcast(rates), "month")
        .withColumn("document_cost", functions.expr("CAST(document AS decimal(18,0)) * document_rate"))
        .withColumn("operation_cost", functions.expr("CAST(operation AS decimal(18,0)) * operation_rate"))
    )
