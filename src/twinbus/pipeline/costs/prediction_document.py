"""The document for a prediction: texts, tables and charts that compare the alternatives.

Owns the wording and the selection of figures. Knows nothing of how a document is displayed.
"""

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
    """Build the document for a prediction. Charts show the bills in one model."""
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
    minutes = [duration for duration in setup.outage_minutes if duration]
    if not minutes:
        return "none"
    count = "one" if len(minutes) == 1 else f"{len(minutes):,}"
    return f"{count}, {sum(minutes):,} minutes in all, of {setup.entities:,} entities"


def _alternatives_section(prediction: Prediction, model: Model) -> Section:
    currency = prediction.tariff.currency
    alternatives = (prediction.pair, *prediction.others)
    rows = [
        (
            alternative.name,
            *(
                f"{alternative.charges.for_model(bill_model):,}" if alternative.charges != NO_CHARGES else "not charged"
                for bill_model in _MODELS
            ),
            *(money(alternative.bills[bill_model].total, currency) for bill_model in _MODELS),
            f"{alternative.refused_messages:,}" if alternative.refused_messages else "-",
            alternative.description,
        )
        for alternative in alternatives
    ]
    extra = prediction.pair_extra_cost
    amounts = ", ".join(f"{money(extra[bill_model], currency)} ({_model_name(bill_model)})" for bill_model in _MODELS)
    columns = (
        "way",
        ">charges, document",
        ">charges, operation",
        ">bill, document",
        ">bill, operation",
        ">messages refused",
        "what it means",
    )
    bars = [
        (alternative.name, float(alternative.bills[model].total), money(alternative.bills[model].total, currency))
        for alternative in alternatives
    ]
    return Section(
        title="The alternatives",
        paragraphs=(f"A pair costs more than no pair by {amounts} per month.",),
        charts=(BarChart(f"Bill of a month, {_model_name(model)}", bars),),
        tables=(Table(columns, rows),),
    )


def _stages_section(prediction: Prediction) -> Section:
    charges = sum_charges(prediction.stages)
    rows = [
        (stage.value, f"{stage_charges.document:,}", f"{stage_charges.operation:,}", _STAGE_FORMULAS[stage])
        for stage, stage_charges in prediction.stages.items()
        if stage_charges != NO_CHARGES
    ]
    rows.append(("all", f"{charges.document:,}", f"{charges.operation:,}", ""))
    columns = ("what for", ">document's model", ">operation model", "how it is counted")
    return Section(
        title="What the charges are for",
        paragraphs=(
            (
                "The document's model charges for messages sent and received, and for receives that find "
                "nothing; the operation model charges for every call, including completion."
            ),
        ),
        tables=(Table(columns, rows, has_total=True),),
    )


def _messages_section(prediction: Prediction) -> Section:
    setup = prediction.setup
    rows = []
    for traffic in setup.traffic:
        options = {"subscriptions": traffic.subscriptions, "is_peek_lock": traffic.peek_lock}
        direct = direct_message_charges(traffic.size, **options)  # type: ignore[arg-type]
        stages = parked_message_charges(traffic.size, parking_bytes=setup.parking_bytes, **options)  # type: ignore[arg-type]
        parked = sum_charges(stages)
        rows.append(
            (
                traffic.name,
                "queue" if traffic.subscriptions is None else f"topic, {traffic.subscriptions:,} subscriptions",
                f"{traffic.size:,}",
                f"{setup.parked_messages(traffic):,} of {traffic.messages:,}",
                f"{direct.document:,} / {direct.operation:,}",
                f"{parked.document:,} / {parked.operation:,}",
                f"{parked.document - direct.document:,} / {parked.operation - direct.operation:,}",
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
        fields = [(field.name, _format_value(getattr(traffic, field.name))) for field in dataclasses.fields(traffic)]
        rows += [(f"traffic: {name}", value) for name, value in fields]
    return Section(title="What was assumed", tables=(Table(("what", "as"), rows),))


def _format_value(value: object) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_format_value, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _model_name(model: Model) -> str:
    return "operation model" if model is Model.OPERATION else "document's model"


_STAGE_FORMULAS = {
    Stage.SEND_TO_BACKLOG: "parked messages, by their parked size",
    Stage.RECEIVE_FROM_BACKLOG: "the same messages; each is completed",
    Stage.SEND_TO_PRIMARY: "parked messages, by their size",
    Stage.RECEIVE_FROM_PRIMARY: "the same messages, once per matching subscription",
    Stage.NOT_PARKED: "sent once, received once per matching subscription",
    Stage.EMPTY: "",
    Stage.PING: "clients x factories x entities x whole intervals of each outage",
    Stage.IDLE_SYPHON: "backlog queues x hosts x polls in the month",
    Stage.MANAGEMENT: "one listing per start, one creation per missing backlog queue, one peek per start of a pump",
    Stage.OTHER: "operations of the same account",
}
