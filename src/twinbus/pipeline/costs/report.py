"""The report on a bill: the little that is worth reading, out of all rows.

Owns: what is asked of an account, and that the answers are small whatever its size is: of entities and outages the
dearest are named and the others summed. How it is shown is in `explained`.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions

from twinbus.pipeline.costs.charges import NONE, THE_FOUR, Charges, Model, Stage, total
from twinbus.pipeline.costs.charging import ZERO
from twinbus.pipeline.costs.outages import Outage, read_outages

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import Column

    from twinbus.pipeline.costs.account import Account

MOST_ENTITIES: Final = 100
MOST_DAYS: Final = 400
"""In a chart; of a longer time it has months."""
_OF_PRIMARY: Final = {"send": Stage.SEND_TO_PRIMARY, "receive": Stage.RECEIVE_FROM_PRIMARY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """What an entity cost."""

    namespace: str
    path: str
    sent: int
    received: int
    charges: Charges
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Messages that were, or were not."""

    messages: int = 0
    charges: Charges = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it."""

    account: Account
    stages: dict[Stage, Charges]
    costs: dict[Stage, Decimal]
    """In the model of the bill."""
    parked: Parked
    not_parked: Parked
    unseen_pings: int
    entities: tuple[Entity, ...]
    entity_count: int
    timeline: dict[dt.date, dict[Stage, int]]
    """By day, or by month; in the model of the bill."""
    outages: tuple[Outage, ...]
    outage_count: int
    outside: int
    """Messages that were parked while their entity was not failed over: a fragment of it was down."""

    @property
    def pairing(self) -> Charges:
        """What there would not be without a pair: two of the four stages, pings, and polls that found nothing."""
        return self._extra + self.stages[Stage.PING] + self.stages[Stage.IDLE_SYPHON]

    @property
    def _extra(self) -> Charges:
        return self.stages[Stage.SEND_TO_BACKLOG] + self.stages[Stage.RECEIVE_FROM_BACKLOG]

    @property
    def saved_without(self) -> dict[Model, Decimal]:
        """By how much all bills would be lower without it; of several months each has its part."""
        account = self.account
        everything = sum((month.charges for month in account.months), NONE)
        saved = dict.fromkeys(Model, ZERO)
        for month in account.months:
            for model in Model:
                whole = everything.by(model)
                part = self.pairing.by(model) * month.charges.by(model) // whole if whole else 0
                saved[model] += month.saved_without(account.terms.tariff, model, Charges(part, part))
        return saved


def make_report(account: Account) -> Report:
    """Ask for everything."""
    cost = f"{account.terms.model.value}_cost"
    of_parked = {"document": "document", "operation": "operation", "messages": "messages", "cost": cost}
    parts = [functions.expr(f"sum({what} * parked) AS parked_{name}") for name, what in of_parked.items()]
    found = account.rows.groupBy("stage", "kind", "source").agg(*_sums(), *parts).collect()
    stages, costs, parked, not_parked = _stages(found, account)
    outages = read_outages(account) if account.clients is not None else ((), 0, 0)
    entities, count = _entities(account)
    return Report(
        account=account,
        stages=stages,
        costs=costs,
        parked=parked,
        not_parked=not_parked,
        unseen_pings=sum(row.messages for row in found if row.source == "clients"),
        entities=entities,
        entity_count=count,
        timeline=_timeline(account),
        outages=outages[0],
        outage_count=outages[1],
        outside=outages[2],
    )


def _stages(found: list[Any], account: Account) -> tuple[dict[Stage, Charges], dict[Stage, Decimal], Parked, Parked]:
    stages, costs = dict.fromkeys(Stage, NONE), dict.fromkeys(Stage, ZERO)
    moved = sent = 0
    for row in found:
        stage, charges, cost = Stage(row.stage), Charges(row.document, row.operation), _cost(row, account)
        if stage is Stage.NOT_PARKED:
            theirs = Charges(round(row.parked_document), round(row.parked_operation))
            part = Decimal(str(row.parked_cost))
            stages[_OF_PRIMARY[row.kind]] += theirs
            costs[_OF_PRIMARY[row.kind]] += part
            charges, cost = charges - theirs, cost - part
            if row.kind == "send":
                moved += round(row.parked_messages)
                sent += row.messages
        stages[stage] += charges
        costs[stage] += cost
    if account.parked_by == "backlog":
        moved = sum(row.messages for row in found if row.stage == Stage.RECEIVE_FROM_BACKLOG.value)
        _move(stages, costs, moved)
    four = total({stage: stages[stage] for stage in THE_FOUR})
    parked = Parked(messages=moved, charges=four)
    return stages, costs, parked, Parked(messages=max(0, sent - moved), charges=stages[Stage.NOT_PARKED])


def _move(stages: dict[Stage, Charges], costs: dict[Stage, Decimal], moved: int) -> None:
    """Without journals: what left the backlog was sent on, and received from where it belongs, by peek-lock."""
    back = stages[Stage.RECEIVE_FROM_BACKLOG]
    direct = stages[Stage.NOT_PARKED]
    send = Charges(min(back.document, direct.document), min(back.document, direct.operation))
    rest = direct - send
    receive = Charges(min(back.document, rest.document), min(back.document + moved, rest.operation))
    for stage, theirs in ((Stage.SEND_TO_PRIMARY, send), (Stage.RECEIVE_FROM_PRIMARY, receive)):
        whole = stages[Stage.NOT_PARKED].operation
        part = costs[Stage.NOT_PARKED] * theirs.operation / whole if whole else ZERO
        stages[stage], costs[stage] = theirs, part
        stages[Stage.NOT_PARKED] -= theirs
        costs[Stage.NOT_PARKED] -= part


def _entities(account: Account) -> tuple[tuple[Entity, ...], int]:
    by_entity = account.rows.groupBy("namespace", "entity").agg(
        *_sums(),
        functions.expr("sum(IF(kind = 'send', messages, 0)) AS sent"),
        functions.expr("sum(IF(kind = 'receive', messages, 0)) AS received"),
    )
    model = account.terms.model.value
    dearest = by_entity.orderBy(functions.desc(model), "namespace", "entity").limit(MOST_ENTITIES).collect()
    count = by_entity.count() if len(dearest) == MOST_ENTITIES else len(dearest)
    return (
        tuple(
            Entity(
                namespace=row.namespace,
                path=row.entity,
                sent=row.sent,
                received=row.received,
                charges=Charges(row.document, row.operation),
                cost=_cost(row, account),
            )
            for row in dearest
        ),
        count,
    )


def _timeline(account: Account) -> dict[dt.date, dict[Stage, int]]:
    days = account.rows.withColumn("day", functions.to_date("period"))
    span = days.select("day").distinct().count()
    if span > MOST_DAYS:
        days = days.withColumn("day", functions.to_date("month"))
    model = account.terms.model.value
    timeline: dict[dt.date, dict[Stage, int]] = {}
    for row in days.groupBy("day", "stage").agg(functions.sum(model).alias("charged")).orderBy("day").collect():
        timeline.setdefault(row.day, {})[Stage(row.stage)] = row.charged
    return timeline


def _cost(row: Any, account: Account) -> Decimal:  # noqa: ANN401  # a row of Spark's
    cost: Decimal = row.operation_cost if account.terms.model is Model.OPERATION else row.document_cost
    return cost


def _sums() -> list[Column]:
    names = ("document", "operation", "messages", "document_cost", "operation_cost")
    return [functions.sum(name).alias(name) for name in names]
