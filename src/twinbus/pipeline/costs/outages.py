"""The cost of each outage: pings, and messages that were parked.

Owns the assignment of pings and parked messages to outages, and the average charges for a parked message at each
entity. If there are many outages, only the most expensive outages are returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import functions

from twinbus.pipeline.costs.charges import Charges
from twinbus.pipeline.costs.client_events import merge_outages
from twinbus.pipeline.costs.server_activity import to_utc

if TYPE_CHECKING:
    import datetime as dt
    from decimal import Decimal

    from pyspark.sql import Column, DataFrame

    from twinbus.pipeline.costs.billing_account import BillingAccount

MAX_OUTAGES: Final = 100
_OUTAGE_KEY: Final = ("namespace", "entity", "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An outage of one entity, merged over all clients."""

    namespace: str
    path: str
    since: dt.datetime
    until: dt.datetime
    is_over: bool
    """Whether every client saw the end of the outage."""
    client_count: int
    ping_count: int
    parked_count: int
    charges: Charges
    """Charges for pings and for the four stages of parked messages."""
    extra_charges: Charges
    """Charges that the outage caused."""
    cost: Decimal

    @property
    def duration(self) -> dt.timedelta:
        """Time from the first client's failover to the last client's recovery."""
        return self.until - self.since


def read_outages(account: BillingAccount) -> tuple[tuple[Outage, ...], int, int]:
    """Return the most expensive outages, the number of outages, and the number of messages parked outside outages."""
    assert account.client_events is not None
    outages = _with_counts(merge_outages(account.client_events.outages), account.client_events.counted).persist(
        StorageLevel.DISK_ONLY
    )
    rows = (
        _with_charges(outages, account)
        .orderBy(functions.desc(account.terms.model.value), "since")
        .limit(MAX_OUTAGES)
        .collect()
    )
    terms = account.terms
    result = []
    for row in rows:
        charges = Charges(round(row.document), round(row.operation))
        since, until = to_utc(row.since), to_utc(row.until)
        assert since is not None
        assert until is not None
        month = account.month(since.date().replace(day=1))
        result.append(
            Outage(
                namespace=row.namespace,
                path=row.entity,
                since=since,
                until=until,
                is_over=row.is_over,
                client_count=row.clients,
                ping_count=row.pings,
                parked_count=row.parked,
                charges=charges,
                extra_charges=Charges(round(row.extra_document), round(row.extra_operation)),
                cost=charges.for_model(terms.model) * month.rate(terms.tariff, terms.model),
            )
        )
    count, parked = len(result), sum(outage.parked_count for outage in result)
    if count == MAX_OUTAGES:
        totals = outages.selectExpr("count(*) AS outages", "coalesce(sum(parked), 0) AS parked").first()
        assert totals is not None
        count, parked = totals.outages, totals.parked
    return tuple(result), count, max(0, account.client_events.totals.get("parked", 0) - parked)


def _with_counts(outages: DataFrame, counted: DataFrame) -> DataFrame:
    events = counted.selectExpr("namespace AS of", "entity AS at", "minute", "outcome", "has_failed", "messages")
    belongs = (
        (events["of"] == outages["namespace"])
        & (events["at"] == outages["entity"])
        & (events["minute"] >= functions.date_trunc("minute", outages["since"]))
        & (events["minute"] <= outages["until"])
    )
    return (
        outages.join(events, belongs, "left")
        .groupBy(*_OUTAGE_KEY, "since", "until", "clients", "is_over")
        .agg(
            functions.expr("coalesce(sum(IF(outcome = 'pinged', messages, 0)), 0) AS pings"),
            functions.expr("coalesce(sum(IF(outcome = 'pinged' AND has_failed, messages, 0)), 0) AS failed_pings"),
            functions.expr("coalesce(sum(IF(outcome = 'parked', messages, 0)), 0) AS parked"),
        )
    )


def _with_charges(outages: DataFrame, account: BillingAccount) -> DataFrame:
    pings = "pings" if account.terms.bills_failed else "pings - failed_pings"
    backlog_averages, entity_averages = _backlog_averages(account.rows), _entity_averages(account.rows)
    outages = outages.withColumn("root", functions.lower("entity")).withColumn("primary", functions.lower("namespace"))
    joined = outages.join(functions.broadcast(backlog_averages), "primary", "left").join(
        entity_averages, ["namespace", "root"], "left"
    )
    columns = []
    for model, default_charges in (("document", 2), ("operation", 3)):
        # If no message sizes were counted, assume a small message that is received once.
        backlog_charges = f"coalesce(there_{model}, {default_charges})"
        entity_charges = f"coalesce(sent_{model} + received_{model}, {default_charges})"
        columns.append(f"{pings} + parked * ({backlog_charges} + {entity_charges}) AS {model}")
        columns.append(f"{pings} + parked * {backlog_charges} AS extra_{model}")
    return joined.selectExpr("*", *columns)


def _backlog_averages(rows: DataFrame) -> DataFrame:
    """Return the average charges for a message sent to and received from the backlog, by primary."""
    backlog = rows.where("is_backlog").withColumn("primary", functions.expr("lower(substring_index(entity, '/', 1))"))
    summed = backlog.groupBy("primary").agg(*_sum_columns("send"), *_sum_columns("receive"))
    return summed.selectExpr(
        "primary",
        "send_document / send_messages + receive_document / receive_messages AS there_document",
        "send_operation / send_messages + receive_operation / receive_messages AS there_operation",
    )


def _entity_averages(rows: DataFrame) -> DataFrame:
    """Return the average charges for a parked message at its destination, including all receives."""
    entity_rows = rows.where("NOT is_backlog AND NOT is_subqueue AND parked > 0")
    weight = " * parked"
    summed = entity_rows.groupBy("namespace", "root").agg(
        *_sum_columns("send", weight), *_sum_columns("receive", weight)
    )
    return summed.selectExpr(
        "namespace",
        "root",
        "send_document / send_messages AS sent_document",
        "send_operation / send_messages AS sent_operation",
        "receive_document / send_messages AS received_document",
        "receive_operation / send_messages AS received_operation",
    )


def _sum_columns(kind: str, weight: str = "") -> list[Column]:
    return [
        functions.expr(f"nullif(sum(IF(kind = '{kind}', {quantity}{weight}, 0)), 0) AS {kind}_{quantity}")
        for quantity in ("messages", "document", "operation")
    ]
