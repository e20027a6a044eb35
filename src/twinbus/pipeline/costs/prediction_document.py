"""What is told of a prediction."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from twinbus.pipeline.costs.bill import money
from twinbus.pipeline.costs.charges import (
    NO_CHARGES,
    PARKED_STAGES,
    Model,
    Stage,
    direct_message_charges,
    parked_message_charges,
    sum_charges,
)
from twinbus.pipeline.costs.document import BarChart, Document, Section, Table

if TYPE_CHECKING:
    from twinbus.pipeline.costs.setup import Setup
    from twinbus.pipeline.costs.what_if import Prediction

_MODELS = (Model.DOCUMENT, Model.OPERATION)


def prediction_document(prediction: Prediction, model: Model = Model.OPERATION) -> Document:
    """All of it; charts show the bills of one model."""
    setup, tariff = prediction.setup, prediction.tariff
    share = 100 * prediction.parked / prediction.messages if prediction.messages else 0.0
    facts = [
        ("month", f"{setup.days} days"),
        ("messages", f"{prediction.messages:,}, of which {prediction.parked:,} are parked ({share:.3g} %)"),
        ("outages", _outage_summary(setup)),
        ("tariff", f"{tariff.name}, {tariff.date}"),
        ("source", tariff.source),
    ]
    return Document(
        title="What a pair of namespaces would cost",
        facts=facts,
        sections=(
            _alternatives_section(prediction, model),
            _stages_section(prediction),
            _messages_section(prediction),
            _bill_section(prediction),
            _assumptions_section(setup),
        ),
    )


def _outage_summary(setup: Setup) -> str:
    minutes = [one for one in setup.outage_minutes if one]
    if not minutes:
        return "none"
    count = "one" if len(minutes) == 1 else f"{len(minutes):,}"
    return f"{count}, {sum(minutes):,} minutes in all, of {setup.entities:,} entities"


def _alternatives_section(prediction: Prediction, model: Model) -> Section:
    currency = prediction.tariff.currency
    ways = (prediction.pair, *prediction.others)
    rows = [
        (
            way.name,
            *(f"{way.charges.for_model(one):,}" if way.charges != NO_CHARGES else "not charged" for one in _MODELS),
            *(money(way.bills[one].total, currency) for one in _MODELS),
            f"{way.refused_messages:,}" if way.refused_messages else "-",
            way.description,
        )
        for way in ways
    ]
    extra = prediction.pair_extra_cost
    said = ", ".join(f"{money(extra[one], currency)} ({_model_name(one)})" for one in _MODELS)
    columns = (
        "way",
        ">charges, document",
        ">charges, operation",
        ">bill, document",
        ">bill, operation",
        ">messages refused",
        "what it means",
    )
    bars = [(way.name, float(way.bills[model].total), money(way.bills[model].total, currency)) for way in ways]
    return Section(
        title="The alternatives",
        paragraphs=(f"A pair costs more than no pair by {said} a month.",),
        charts=(BarChart(f"Bill of a month, {_model_name(model)}", bars),),
        tables=(Table(columns, rows),),
    )


def _stages_section(prediction: Prediction) -> Section:
    charges = sum_charges(prediction.stages)
    rows = [
        (stage.value, f"{one.document:,}", f"{one.operation:,}", _STAGE_FORMULAS[stage])
        for stage, one in prediction.stages.items()
        if one != NO_CHARGES
    ]
    rows.append(("all", f"{charges.document:,}", f"{charges.operation:,}", ""))
    columns = ("what for", ">document's model", ">operation model", "how it is counted")
    return Section(
        title="What the charges are for",
        paragraphs=(
            (
                "The document's model charges for messages that are sent and received, and for receives that find "
                "nothing; the operation model for every call, so that completing counts, too."
            ),
        ),
        tables=(Table(columns, rows, has_total=True),),
    )


def _messages_section(prediction: Prediction) -> Section:
    setup = prediction.setup
    rows = []
    for traffic in setup.traffic:
        how = {"subscriptions": traffic.subscriptions, "is_peek_lock": traffic.peek_lock}
        direct = direct_message_charges(traffic.size, **how)  # type: ignore[arg-type]
        stages = parked_message_charges(traffic.size, parking_bytes=setup.parking_bytes, **how)  # type: ignore[arg-type]
        way = sum_charges(stages)
        rows.append(
            (
                traffic.name,
                "queue" if traffic.subscriptions is None else f"topic, {traffic.subscriptions:,} subscriptions",
                f"{traffic.size:,}",
                f"{setup.parked_messages(traffic):,} of {traffic.messages:,}",
                f"{direct.document:,} / {direct.operation:,}",
                f"{way.document:,} / {way.operation:,}",
                f"{way.document - direct.document:,} / {way.operation - direct.operation:,}",
                " + ".join(str(stages[stage].document) for stage in PARKED_STAGES),
            )
        )
    columns = (
        "kind",
        "to",
        ">bytes",
        ">parked",
        ">not parked",
        ">parked, each",
        ">more",
        ">the four stages",
    )
    return Section(
        title="One message, parked and not",
        paragraphs=("Charges for one message: document's model / operation model.",),
        tables=(Table(columns, rows),),
    )


def _bill_section(prediction: Prediction) -> Section:
    currency = prediction.tariff.currency
    bills = [prediction.pair.bills[model] for model in _MODELS]
    parts = (
        ("operations", [bill.operations for bill in bills]),
        ("base charge", [bill.base for bill in bills]),
        ("connections beyond those included", [bill.connections for bill in bills]),
        ("data that leaves a region", [bill.egress for bill in bills]),
        ("all", [bill.total for bill in bills]),
    )
    rows = [(name, *(money(amount, currency) for amount in amounts)) for name, amounts in parts]
    return Section(
        title="The bill of the pair",
        tables=(Table(("part", ">document's model", ">operation model"), rows, has_total=True),),
    )


def _assumptions_section(setup: Setup) -> Section:
    rows = [
        (field.name, _format_value(getattr(setup, field.name)))
        for field in dataclasses.fields(setup)
        if field.name != "traffic"
    ]
    for traffic in setup.traffic:
        of_it = [(field.name, _format_value(getattr(traffic, field.name))) for field in dataclasses.fields(traffic)]
        rows += [(f"traffic: {name}", value) for name, value in of_it]
    return Section(title="What was assumed", tables=(Table(("what", "as"), rows),))


def _format_value(value: object) -> str:
    if value is None:
        return "not said"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_format_value, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _model_name(model: Model) -> str:
    return "operation model" if model is Model.OPERATION else "document's model"


_STAGE_FORMULAS = {
    Stage.SEND_TO_BACKLOG: "parked messages, by their parked size",
    Stage.RECEIVE_FROM_BACKLOG: "the same; each is completed",
    Stage.SEND_TO_PRIMARY: "parked messages, by their size",
    Stage.RECEIVE_FROM_PRIMARY: "the same, for each subscription that wants it",
    Stage.NOT_PARKED: "sent once, received by each that wants it",
    Stage.EMPTY: "",
    Stage.PING: "clients x factories x entities x whole intervals of each outage",
    Stage.IDLE_SYPHON: "backlog queues x hosts x polls in the month",
    Stage.MANAGEMENT: "one list for each start, one creation for each missing backlog queue; a peek when a pump starts",
    Stage.OTHER: "of the same account",
}
