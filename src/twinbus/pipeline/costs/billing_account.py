"""A billing account: all charges as rows in Spark, from server usage and client journals.

    account = read_billing_account(usage, BillingTerms(tariff=read_tariff()), journals=["audit"])

Owns the single pass over usage, and the months with their rates. Rows stay in Spark, persisted on disk; only the small
daily sums are in memory.
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
"""Widest rate type that Spark multiplies exactly by 18-digit counts: the monthly error is below a cent."""
_RATE_STEP: Final = Decimal(1).scaleb(-18)


class DailyCharges(NamedTuple):
    """Charges for one kind of operation on one day."""

    day: dt.date
    stage: Stage
    kind: str
    source: str
    charges: Charges
    messages: int
    egress_bytes: int
    parked: tuple[float, float, float]
    """The part due to parked messages: charges in both models, and number of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingAccount:
    """All charges to an account."""

    terms: BillingTerms
    rows: DataFrame
    """Rows with these columns.

    period, month, namespace, entity, root, client, is_backlog, is_subqueue, kind, stage, source; document, operation,
    messages, bytes, egress_bytes; parked (0 to 1: the share due to parked messages); document_cost, operation_cost.
    """
    days: tuple[DailyCharges, ...]
    months: tuple[MonthlyUsage, ...]
    server_activity: ServerActivity
    client_events: ClientEvents | None
    parked_source: str
    """Source of the parked message counts: moved back, parked, or backlog."""

    def month(self, first_day: dt.date) -> MonthlyUsage:
        """Return the usage in the month that begins on `first_day`."""
        return next((month for month in self.months if month.first_day == first_day), MonthlyUsage(first_day=first_day))


def read_billing_account(
    usage: DataFrame,
    terms: BillingTerms,
    *,
    journals: Sequence[str | Path] = (),
    on_progress: Callable[[str], None] = ignore,
) -> BillingAccount:
    """Read and join usage and journals. Call `on_progress` before each step.

    Raise PipelineError if there is no usage.
    """
    on_progress("adding up what servers counted")
    usage_sums = sum_usage(usage, terms.period).persist(StorageLevel.DISK_ONLY)
    namespaces = [row.namespace for row in usage_sums.select("namespace").distinct().collect()]
    if not namespaces:
        raise PipelineError("no usage was counted in this period")
    clients = None
    if journals:
        on_progress("reading the clients' journals")
        clients = read_client_events(usage.sparkSession, journals, namespaces, since=terms.since, until=terms.until)
    on_progress("joining usage and journals")
    period_sums = sum_by_period(usage_sums, terms.period).persist(StorageLevel.DISK_ONLY)
    parked_source, rows = _with_parked_share(
        split_by_kind(period_sums, bills_failed=terms.bills_failed), clients, terms
    )
    rows = rows.withColumn("egress_bytes", _egress_column(terms)).persist(StorageLevel.DISK_ONLY)
    days = _daily_charges(rows)
    on_progress("looking for connections and missing minutes")
    activity = read_server_activity(usage_sums, dt.datetime.now(dt.UTC))
    months = _monthly_usage(days, activity)
    return BillingAccount(
        terms=terms,
        rows=_with_costs(rows, months, terms.tariff),
        days=days,
        months=months,
        server_activity=activity,
        client_events=clients,
        parked_source=parked_source,
    )


def _with_parked_share(
    rows: DataFrame, client_events: ClientEvents | None, terms: BillingTerms
) -> tuple[str, DataFrame]:
    """Add `source`, the pings that no server counted, and `parked` to rows."""
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
    """Sum the charges of all rows by day, in one pass."""
    sums = rows.groupBy(functions.to_date("period").alias("day"), "stage", "kind", "source").agg(
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
        for row in sums.collect()
    ]
    return tuple(sorted(days, key=lambda day: (day.day, day.stage.value, day.kind, day.source)))


def _monthly_usage(days: tuple[DailyCharges, ...], server_activity: ServerActivity) -> tuple[MonthlyUsage, ...]:
    charges: dict[dt.date, Charges] = {}
    egress: dict[dt.date, int] = {}
    for day in days:
        first_day = day.day.replace(day=1)
        charges[first_day] = charges.get(first_day, NO_CHARGES) + day.charges
        egress[first_day] = egress.get(first_day, 0) + day.egress_bytes
    return tuple(
        MonthlyUsage(
            first_day=first_day,
            charges=charges.get(first_day, NO_CHARGES),
            hourly_connection_peaks=server_activity.hourly_connection_peaks.get(first_day, 0),
            egress_bytes=egress.get(first_day, 0),
        )
        for first_day in sorted({*charges, *server_activity.hourly_connection_peaks})
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
