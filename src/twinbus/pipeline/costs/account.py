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
from twinbus.pipeline.costs.bill import Month
from twinbus.pipeline.costs.charges import NONE, Charges, Model, Stage
from twinbus.pipeline.costs.clients import read_clients
from twinbus.pipeline.costs.joining import parked_shares, unseen_pings, with_parked
from twinbus.pipeline.costs.kinds import by_kind, one_pass, sums
from twinbus.pipeline.costs.pulse import Pulse, read_pulse
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from twinbus.pipeline.costs.bill import Terms
    from twinbus.pipeline.costs.clients import Clients
    from twinbus.pipeline.costs.tariff import Tariff

_RATE: Final = "decimal(19,18)"
"""Times a number of 18 digits that is as much as Spark counts exactly: all of a month is off by less than a cent."""
_RATE_STEP: Final = Decimal(1).scaleb(-18)


class Day(NamedTuple):
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
class Account:
    """All of it."""

    terms: Terms
    rows: DataFrame
    """period, month, namespace, entity, root, client, is_backlog, is_subqueue, kind, stage, source; document,
    operation, messages, bytes, egress_bytes; parked (0 to 1: how much of it is due to parked messages); document_cost,
    operation_cost."""
    days: tuple[Day, ...]
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
    tell: Callable[[str], None] = ignore,
) -> Account:
    """Read and join it all. PipelineError where nothing was counted. `tell` is called with what is done next."""
    tell("adding up what servers counted")
    passed = one_pass(usage, terms.period).persist(StorageLevel.DISK_ONLY)
    namespaces = [row.namespace for row in passed.select("namespace").distinct().collect()]
    if not namespaces:
        raise PipelineError("nothing was counted in that time")
    clients = None
    if journals:
        tell("reading the clients' journals")
        clients = read_clients(usage.sparkSession, journals, namespaces, since=terms.since, until=terms.until)
    tell("joining both")
    summed = sums(passed, terms.period).persist(StorageLevel.DISK_ONLY)
    parked_by, rows = _joined(by_kind(summed, bills_failed=terms.bills_failed), clients, terms)
    rows = rows.withColumn("egress_bytes", _egress(terms)).persist(StorageLevel.DISK_ONLY)
    days = _days(rows)
    tell("looking for connections and missing minutes")
    pulse = read_pulse(passed, dt.datetime.now(dt.UTC))
    months = _months(days, pulse)
    return Account(
        terms=terms,
        rows=_priced(rows, months, terms.tariff),
        days=days,
        months=months,
        pulse=pulse,
        clients=clients,
        parked_by=parked_by,
    )


def _joined(rows: DataFrame, clients: Clients | None, terms: Terms) -> tuple[str, DataFrame]:
    """Rows with their source, pings that no server counted, and `parked`."""
    rows = rows.withColumn("source", functions.lit("servers"))
    shares = None
    if clients is not None:
        if terms.bills_failed and clients.totals.get("pinged"):
            rows = rows.unionByName(unseen_pings(rows, clients, terms.period))
        shares = parked_shares(rows, clients)
    return "backlog" if shares is None else shares.known_by, with_parked(rows, shares)


def _egress(terms: Terms) -> Column:
    share = int(terms.egress * 10_000)
    return functions.expr(f"IF(kind = 'receive', IF(is_backlog, bytes, bytes * {share}L div 1000000), 0L)")


def _days(rows: DataFrame) -> tuple[Day, ...]:
    """The one look at all rows."""
    found = rows.groupBy(functions.to_date("period").alias("day"), "stage", "kind", "source").agg(
        *(functions.sum(name).alias(name) for name in ("document", "operation", "messages", "egress_bytes")),
        *(functions.expr(f"sum({name} * parked) AS parked_{name}") for name in ("document", "operation", "messages")),
    )
    days = [
        Day(
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


def _months(days: tuple[Day, ...], pulse: Pulse) -> tuple[Month, ...]:
    charges: dict[dt.date, Charges] = {}
    egress: dict[dt.date, int] = {}
    for day in days:
        begins = day.day.replace(day=1)
        charges[begins] = charges.get(begins, NONE) + day.charges
        egress[begins] = egress.get(begins, 0) + day.egress_bytes
    return tuple(
        Month(
            begins=begins,
            charges=charges.get(begins, NONE),
            hourly_peaks=pulse.hourly_peaks.get(begins, 0),
            egress_bytes=egress.get(begins, 0),
        )
        for begins in sorted({*charges, *pulse.hourly_peaks})
    )


def _priced(rows: DataFrame, months: tuple[Month, ...], tariff: Tariff) -> DataFrame:
    values = ", ".join(
        f"(TIMESTAMP'{month.begins}', {_rate(month, tariff, Model.DOCUMENT)}, {_rate(month, tariff, Model.OPERATION)})"
        for month in months
    )
    rates = rows.sparkSession.sql(f"SELECT * FROM VALUES {values} AS rates (month, document_rate, operation_rate)")  # noqa: S608  # dates and numbers
    return (
        rows.join(functions.broadcast(rates), "month")
        .withColumn("document_cost", functions.expr("CAST(document AS decimal(18,0)) * document_rate"))
        .withColumn("operation_cost", functions.expr("CAST(operation AS decimal(18,0)) * operation_rate"))
    )


def _rate(month: Month, tariff: Tariff, model: Model) -> str:
    return f"CAST('{month.rate(tariff, model).quantize(_RATE_STEP):f}' AS {_RATE})"
