"""Prediction of the bill for a pair, compared with alternatives.

    prediction = predict(read_setup(Path("pair.toml")), read_tariff())

Owns the sum of the charges for messages, polls, pings and starts of a pair, and the alternatives. Pure: no Spark, no
files. Receives of applications that return no message are left out, because their number is the same in all
alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.pipeline.costs import charges as count
from twinbus.pipeline.costs.bill import (
    ZERO,
    Bill,
    basic_cost,
    connections_cost,
    egress_cost,
    operations_cost,
    premium_cost,
)
from twinbus.pipeline.costs.charges import NO_CHARGES, Charges, Model, Stage, sum_charges
from twinbus.pipeline.costs.setup import HUNDRED

if TYPE_CHECKING:
    from decimal import Decimal

    from twinbus.pipeline.costs.setup import Setup
    from twinbus.pipeline.costs.tariff import Tariff


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """An alternative with its charges and bills."""

    name: str
    charges: Charges
    """Charges in both models; under Premium, operations are not charged."""
    bills: dict[Model, Bill]
    description: str
    refused_messages: int = 0
    """Number of messages refused while the primary is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted costs of a pair and of its alternatives."""

    setup: Setup
    tariff: Tariff
    messages: int
    parked: int
    stages: dict[Stage, Charges]
    """Charges for the pair by stage."""
    pair: Alternative
    others: tuple[Alternative, ...]

    @property
    def pair_extra_cost(self) -> dict[Model, Decimal]:
        """Additional cost of the pair compared with no pair."""
        unpaired = self.others[0]
        return {model: self.pair.bills[model].total - unpaired.bills[model].total for model in Model}


def predict(setup: Setup, tariff: Tariff) -> Prediction:
    """Predict the costs of a pair and of its alternatives."""
    stages = _stage_charges(setup)
    messages = sum(traffic.messages for traffic in setup.traffic)
    parked = sum(setup.parked_messages(traffic) for traffic in setup.traffic)
    backlog_bytes = sum(
        setup.parked_messages(traffic) * (traffic.size + setup.parking_bytes) for traffic in setup.traffic
    )
    pair = _standard_alternative(
        setup,
        tariff,
        sum_charges(stages),
        connections=2 * _connection_count(setup),
        egress_bytes=_application_egress_bytes(setup) + backlog_bytes,
        name="paired namespaces",
        description="messages are parked in the secondary while the primary is down, and returned automatically",
    )
    return Prediction(
        setup=setup,
        tariff=tariff,
        messages=messages,
        parked=parked,
        stages=stages,
        pair=pair,
        others=(
            _unpaired_alternative(setup, tariff, parked),
            *_replicated_and_premium(setup, tariff),
            *_basic_alternative(setup, tariff, parked),
        ),
    )


def _stage_charges(setup: Setup) -> dict[Stage, Charges]:
    stages = dict.fromkeys(Stage, NO_CHARGES)
    for traffic in setup.traffic:
        parked = setup.parked_messages(traffic)
        mode = {"subscriptions": traffic.subscriptions, "is_peek_lock": traffic.peek_lock}
        stages[Stage.NOT_PARKED] += count.direct_message_charges(traffic.size, **mode) * (traffic.messages - parked)  # type: ignore[arg-type]
        sizes = {"parking_bytes": setup.parking_bytes, "returned_bytes": count.RETURNED_BYTES}
        for stage, charges in count.parked_message_charges(traffic.size, **sizes, **mode).items():  # type: ignore[arg-type]
            stages[stage] += charges * parked
    if setup.failed_calls:
        counts = {"entities": setup.entities, "clients": setup.clients, "factories": setup.factories}
        for minutes in setup.outage_minutes:
            stages[Stage.PING] += count.ping_charges(int(minutes * 60), setup.ping_seconds, **counts)
    stages[Stage.IDLE_SYPHON] = count.idle_syphon_charges(setup.queues, setup.hosts, setup.poll_minutes, setup.days)
    # An outage stops the pumps, which start again afterwards.
    starts = 1 + sum(1 for minutes in setup.outage_minutes if minutes)
    stages[Stage.MANAGEMENT] = count.pairing_start_charges(setup.processes, setup.missing_queues)
    stages[Stage.MANAGEMENT] += count.syphon_start_charges(setup.queues, setup.hosts, starts)
    stages[Stage.OTHER] = Charges(setup.other_operations, setup.other_operations)
    return stages


def _direct_charges(setup: Setup) -> Charges:
    """Return the charges for all messages, each sent once and received once per matching subscription."""
    charges = NO_CHARGES
    for traffic in setup.traffic:
        message_charges = count.direct_message_charges(
            traffic.size, subscriptions=traffic.subscriptions, is_peek_lock=traffic.peek_lock
        )
        charges += message_charges * traffic.messages
    return charges


def _unpaired_alternative(setup: Setup, tariff: Tariff, parked: int) -> Alternative:
    return _standard_alternative(
        setup,
        tariff,
        _direct_charges(setup) + Charges(setup.other_operations, setup.other_operations),
        connections=_connection_count(setup),
        egress_bytes=_application_egress_bytes(setup),
        name="no pair",
        description="sends fail while the primary is down; the application is assumed to send them later",
        refused_messages=parked,
    )


def _replicated_and_premium(setup: Setup, tariff: Tariff) -> tuple[Alternative, ...]:
    replicated = _standard_alternative(
        setup,
        tariff,
        _direct_charges(setup) * 2 + Charges(setup.other_operations, setup.other_operations),
        connections=2 * _connection_count(setup),
        egress_bytes=2 * _application_egress_bytes(setup),
        name="active replication",
        description="every message is sent to and received from both; the application removes duplicates",
    )
    units = setup.premium_units
    egress = egress_cost(tariff, _application_egress_bytes(setup))
    other = _other_operations_cost(setup, tariff)
    premium = tuple(
        Alternative(
            name=name,
            charges=NO_CHARGES,
            bills=dict.fromkeys(
                Model, Bill(operations=other, base=premium_cost(tariff, units * namespaces), egress=egress)
            ),
            description=description,
        )
        for name, namespaces, description in (
            ("Premium", 1, "one dedicated namespace; an outage of its region is an outage of the application"),
            (
                "Premium, in two regions",
                2,
                "the second namespace takes over with the replicated messages",
            ),
        )
    )
    return (replicated, *premium)


def _basic_alternative(setup: Setup, tariff: Tariff, parked: int) -> tuple[Alternative, ...]:
    if any(traffic.subscriptions is not None for traffic in setup.traffic):
        return ()  # Basic has no topics
    charges = _direct_charges(setup)
    other, egress = _other_operations_cost(setup, tariff), egress_cost(tariff, _application_egress_bytes(setup))
    bills = {
        model: Bill(operations=basic_cost(tariff, charges.for_model(model)) + other, egress=egress) for model in Model
    }
    description = "queues only: no topics, sessions, transactions or duplicate detection; and no pair"
    return (
        Alternative(
            name="Basic, no pair", charges=charges, bills=bills, description=description, refused_messages=parked
        ),
    )


def _standard_alternative(
    setup: Setup,
    tariff: Tariff,
    charges: Charges,
    *,
    connections: int,
    egress_bytes: int,
    name: str,
    description: str,
    refused_messages: int = 0,
) -> Alternative:
    hours = min(setup.days * 24, tariff.hours_per_month)
    connected, egress = connections_cost(tariff, connections * hours), egress_cost(tariff, egress_bytes)
    bills = {
        model: Bill(
            operations=operations_cost(tariff, charges.for_model(model)),
            base=tariff.base_per_month,
            connections=connected,
            egress=egress,
        )
        for model in Model
    }
    return Alternative(
        name=name, charges=charges, bills=bills, description=description, refused_messages=refused_messages
    )


def _other_operations_cost(setup: Setup, tariff: Tariff) -> Decimal:
    """Return the cost of the account's other operations if the messages are not sent under Standard."""
    if not setup.other_operations:
        return ZERO
    return tariff.base_per_month + operations_cost(tariff, setup.other_operations)


def _connection_count(setup: Setup) -> int:
    return setup.clients * setup.factories


def _application_egress_bytes(setup: Setup) -> int:
    """Return the bytes that applications receive outside the region."""
    received = sum(
        traffic.messages * traffic.size * (1 if traffic.subscriptions is None else traffic.subscriptions)
        for traffic in setup.traffic
    )
    return int(received * setup.egress / HUNDRED)
