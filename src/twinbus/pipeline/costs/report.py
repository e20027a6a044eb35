"""The cost report: a small summary of all charges.

Owns the queries on a billing account. Results are small for accounts of any size: the most expensive entities and
outages are listed, and all other entities and outages are only summed. `report_document` presents the report.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions

from twinbus.model.callbacks import ignore
from twinbus.pipeline.costs.bill import ZERO
from twinbus.pipeline.costs.billing_account import read_billing_account
from twinbus.pipeline.costs.charges import NO_CHARGES, PARKED_STAGES, Charges, Model, Stage, sum_charges
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

    from twinbus.pipeline.costs.bill import BillingTerms
    from twinbus.pipeline.costs.billing_account import BillingAccount

MAX_ENTITIES: Final = 100
MAX_DAYS: Final = 400
"""Maximum number of days in a chart; longer periods are shown by month."""
_PRIMARY_STAGES: Final = {"send": Stage.SEND_TO_PRIMARY, "receive": Stage.RECEIVE_FROM_PRIMARY}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCost:
    """Costs of one entity."""

    namespace: str
    path: str
    sent: int
    received: int
    charges: Charges
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCharges:
    """Number of messages in a group, and the charges for these messages."""

    messages: int = 0
    charges: Charges = NO_CHARGES


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """The cost report for an account."""

    account: BillingAccount
    stage_charges: dict[Stage, Charges]
    stage_costs: dict[Stage, Decimal]
    """Costs by stage, in the model of the bill."""
    parked: MessageCharges
    not_parked: MessageCharges
    unreceived_pings: int
    entities: tuple[EntityCost, ...]
    entity_count: int
    timeline: dict[dt.date, dict[Stage, int]]
    """Charges by day (or by month) and stage, in the model of the bill."""
    outages: tuple[Outage, ...]
    outage_count: int
    parked_outside_outages: int
    """Messages parked while their entity was not failed over, because one of its fragments was down."""

    @property
    def pairing_charges(self) -> Charges:
        """Charges that only a pair causes: two of the four stages, pings, and polls that returned no message."""
        return self._backlog_charges + self.stage_charges[Stage.PING] + self.stage_charges[Stage.IDLE_SYPHON]

    @property
    def _backlog_charges(self) -> Charges:
        return self.stage_charges[Stage.SEND_TO_BACKLOG] + self.stage_charges[Stage.RECEIVE_FROM_BACKLOG]

    @property
    def savings_without_pair(self) -> dict[Model, Decimal]:
        """Amount by which the bills would be lower without the pair.

        The charges that the pair causes are divided among the months in proportion to each month's charges.
        """
        account = self.account
        everything = sum((month.charges for month in account.months), NO_CHARGES)
        saved = dict.fromkeys(Model, ZERO)
        for month in account.months:
            for model in Model:
                whole = everything.for_model(model)
                part = self.pairing_charges.for_model(model) * month.charges.for_model(model) // whole if whole else 0
                saved[model] += month.savings_without(account.terms.tariff, model, Charges(part, part))
        return saved


def build_report(account: BillingAccount) -> CostReport:
    """Run all queries."""
    stages, costs, parked, not_parked = _charges_by_stage(account)
    outages = read_outages(account) if account.client_events is not None else ((), 0, 0)
    entities, count = _entity_costs(account)
    return CostReport(
        account=account,
        stage_charges=stages,
        stage_costs=costs,
        parked=parked,
        not_parked=not_parked,
        unreceived_pings=sum(day.messages for day in account.days if day.source == "clients"),
        entities=entities,
        entity_count=count,
        timeline=_charges_over_time(account),
        outages=outages[0],
        outage_count=outages[1],
        parked_outside_outages=outages[2],
    )


def _charges_by_stage(
    account: BillingAccount,
) -> tuple[dict[Stage, Charges], dict[Stage, Decimal], MessageCharges, MessageCharges]:
    terms = account.terms
    rates = {month.first_day: month.rate(terms.tariff, terms.model) for month in account.months}
    total: Counter[tuple[dt.date, Stage, str, Model]] = Counter()
    parked: dict[tuple[dt.date, Stage, str, Model], float] = {}
    for day in account.days:
        for model, part in zip((Model.DOCUMENT, Model.OPERATION), day.parked, strict=False):
            key = (day.day.replace(day=1), day.stage, day.kind, model)
            total[key] += day.charges.for_model(model)
            parked[key] = parked.get(key, 0.0) + part
    stages = {stage: dict.fromkeys(Model, 0) for stage in Stage}
    costs = dict.fromkeys(Stage, ZERO)
    for key, count in total.items():
        first_day, stage, kind, model = key
        moved = round(parked[key]) if stage is Stage.NOT_PARKED else 0
        for target_stage, charged in ((_PRIMARY_STAGES.get(kind, stage), moved), (stage, count - moved)):
            stages[target_stage][model] += charged
            if model is terms.model:
                costs[target_stage] += charged * rates[first_day]
    charges = {stage: Charges(counts[Model.DOCUMENT], counts[Model.OPERATION]) for stage, counts in stages.items()}
    return _split_parked(account, charges, costs)


def _split_parked(
    account: BillingAccount, stages: dict[Stage, Charges], costs: dict[Stage, Decimal]
) -> tuple[dict[Stage, Charges], dict[Stage, Decimal], MessageCharges, MessageCharges]:
    sent = [day for day in account.days if day.stage is Stage.NOT_PARKED and day.kind == "send"]
    parked_messages = round(sum(day.parked[2] for day in sent))
    if account.parked_source == "backlog":
        parked_messages = sum(day.messages for day in account.days if day.stage is Stage.RECEIVE_FROM_BACKLOG)
        _assume_moved(stages, costs, parked_messages)
    parked_charges = sum_charges({stage: stages[stage] for stage in PARKED_STAGES})
    other_messages = max(0, sum(day.messages for day in sent) - parked_messages)
    return (
        stages,
        costs,
        MessageCharges(messages=parked_messages, charges=parked_charges),
        MessageCharges(messages=other_messages, charges=stages[Stage.NOT_PARKED]),
    )


def _assume_moved(stages: dict[Stage, Charges], costs: dict[Stage, Decimal], moved: int) -> None:
    """Estimate the stages at the primary without journals.

    Messages that left the backlog are assumed to be sent to their destination and received there once with peek-lock.
    """
    from_backlog = stages[Stage.RECEIVE_FROM_BACKLOG]
    direct = stages[Stage.NOT_PARKED]
    send = Charges(min(from_backlog.document, direct.document), min(from_backlog.document, direct.operation))
    remaining = direct - send
    receive = Charges(
        min(from_backlog.document, remaining.document), min(from_backlog.document + moved, remaining.operation)
    )
    for stage, charges in ((Stage.SEND_TO_PRIMARY, send), (Stage.RECEIVE_FROM_PRIMARY, receive)):
        total = stages[Stage.NOT_PARKED].operation
        part = costs[Stage.NOT_PARKED] * charges.operation / total if total else ZERO
        stages[stage], costs[stage] = charges, part
        stages[Stage.NOT_PARKED] -= charges
        costs[Stage.NOT_PARKED] -= part


def _entity_costs(account: BillingAccount) -> tuple[tuple[EntityCost, ...], int]:
    model = account.terms.model.value
    by_entity = account.rows.groupBy("namespace", "entity").agg(
        *(functions.sum(name).alias(name) for name in ("document", "operation")),
        functions.sum(f"{model}_cost").alias("cost"),
        functions.expr("sum(IF(kind = 'send', messages, 0)) AS sent"),
        functions.expr("sum(IF(kind = 'receive', messages, 0)) AS received"),
    )
    rows = by_entity.orderBy(functions.desc(model), "namespace", "entity").limit(MAX_ENTITIES).collect()
    count = by_entity.count() if len(rows) == MAX_ENTITIES else len(rows)
    return (
        tuple(
            EntityCost(
                namespace=row.namespace,
                path=row.entity,
                sent=row.sent,
                received=row.received,
                charges=Charges(row.document, row.operation),
                cost=row.cost,
            )
            for row in rows
        ),
        count,
    )


def _charges_over_time(account: BillingAccount) -> dict[dt.date, dict[Stage, int]]:
    is_long = len({day.day for day in account.days}) > MAX_DAYS
    timeline: dict[dt.date, dict[Stage, int]] = {}
    for day in account.days:
        parts = timeline.setdefault(day.day.replace(day=1) if is_long else day.day, {})
        parts[day.stage] = parts.get(day.stage, 0) + day.charges.for_model(account.terms.model)
    return timeline


# --- the job ----------------------------------------------------------------------------------------------------------

_PARQUET_FILES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReportSettings:
    """Settings for a cost report."""

    usage_folders: Sequence[str]
    """Data folders of servers."""
    journal_folders: Sequence[str] = ()
    """Journal folders of clients."""
    terms: BillingTerms
    parquet_folder: str | None = None
    """Target for FOCUS rows: a new folder, or a location that Spark can write."""


def explain(
    spark: SparkSession, settings: CostReportSettings, on_progress: Callable[[str], None] = ignore
) -> CostReport:
    """Build a cost report. Call `on_progress` before each step. Raise PipelineError if Spark fails."""
    if (
        settings.parquet_folder is not None
        and "://" not in settings.parquet_folder
        and Path(settings.parquet_folder).exists()
    ):
        raise PipelineError(f"{settings.parquet_folder} already exists: name a new folder")
    try:
        return _build(spark, settings, on_progress)
    except PySparkException as error:
        raise PipelineError(f"Spark gave up: {first_line(error)}") from error


def _build(spark: SparkSession, settings: CostReportSettings, on_progress: Callable[[str], None]) -> CostReport:
    terms = settings.terms
    on_progress("looking for usage")
    usage = read_usage(spark, settings.usage_folders, since=terms.since, until=terms.until)
    account = read_billing_account(usage, terms, journals=settings.journal_folders, on_progress=on_progress)
    report = build_report(account)
    if settings.parquet_folder is not None:
        on_progress("writing FOCUS rows")
        focus_rows(account).coalesce(_PARQUET_FILES).write.parquet(settings.parquet_folder)
    return report
