"""The document for a cost report: texts, tables and charts that explain a bill.

Owns the wording and the selection of figures. Knows nothing of how a document is displayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline.costs.bill import ZERO, money
from twinbus.pipeline.costs.charges import PARKED_STAGES, Charges, Model, Stage
from twinbus.pipeline.costs.document import BarChart, Document, Section, StackedChart, Table

if TYPE_CHECKING:
    from decimal import Decimal

    from twinbus.pipeline.costs.report import CostReport, MessageCharges

_MODELS: Final = (Model.DOCUMENT, Model.OPERATION)
_MODEL_NAMES: Final = {Model.DOCUMENT: "document's model", Model.OPERATION: "operation model"}
_COUNT_COLUMNS: Final = (">document's model", ">operation model")
_PAIR_STAGES: Final = (Stage.SEND_TO_BACKLOG, Stage.RECEIVE_FROM_BACKLOG, Stage.PING, Stage.IDLE_SYPHON)
_MAX_BARS: Final = 12
_MAX_GAPS: Final = 20
_PARKED_SOURCE_NOTES: Final = {
    "moved back": "The syphons' journals tell which messages were parked.",
    "parked": "The senders' journals tell which messages were parked, but not when these were returned.",
    "backlog": "No journal tells the destinations of parked messages: messages that left the backlog are assumed to be "
    "sent to the primary and received once. Give the clients' journals (--journals) for counts by entity.",
}


def report_document(report: CostReport) -> Document:
    """Build the document for a cost report."""
    account = report.account
    tariff, activity = account.terms.tariff, account.server_activity
    first, last = activity.first_minute, activity.last_minute
    period = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC" if first and last else "unknown"
    facts = [
        ("time", period),
        (
            "bill",
            f"{money(_total_bill(report, account.terms.model), tariff.currency)}, {_MODEL_NAMES[account.terms.model]}",
        ),
        ("tariff", f"{tariff.name}, {tariff.date}"),
        ("source", tariff.source),
        ("failed calls", "are charged" if account.terms.bills_failed else "are not charged"),
    ]
    sections = [
        _bills_section(report),
        _stages_section(report),
        _parked_section(report),
        _pairing_section(report),
        _outages_section(report),
    ]
    sections += [_entities_section(report), _timeline_section(report), _missing_usage_section(report)]
    return Document(
        title="What it cost",
        facts=facts,
        warnings=_warnings(report),
        sections=[section for section in sections if section is not None],
    )


def _total_bill(report: CostReport, model: Model) -> Decimal:
    account = report.account
    return sum((month.bill(account.terms.tariff, model).total for month in account.months), ZERO)


def _warnings(report: CostReport) -> list[str]:
    activity, clients = report.account.server_activity, report.account.client_events
    warnings = []
    if activity.gap_count:
        lives = "one run" if activity.gap_count == 1 else f"{activity.gap_count:,} runs"
        warnings.append(
            f"Usage may be missing: {lives} of server processes ended unexpectedly or could not write usage. "
            "Each is listed at the end. The bill may be higher by the calls that were not recorded."
        )
    if clients is None:
        warnings.append("Without the clients' journals, outages and pings that reached no server are unknown.")
    elif clients.lost_rows:
        warnings.append(
            f"{clients.lost_rows:,} rows of clients' journals were lost because a disk was too slow: "
            "there may be more outages, pings and parked messages."
        )
    return warnings


def _bills_section(report: CostReport) -> Section:
    account, tariff = report.account, report.account.terms.tariff
    currency, model = tariff.currency, account.terms.model
    rows = []
    for month in account.months:
        bill, other = month.bill(tariff, model), month.bill(tariff, _other_model(model))
        amounts = (bill.operations, bill.base, bill.connections, bill.egress, bill.total, other.total)
        rows.append(
            (
                f"{month.first_day:%Y-%m}",
                f"{month.charges.for_model(model):,}",
                *(money(amount, currency) for amount in amounts),
            )
        )
    columns = (
        "month",
        ">charges",
        ">operations",
        ">base",
        ">connections",
        ">data out",
        ">bill",
        f">bill, {_MODEL_NAMES[_other_model(model)]}",
    )
    bars = [
        (
            f"{month.first_day:%Y-%m}",
            float(month.bill(tariff, model).total),
            money(month.bill(tariff, model).total, currency),
        )
        for month in account.months
    ]
    charts = (BarChart(f"Bill of each month, {_MODEL_NAMES[model]}", bars),) if len(bars) > 1 else ()
    paragraphs = (
        (
            "Operations of all namespaces are billed together by calendar month. A month that is not over, or only "
            "partly included, has its full base charge."
        ),
    )
    return Section(title="The bills", paragraphs=paragraphs, charts=charts, tables=(Table(columns, rows),))


def _stages_section(report: CostReport) -> Section:
    currency = report.account.terms.tariff.currency
    rows = [
        (stage.value, *_count_cells(report.stage_charges[stage]), money(report.stage_costs[stage], currency))
        for stage in Stage
        if report.stage_charges[stage] != Charges() or stage in PARKED_STAGES
    ]
    total = sum(report.stage_charges.values(), Charges())
    rows.append(("all", *_count_cells(total), money(sum(report.stage_costs.values(), ZERO), currency)))
    model = report.account.terms.model
    bars = [
        (
            stage.value,
            float(report.stage_charges[stage].for_model(model)),
            f"{report.stage_charges[stage].for_model(model):,}",
        )
        for stage in PARKED_STAGES
    ]
    charts = (
        (BarChart(f"The four stages of parked messages, {_MODEL_NAMES[model]}", bars),)
        if report.parked.messages
        else ()
    )
    return Section(
        title="What the charges are for",
        paragraphs=(
            (
                "The first four are the stages of parked messages. The cost of each stage is its share of the month's "
                "operations; included operations are free."
            ),
            *((_PARKED_SOURCE_NOTES[report.account.parked_source],) if report.parked.messages else ()),
        ),
        charts=charts,
        tables=(Table(("what for", *_COUNT_COLUMNS, ">cost"), rows, has_total=True),),
    )


def _parked_section(report: CostReport) -> Section | None:
    if not report.parked.messages and not report.not_parked.messages:
        return None
    rows = [_parked_row("parked", report.parked), _parked_row("not parked", report.not_parked)]
    columns = ("messages", ">count", *_COUNT_COLUMNS, ">each, document", ">each, operation")
    return Section(title="Parked against not parked", tables=(Table(columns, rows),))


def _parked_row(name: str, message_charges: MessageCharges) -> tuple[str, ...]:
    count, charges = message_charges.messages, message_charges.charges
    each = [f"{charges.for_model(model) / count:.2f}" if count else "-" for model in _MODELS]
    return (name, f"{count:,}", *_count_cells(charges), *each)


def _pairing_section(report: CostReport) -> Section:
    currency, stages = report.account.terms.tariff.currency, report.stage_charges
    saved = report.savings_without_pair
    backlog = stages[Stage.SEND_TO_BACKLOG] + stages[Stage.RECEIVE_FROM_BACKLOG]
    rows = [
        ("parked messages, sent to and received from the backlog", *_count_cells(backlog)),
        ("pings", *_count_cells(stages[Stage.PING])),
        ("idle syphon: polls of backlog queues that found nothing", *_count_cells(stages[Stage.IDLE_SYPHON])),
        ("all", *_count_cells(report.pairing_charges)),
    ]
    unreceived = f"{report.unreceived_pings:,} pings reached no server: only the clients' journals contain them."
    saving = " or ".join(f"{money(saved[model], currency)} ({_MODEL_NAMES[model]})" for model in _MODELS)
    return Section(
        title="What the pair added",
        paragraphs=(
            f"Without it the bills would be lower by {saving}, but sends would have failed during outages.",
            *((unreceived,) if report.unreceived_pings else ()),
        ),
        tables=(Table(("what for", *_COUNT_COLUMNS), rows, has_total=True),),
    )


def _outages_section(report: CostReport) -> Section | None:
    if report.account.client_events is None:
        return None
    outside = (
        f"{report.parked_outside_outages:,} messages were parked outside these outages, while a fragment was down."
    )
    if not report.outages:
        notes = (outside,) if report.parked_outside_outages else ()
        return Section(title="Outages", paragraphs=("No client reported an outage in this period.", *notes))
    currency = report.account.terms.tariff.currency
    rows = [
        (
            f"{outage.namespace}/{outage.path}",
            f"{outage.since:%Y-%m-%d %H:%M:%S}",
            _format_duration(outage.duration.total_seconds(), is_over=outage.is_over),
            f"{outage.client_count:,}",
            f"{outage.ping_count:,}",
            f"{outage.parked_count:,}",
            *_count_cells(outage.charges),
            *_count_cells(outage.extra_charges),
            money(outage.cost, currency),
        )
        for outage in report.outages
    ]
    columns = (
        "entity",
        "since (UTC)",
        ">lasted",
        ">clients",
        ">pings",
        ">parked",
        ">document",
        ">operation",
        ">more, document",
        ">more, operation",
        ">cost",
    )
    note = f"The {len(rows):,} most expensive of {report.outage_count:,}." if report.outage_count > len(rows) else ""
    return Section(
        title="Outages",
        paragraphs=(
            (
                "From the first client that failed over to the last that recovered. Charges are those of pings and of "
                "the four stages of parked messages; 'more' is what would not have been charged without the outage."
            ),
            *((note,) if note else ()),
            *((outside,) if report.parked_outside_outages else ()),
        ),
        tables=(Table(columns, rows),),
    )


def _entities_section(report: CostReport) -> Section:
    currency, model = report.account.terms.tariff.currency, report.account.terms.model
    rows = [
        (
            f"{entity.namespace}/{entity.path}" if entity.path else f"{entity.namespace} (itself)",
            f"{entity.sent:,}",
            f"{entity.received:,}",
            *_count_cells(entity.charges),
            money(entity.cost, currency),
        )
        for entity in report.entities
    ]
    most_charged = report.entities[:_MAX_BARS]
    bars = [
        (
            f"{entity.namespace}/{entity.path}",
            float(entity.charges.for_model(model)),
            f"{entity.charges.for_model(model):,}",
        )
        for entity in most_charged
    ]
    note = f"The {len(rows):,} with the most charges, of {report.entity_count:,}."
    return Section(
        title="Entities",
        paragraphs=(note,) if report.entity_count > len(rows) else (),
        charts=(BarChart(f"Charges, {_MODEL_NAMES[model]}", bars),),
        tables=(Table(("entity", ">sent", ">received", *_COUNT_COLUMNS, ">cost"), rows),),
    )


def _timeline_section(report: CostReport) -> Section | None:
    days = list(report.timeline)
    if len(days) < 2:  # noqa: PLR2004  # a single day needs no chart
        return None
    model, labels = report.account.terms.model, [f"{day:%Y-%m-%d}" for day in days]
    charts = []
    for title, wanted in (("Charges over time", tuple(Stage)), ("What the pair added over time", _PAIR_STAGES)):
        stages = [stage for stage in wanted if any(stage in parts for parts in report.timeline.values())]
        series = [(stage.value, [report.timeline[day].get(stage, 0) for day in days]) for stage in stages]
        if series:
            charts.append(StackedChart(f"{title}, {_MODEL_NAMES[model]}", "charges", labels, series))
    note = "Here, a syphon's sends to the primary count as messages not parked."
    return Section(title="Over time", paragraphs=(note,) if report.parked.messages else (), charts=charts)


def _missing_usage_section(report: CostReport) -> Section | None:
    activity = report.account.server_activity
    if not activity.gaps:
        return None
    rows = [(gap.namespace, str(gap.process), gap.life, gap.reason) for gap in activity.gaps[:_MAX_GAPS]]
    more = f"The latest {_MAX_GAPS:,} of {activity.gap_count:,}."
    return Section(
        title="Usage that may be missing",
        paragraphs=(
            "A process writes its counts about once a second. A killed process loses less than a second.",
            *((more,) if activity.gap_count > _MAX_GAPS else ()),
        ),
        tables=(Table(("namespace", ">process", "life", "what happened"), rows),),
    )


def _count_cells(charges: Charges) -> tuple[str, str]:
    return f"{charges.document:,}", f"{charges.operation:,}"


def _other_model(model: Model) -> Model:
    return Model.DOCUMENT if model is Model.OPERATION else Model.OPERATION


def _format_duration(seconds: float, *, is_over: bool) -> str:
    total_seconds = int(seconds)
    hours, minutes = divmod(total_seconds // 60, 60)
    text = f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {total_seconds % 60:02} s"
    return text if is_over else f"over {text}"
