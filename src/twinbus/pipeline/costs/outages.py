"""What each outage cost: pings, and messages that went through the backlog.

Owns: which pings and parked messages belong to which outage, and what a parked message of each entity costs on average.
Of many outages, the most expensive are reported.
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
    """Of one entity, as all clients saw it."""

    namespace: str
    path: str
    since: dt.datetime
    until: dt.datetime
    is_over: bool
    """Every client saw its end."""
    client_count: int
    ping_count: int
    parked_count: int
    charges: Charges
    """Of pings and of the four stages."""
    extra_charges: Charges
    """What of that there would not have been without the outage."""
    cost: Decimal

    @property
    def duration(self) -> dt.timedelta:
        """From the first client that failed over to the last that came back."""
        return self.until - self.since


def read_outages(account: BillingAccount) -> tuple[tuple[Outage, ...], int, int]:
    """The dearest, how many there were, and how many messages were parked outside of any."""
    assert account.client_events is not None
    outages = _with_counts(merge_outages(account.client_events.outages), account.client_events.counted).persist(
        StorageLevel.DISK_ONLY
    )
    dearest = (
        _with_charges(outages, account)
        .orderBy(functions.desc(account.terms.model.value), "since")
        .limit(MAX_OUTAGES)
        .collect()
    )
    terms = account.terms
    found = []
    for row in dearest:
        charges = Charges(round(row.document), round(row.operation))
        since, until = to_utc(row.since), to_utc(row.until)
        assert since is not None
        assert until is not None
        month = account.month(since.date().replace(day=1))
        found.append(
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
    count, parked = len(found), sum(one.parked_count for one in found)
    if count == MAX_OUTAGES:
        whole = outages.selectExpr("count(*) AS outages", "coalesce(sum(parked), 0) AS parked").first()
        assert whole is not None
        count, parked = whole.outages, whole.parked
    return tuple(found), count, max(0, account.client_events.totals.get("parked", 0) - parked)


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
    there, theirs = _backlog_averages(account.rows), _entity_averages(account.rows)
    outages = outages.withColumn("root", functions.lower("entity")).withColumn("primary", functions.lower("namespace"))
    joined = outages.join(functions.broadcast(there), "primary", "left").join(theirs, ["namespace", "root"], "left")
    columns = []
    for model, in_vain in (("document", 2), ("operation", 3)):
        # Where sizes are not known, because nothing was counted, a message is a small one that is received once.
        way = f"coalesce(there_{model}, {in_vain})"
        own = f"coalesce(sent_{model} + received_{model}, {in_vain})"
        columns.append(f"{pings} + parked * ({way} + {own}) AS {model}")
        columns.append(f"{pings} + parked * {way} AS extra_{model}")
    return joined.selectExpr("*", *columns)


def _backlog_averages(rows: DataFrame) -> DataFrame:
    """What a parked message costs on its way there and back, by primary."""
    backlog = rows.where("is_backlog").withColumn("primary", functions.expr("lower(substring_index(entity, '/', 1))"))
    summed = backlog.groupBy("primary").agg(*_sum_columns("send"), *_sum_columns("receive"))
    return summed.selectExpr(
        "primary",
        "send_document / send_messages + receive_document / receive_messages AS there_document",
        "send_operation / send_messages + receive_operation / receive_messages AS there_operation",
    )


def _entity_averages(rows: DataFrame) -> DataFrame:
    """What a parked message costs that is sent to a queue or topic, with all receives that come of it."""
    own = rows.where("NOT is_backlog AND NOT is_subqueue AND parked > 0")
    weight = " * parked"
    summed = own.groupBy("namespace", "root").agg(*_sum_columns("send", weight), *_sum_columns("receive", weight))
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
        functions.expr(f"nullif(sum(IF(kind = '{kind}', {what}{weight}, 0)), 0) AS {kind}_{what}")
        for what in ("messages", "document", "operation")
    ]
