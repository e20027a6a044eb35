"""What is told of a bill that servers' usage and clients' journals explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline.costs.bill import ZERO, money
from twinbus.pipeline.costs.charges import THE_FOUR, Charges, Model, Stage
from twinbus.pipeline.costs.document import Bars, Document, Section, Stack, Table

if TYPE_CHECKING:
    from decimal import Decimal

    from twinbus.pipeline.costs.report import Parked, Report

_MODELS: Final = (Model.DOCUMENT, Model.OPERATION)
_NAMES: Final = {Model.DOCUMENT: "document's model", Model.OPERATION: "operation model"}
_COUNTS: Final = (">document's model", ">operation model")
_OF_PAIR: Final = (Stage.SEND_TO_BACKLOG, Stage.RECEIVE_FROM_BACKLOG, Stage.PING, Stage.IDLE_SYPHON)
_BARS: Final = 12
_GAPS: Final = 20
_SOURCES: Final = {
    "moved back": "Which messages had been parked is known from the syphons' journals.",
    "parked": "Which messages had been parked is known from the senders' journals; when they came back is not.",
    "backlog": "No journal tells for whom messages were parked: what left the backlog is taken to have been sent on, "
    "and to have been received once. Give the clients' journals (--journals) to know it by entity.",
}


def tell_report(report: Report) -> Document:
    """All of it."""
    account = report.account
    tariff, pulse = account.terms.tariff, account.pulse
    first, last = pulse.first, pulse.last
    when = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC" if first and last else "unknown"
    facts = [
        ("time", when),
        ("bill", f"{money(_whole(report, account.terms.model), tariff.currency)}, {_NAMES[account.terms.model]}"),
        ("tariff", f"{tariff.name}, {tariff.date}"),
        ("source", tariff.source),
        ("failed calls", "are charged" if account.terms.bills_failed else "are not charged"),
    ]
    sections = [_bills(report), _stages(report), _parked(report), _pairing(report), _outages(report)]
    sections += [_entities(report), _timeline(report), _missing(report)]
    return Document(
        title="What it cost",
        facts=facts,
        warnings=_warnings(report),
        sections=[section for section in sections if section is not None],
    )


def _whole(report: Report, model: Model) -> Decimal:
    account = report.account
    return sum((month.bill(account.terms.tariff, model).total for month in account.months), ZERO)


def _warnings(report: Report) -> list[str]:
    pulse, clients = report.account.pulse, report.account.clients
    warnings = []
    if pulse.gap_count:
        lives = "one life" if pulse.gap_count == 1 else f"{pulse.gap_count:,} lives"
        warnings.append(
            f"Usage may be missing: {lives} of servers' processes ended without a last word, or could not write. "
            "Each is named at the end. The bill may be higher than this by the calls that were not written down."
        )
    if clients is None:
        warnings.append("Without the clients' journals outages are not known, nor pings that reached no server.")
    elif clients.lost:
        warnings.append(
            f"{clients.lost:,} rows of clients' journals were lost where a disk was slower than the application: "
            "outages, pings and parked messages may be more than this."
        )
    return warnings


def _bills(report: Report) -> Section:
    account, tariff = report.account, report.account.terms.tariff
    currency, model = tariff.currency, account.terms.model
    rows = []
    for month in account.months:
        bill, other = month.bill(tariff, model), month.bill(tariff, _other(model))
        amounts = (bill.operations, bill.base, bill.connections, bill.egress, bill.total, other.total)
        rows.append(
            (f"{month.begins:%Y-%m}", f"{month.charges.by(model):,}", *(money(one, currency) for one in amounts))
        )
    columns = (
        "month",
        ">charges",
        ">operations",
        ">base",
        ">connections",
        ">data out",
        ">bill",
        f">bill, {_NAMES[_other(model)]}",
    )
    bars = [
        (
            f"{month.begins:%Y-%m}",
            float(month.bill(tariff, model).total),
            money(month.bill(tariff, model).total, currency),
        )
        for month in account.months
    ]
    charts = (Bars(f"Bill of each month, {_NAMES[model]}", bars),) if len(bars) > 1 else ()
    paragraphs = (
        (
            "Operations of all namespaces are billed together, in calendar months. A month that is not over, or not "
            "all of which is here, has its whole base charge."
        ),
    )
    return Section(title="The bills", paragraphs=paragraphs, charts=charts, tables=(Table(columns, rows),))


def _stages(report: Report) -> Section:
    currency = report.account.terms.tariff.currency
    rows = [
        (stage.value, *_both(report.stages[stage]), money(report.costs[stage], currency))
        for stage in Stage
        if report.stages[stage] != Charges() or stage in THE_FOUR
    ]
    whole = sum(report.stages.values(), Charges())
    rows.append(("all", *_both(whole), money(sum(report.costs.values(), ZERO), currency)))
    model = report.account.terms.model
    bars = [
        (stage.value, float(report.stages[stage].by(model)), f"{report.stages[stage].by(model):,}")
        for stage in THE_FOUR
    ]
    charts = (Bars(f"The four stages of parked messages, {_NAMES[model]}", bars),) if report.parked.messages else ()
    return Section(
        title="What the charges are for",
        paragraphs=(
            (
                "The first four are the way of parked messages. What each cost is its share of its month's operations; "
                "those that are included cost nothing."
            ),
            *((_SOURCES[report.account.parked_by],) if report.parked.messages else ()),
        ),
        charts=charts,
        tables=(Table(("what for", *_COUNTS, ">cost"), rows, has_total=True),),
    )


def _parked(report: Report) -> Section | None:
    if not report.parked.messages and not report.not_parked.messages:
        return None
    rows = [_each("parked", report.parked), _each("not parked", report.not_parked)]
    columns = ("messages", ">count", *_COUNTS, ">each, document", ">each, operation")
    return Section(title="Parked against not parked", tables=(Table(columns, rows),))


def _each(name: str, parked: Parked) -> tuple[str, ...]:
    count, charges = parked.messages, parked.charges
    each = [f"{charges.by(model) / count:.2f}" if count else "-" for model in _MODELS]
    return (name, f"{count:,}", *_both(charges), *each)


def _pairing(report: Report) -> Section:
    currency, stages = report.account.terms.tariff.currency, report.stages
    saved = report.saved_without
    there = stages[Stage.SEND_TO_BACKLOG] + stages[Stage.RECEIVE_FROM_BACKLOG]
    rows = [
        ("parked messages, on their way there and back", *_both(there)),
        ("pings", *_both(stages[Stage.PING])),
        ("idle syphon: polls of backlog queues that found nothing", *_both(stages[Stage.IDLE_SYPHON])),
        ("all", *_both(report.pairing)),
    ]
    unseen = f"{report.unseen_pings:,} pings reached no server: they are known from the clients' journals alone."
    saving = " or ".join(f"{money(saved[model], currency)} ({_NAMES[model]})" for model in _MODELS)
    return Section(
        title="What the pair added",
        paragraphs=(
            f"Without it the bills would be lower by {saving}, and nothing would have been taken during outages.",
            *((unseen,) if report.unseen_pings else ()),
        ),
        tables=(Table(("what for", *_COUNTS), rows, has_total=True),),
    )


def _outages(report: Report) -> Section | None:
    if report.account.clients is None:
        return None
    outside = f"{report.outside:,} messages were parked outside of these: a fragment of their entity was down."
    if not report.outages:
        said = (outside,) if report.outside else ()
        return Section(title="Outages", paragraphs=("No client told of one in this time.", *said))
    currency = report.account.terms.tariff.currency
    rows = [
        (
            f"{one.namespace}/{one.path}",
            f"{one.since:%Y-%m-%d %H:%M:%S}",
            _lasting(one.duration.total_seconds(), is_over=one.is_over),
            f"{one.clients:,}",
            f"{one.pings:,}",
            f"{one.parked:,}",
            *_both(one.charges),
            *_both(one.extra),
            money(one.cost, currency),
        )
        for one in report.outages
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
    told = f"The {len(rows):,} dearest of {report.outage_count:,}." if report.outage_count > len(rows) else ""
    return Section(
        title="Outages",
        paragraphs=(
            (
                "From the first client that failed over to the last that came back. Charges are those of pings and of "
                "the four stages of its parked messages; 'more' is what there would not have been without it."
            ),
            *((told,) if told else ()),
            *((outside,) if report.outside else ()),
        ),
        tables=(Table(columns, rows),),
    )


def _entities(report: Report) -> Section:
    currency, model = report.account.terms.tariff.currency, report.account.terms.model
    rows = [
        (
            f"{one.namespace}/{one.path}" if one.path else f"{one.namespace} (itself)",
            f"{one.sent:,}",
            f"{one.received:,}",
            *_both(one.charges),
            money(one.cost, currency),
        )
        for one in report.entities
    ]
    dearest = report.entities[:_BARS]
    bars = [
        (f"{one.namespace}/{one.path}", float(one.charges.by(model)), f"{one.charges.by(model):,}") for one in dearest
    ]
    told = f"The {len(rows):,} with the most charges, of {report.entity_count:,}."
    return Section(
        title="Entities",
        paragraphs=(told,) if report.entity_count > len(rows) else (),
        charts=(Bars(f"Charges, {_NAMES[model]}", bars),),
        tables=(Table(("entity", ">sent", ">received", *_COUNTS, ">cost"), rows),),
    )


def _timeline(report: Report) -> Section | None:
    days = list(report.timeline)
    if len(days) < 2:  # noqa: PLR2004  # one is no line
        return None
    model, places = report.account.terms.model, [f"{day:%Y-%m-%d}" for day in days]
    charts = []
    for title, wanted in (("Charges over time", tuple(Stage)), ("What the pair added over time", _OF_PAIR)):
        stages = [stage for stage in wanted if any(stage in parts for parts in report.timeline.values())]
        series = [(stage.value, [report.timeline[day].get(stage, 0) for day in days]) for stage in stages]
        if series:
            charts.append(Stack(f"{title}, {_NAMES[model]}", "charges", places, series))
    said = "Sends to the primary by a syphon are among the messages not parked here."
    return Section(title="Over time", paragraphs=(said,) if report.parked.messages else (), charts=charts)


def _missing(report: Report) -> Section | None:
    pulse = report.account.pulse
    if not pulse.gaps:
        return None
    rows = [(gap.namespace, str(gap.process), gap.life, gap.why) for gap in pulse.gaps[:_GAPS]]
    more = f"The latest {_GAPS:,} of {pulse.gap_count:,}."
    return Section(
        title="Usage that may be missing",
        paragraphs=(
            "A process writes about once a second what it counted. A kill loses less than a second of it.",
            *((more,) if pulse.gap_count > _GAPS else ()),
        ),
        tables=(Table(("namespace", ">process", "life", "what happened"), rows),),
    )


def _both(charges: Charges) -> tuple[str, str]:
    return f"{charges.document:,}", f"{charges.operation:,}"


def _other(model: Model) -> Model:
    return Model.DOCUMENT if model is Model.OPERATION else Model.OPERATION


def _lasting(seconds: float, *, is_over: bool) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    text = f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s"
    return text if is_over else f"over {text}"
