"""The report on a bill: the little that is worth reading, out of all rows.

Owns: what is asked of an account, and that the answers are small whatever its size is: of entities and outages the
dearest are named and the others summed. How it is shown is in `explained`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions

from twinbus.model.callbacks import ignore
from twinbus.pipeline.costs.account import open_account
from twinbus.pipeline.costs.bill import ZERO
from twinbus.pipeline.costs.charges import NONE, THE_FOUR, Charges, Model, Stage, total
from twinbus.pipeline.costs.focus import focus_rows
from twinbus.pipeline.costs.outages import Outage, read_outages
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.spark import first_line
from twinbus.pipeline.usage import read_usage

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence
    from decimal import Decimal

    from pyspark.sql import SparkSession

    from twinbus.pipeline.costs.account import Account
    from twinbus.pipeline.costs.bill import Terms

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
    stages, costs, parked, not_parked = _stages(account)
    outages = read_outages(account) if account.clients is not None else ((), 0, 0)
    entities, count = _entities(account)
    return Report(
        account=account,
        stages=stages,
        costs=costs,
        parked=parked,
        not_parked=not_parked,
        unseen_pings=sum(day.messages for day in account.days if day.source == "clients"),
        entities=entities,
        entity_count=count,
        timeline=_timeline(account),
        outages=outages[0],
        outage_count=outages[1],
        outside=outages[2],
    )


def _stages(account: Account) -> tuple[dict[Stage, Charges], dict[Stage, Decimal], Parked, Parked]:
    terms = account.terms
    rates = {month.begins: month.rate(terms.tariff, terms.model) for month in account.months}
    whole: Counter[tuple[dt.date, Stage, str, Model]] = Counter()
    theirs: dict[tuple[dt.date, Stage, str, Model], float] = {}
    for day in account.days:
        for model, part in zip((Model.DOCUMENT, Model.OPERATION), day.parked, strict=False):
            key = (day.day.replace(day=1), day.stage, day.kind, model)
            whole[key] += day.charges.by(model)
            theirs[key] = theirs.get(key, 0.0) + part
    stages = {stage: dict.fromkeys(Model, 0) for stage in Stage}
    costs = dict.fromkeys(Stage, ZERO)
    for key, count in whole.items():
        begins, stage, kind, model = key
        moved = round(theirs[key]) if stage is Stage.NOT_PARKED else 0
        for where, charged in ((_OF_PRIMARY.get(kind, stage), moved), (stage, count - moved)):
            stages[where][model] += charged
            if model is terms.model:
                costs[where] += charged * rates[begins]
    told = {stage: Charges(counts[Model.DOCUMENT], counts[Model.OPERATION]) for stage, counts in stages.items()}
    return _parked(account, told, costs)


def _parked(
    account: Account, stages: dict[Stage, Charges], costs: dict[Stage, Decimal]
) -> tuple[dict[Stage, Charges], dict[Stage, Decimal], Parked, Parked]:
    sent = [day for day in account.days if day.stage is Stage.NOT_PARKED and day.kind == "send"]
    moved = round(sum(day.parked[2] for day in sent))
    if account.parked_by == "backlog":
        moved = sum(day.messages for day in account.days if day.stage is Stage.RECEIVE_FROM_BACKLOG)
        _move(stages, costs, moved)
    four = total({stage: stages[stage] for stage in THE_FOUR})
    rest = max(0, sum(day.messages for day in sent) - moved)
    return (
        stages,
        costs,
        Parked(messages=moved, charges=four),
        Parked(messages=rest, charges=stages[Stage.NOT_PARKED]),
    )


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
    model = account.terms.model.value
    by_entity = account.rows.groupBy("namespace", "entity").agg(
        *(functions.sum(name).alias(name) for name in ("document", "operation")),
        functions.sum(f"{model}_cost").alias("cost"),
        functions.expr("sum(IF(kind = 'send', messages, 0)) AS sent"),
        functions.expr("sum(IF(kind = 'receive', messages, 0)) AS received"),
    )
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
                cost=row.cost,
            )
            for row in dearest
        ),
        count,
    )


def _timeline(account: Account) -> dict[dt.date, dict[Stage, int]]:
    is_long = len({day.day for day in account.days}) > MOST_DAYS
    timeline: dict[dt.date, dict[Stage, int]] = {}
    for day in account.days:
        parts = timeline.setdefault(day.day.replace(day=1) if is_long else day.day, {})
        parts[day.stage] = parts.get(day.stage, 0) + day.charges.by(account.terms.model)
    return timeline


# --- the job ----------------------------------------------------------------------------------------------------------

_FILES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for."""

    usage: Sequence[str]
    """Servers' data folders."""
    journals: Sequence[str] = ()
    """Clients' journal folders."""
    terms: Terms
    parquet: str | None = None
    """Where FOCUS rows go: a folder that is not there yet, or a place that Spark knows."""


def explain(spark: SparkSession, wanted: Wanted, tell: Callable[[str], None] = ignore) -> Report:
    """Do all of it; `tell` is called with what is done next. PipelineError says what the user has to mend."""
    if wanted.parquet is not None and "://" not in wanted.parquet and Path(wanted.parquet).exists():
        raise PipelineError(f"{wanted.parquet} is there already: name a folder that is not")
    try:
        return _explain(spark, wanted, tell)
    except PySparkException as error:
        raise PipelineError(f"Spark gave up: {first_line(error)}") from error


def _explain(spark: SparkSession, wanted: Wanted, tell: Callable[[str], None]) -> Report:
    terms = wanted.terms
    tell("looking for usage")
    usage = read_usage(spark, wanted.usage, since=terms.since, until=terms.until)
    account = open_account(usage, terms, journals=wanted.journals, tell=tell)
    report = make_report(account)
    if wanted.parquet is not None:
        tell("writing FOCUS rows")
        focus_rows(account).coalesce(_FILES).write.parquet(wanted.parquet)
    return report
