"""Everything that is charged, as rows in Spark: what servers counted, joined with what clients tell.

    account = open_account(usage, Terms(tariff=read_tariff()), journals=["audit"])

Owns: the one pass over usage, and the months with their rates. Rows stay in Spark, on its disks; what they sum up to by
day, which is little, is here.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import functions

from twinbus.model.callbacks import ignore
from twinbus.pipeline.costs.bill import MonthlyUsage
from twinbus.pipeline.costs.charges import NO_CHARGES, Charges, Model, Stage
from twinbus.pipeline.costs.client_events import (
    add_parked_share,
    compute_parked_shares,
    read_client_events,
    unreceived_pings,
)
from twinbus.pipeline.costs.operation_kinds import split_by_kind, sum_by_period, sum_usage
from twinbus.pipeline.costs.server_activity import ServerActivity, read_server_activity
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from twinbus.pipeline.costs.bill import BillingTerms
    from twinbus.pipeline.costs.client_events import ClientEvents
    from twinbus.pipeline.costs.tariff import Tariff

_RATE_TYPE: Final = "decimal(19,18)"
"""Times a number of 18 digits that is as much as Spark counts exactly: all of a month is off by less than a cent."""
_RATE_STEP: Final = Decimal(1).scaleb(-18)


class DailyCharges(NamedTuple):
    """What came of one kind of operation in a day."""

    day: dt.date
    stage: Stage
    kind: str
    source: str
    charges: Charges
    messages: int
    egress_bytes: int
    parked: tuple[float, float, float]
    """What of it is due to parked messages: both counts of charges, and messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingAccount:
    """All of it."""

    terms: BillingTerms
    rows: DataFrame
    """period, month, namespace, entity, root, client, is_backlog, is_subqueue, kind, stage, source; document,
    operation, messages, bytes, egress_bytes; parked (0 to 1: how much of it is due to parked messages); document_cost,
    operation_cost."""
    days: tuple[DailyCharges, ...]
    months: tuple[MonthlyUsage, ...]
    server_activity: ServerActivity
    client_events: ClientEvents | None
    parked_source: str
    """Where it is known from which messages were parked: moved back, parked, or backlog."""

    def month(self, first_day: dt.date) -> MonthlyUsage:
        """The one that begins so."""
        return next((month for month in self.months if month.first_day == first_day), MonthlyUsage(first_day=first_day))


def read_billing_account(
    usage: DataFrame,
    terms: BillingTerms,
    *,
    journals: Sequence[str | Path] = (),
    on_progress: Callable[[str], None] = ignore,
) -> BillingAccount:
    """Read and join it all. PipelineError where nothing was counted. `tell` is called with what is done next."""
    on_progress("adding up what servers counted")
    passed = sum_usage(usage, terms.period).persist(StorageLevel.DISK_ONLY)
    namespaces = [row.namespace for row in passed.select("namespace").distinct().collect()]
    if not namespaces:
        raise PipelineError("nothing was counted in that time")
    clients = None
    if journals:
        on_progress("reading the clients' journals")
        clients = read_client_events(usage.sparkSession, journals, namespaces, since=terms.since, until=terms.until)
    on_progress("joining both")
    summed = sum_by_period(passed, terms.period).persist(StorageLevel.DISK_ONLY)
    parked_by, rows = _with_parked_share(split_by_kind(summed, bills_failed=terms.bills_failed), clients, terms)
    rows = rows.withColumn("egress_bytes", _egress_column(terms)).persist(StorageLevel.DISK_ONLY)
    days = _daily_charges(rows)
    on_progress("looking for connections and missing minutes")
    pulse = read_server_activity(passed, dt.datetime.now(dt.UTC))
    months = _monthly_usage(days, pulse)
    return BillingAccount(
        terms=terms,
        rows=_with_costs(rows, months, terms.tariff),
        days=days,
        months=months,
        server_activity=pulse,
        client_events=clients,
        parked_source=parked_by,
    )


def _with_parked_share(
    rows: DataFrame, client_events: ClientEvents | None, terms: BillingTerms
) -> tuple[str, DataFrame]:
    """Rows with their source, pings that no server counted, and `parked`."""
    rows = rows.withColumn("source", functions.lit("servers"))
    shares = None
    if client_events is not None:
        if terms.bills_failed and client_events.totals.get("pinged"):
            rows = rows.unionByName(unreceived_pings(rows, client_events, terms.period))
        shares = compute_parked_shares(rows, client_events)
    return "backlog" if shares is None else shares.source_outcome, add_parked_share(rows, shares)


def _egress_column(terms: BillingTerms) -> Column:
    share = int(terms.egress_percent * 10_000)
    return functions.expr(f"IF(kind = 'receive', IF(is_backlog, bytes, bytes * {share}L div 1000000), 0L)")


def _daily_charges(rows: DataFrame) -> tuple[DailyCharges, ...]:
    """The one look at all rows."""
    found = rows.groupBy(functions.to_date("period").alias("day"), "stage", "kind", "source").agg(
        *(functions.sum(name).alias(name) for name in ("document", "operation", "messages", "egress_bytes")),
        *(functions.expr(f"sum({name} * parked) AS parked_{name}") for name in ("document", "operation", "messages")),
    )
    days = [
        DailyCharges(
            row.day,
            Stage(row.stage),
            row.kind,
            row.source,
            Charges(row.document, row.operation),
            row.messages,
            row.egress_bytes,
            (row.parked_document, row.parked_operation, row.parked_messages),
        )
        for row in found.collect()
    ]
    return tuple(sorted(days, key=lambda day: (day.day, day.stage.value, day.kind, day.source)))


def _monthly_usage(days: tuple[DailyCharges, ...], server_activity: ServerActivity) -> tuple[MonthlyUsage, ...]:
    charges: dict[dt.date, Charges] = {}
    egress: dict[dt.date, int] = {}
    for day in days:
        begins = day.day.replace(day=1)
        charges[begins] = charges.get(begins, NO_CHARGES) + day.charges
        egress[begins] = egress.get(begins, 0) + day.egress_bytes
    return tuple(
        MonthlyUsage(
            first_day=begins,
            charges=charges.get(begins, NO_CHARGES),
            hourly_connection_peaks=server_activity.hourly_connection_peaks.get(begins, 0),
            egress_bytes=egress.get(begins, 0),
        )
        for begins in sorted({*charges, *server_activity.hourly_connection_peaks})
    )


def _with_costs(rows: DataFrame, months: tuple[MonthlyUsage, ...], tariff: Tariff) -> DataFrame:
    values = ", ".join(
        f"(TIMESTAMP'{month.first_day}', {_rate_literal(month, tariff, Model.DOCUMENT)}, "
        f"{_rate_literal(month, tariff, Model.OPERATION)})"
        for month in months
    )
    rates = rows.sparkSession.sql(f"SELECT * FROM VALUES {values} AS rates (month, document_rate, operation_rate)")  # noqa: S608  # dates and numbers
    return (
        rows.join(functions.broadcast(rates), "month")
        .withColumn("document_cost", functions.expr("CAST(document AS decimal(18,0)) * document_rate"))
        .withColumn("operation_cost", functions.expr("CAST(operation AS decimal(18,0)) * operation_rate"))
    )


def _rate_literal(month: MonthlyUsage, tariff: Tariff, model: Model) -> str:
    return f"CAST('{month.rate(tariff, model).quantize(_RATE_STEP):f}' AS {_RATE_TYPE})"
