"""Predictions of a bill from a setup, and of the cost of alternatives."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from twinbus.pipeline.costs.charges import Charges, Model, Stage, sum_charges
from twinbus.pipeline.costs.setup import Setup, Traffic, read_setup
from twinbus.pipeline.costs.tariff import read_tariff
from twinbus.pipeline.costs.what_if import predict
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pathlib import Path

TARIFF = read_tariff()
SETUP = Setup(
    queues=10,
    hosts=1,
    poll_minutes=15,
    entities=12,
    factories=2,
    clients=8,
    outage_minutes=(45,),
    processes=8,
    missing_queues=10,
    traffic=(Traffic(messages=20_000_000, parked=Decimal("0.5")),),
)


def test_the_stages_follow_the_formulas() -> None:
    stages = predict(SETUP, TARIFF).stages
    assert stages[Stage.IDLE_SYPHON] == Charges(28_800, 28_800)
    assert stages[Stage.PING] == Charges(8_640, 8_640)
    assert stages[Stage.MANAGEMENT] == Charges(0, 18 + 20), "each pump peeks when it starts, and after the outage"
    assert stages[Stage.SEND_TO_BACKLOG] == Charges(100_000, 100_000)
    assert stages[Stage.RECEIVE_FROM_BACKLOG] == Charges(100_000, 200_000)
    assert stages[Stage.NOT_PARKED] == Charges(19_900_000 * 2, 19_900_000 * 3)


def test_the_bill_covers_all_charges() -> None:
    prediction = predict(SETUP, TARIFF)
    assert sum_charges(prediction.stages) == prediction.pair.charges == Charges(40_237_440, 60_337_478)
    bill = prediction.pair.bills[Model.OPERATION]
    assert bill.operations == Decimal("37.8699824")
    assert bill.base == TARIFF.base_per_month
    assert bill.connections == 0


def test_the_extra_cost_of_the_pair_is_predicted() -> None:
    # 300,000 operations, and the pings, polls and starts, all in the tier of 0.80 a million.
    assert predict(SETUP, TARIFF).pair_extra_cost[Model.OPERATION] - predict(SETUP, TARIFF).pair.bills[
        Model.OPERATION
    ].egress == Decimal("0.2699824")


def test_the_alternatives_are_named_with_their_bills() -> None:
    no_pair, replication, premium, two_premium, basic = predict(SETUP, TARIFF).others
    assert (no_pair.name, no_pair.charges, no_pair.refused_messages) == (
        "no pair",
        Charges(40_000_000, 60_000_000),
        100_000,
    )
    assert (replication.name, replication.charges) == ("active replication", Charges(80_000_000, 120_000_000))
    assert replication.bills[Model.OPERATION].operations == Decimal("79.60")
    assert premium.bills[Model.DOCUMENT].total == Decimal("677.08")
    assert two_premium.bills[Model.DOCUMENT].total == Decimal("1354.16")
    assert basic.bills[Model.OPERATION].total == Decimal("3.00")


def test_basic_is_no_alternative_for_topics() -> None:
    topics = Setup(traffic=(Traffic(subscriptions=2),))
    assert "Basic, no pair" not in [other.name for other in predict(topics, TARIFF).others]


def test_other_operations_of_the_account_move_the_bill_into_another_tier() -> None:
    alone = predict(Setup(), TARIFF)
    with_others = predict(Setup(other_operations=99_000_000), TARIFF)
    assert alone.pair_extra_cost[Model.OPERATION] == 0
    assert with_others.pair_extra_cost[Model.OPERATION] == Decimal(28_811) * Decimal("0.5") / 1_000_000
    assert with_others.others[2].bills[Model.DOCUMENT].base == Decimal("677.08")
    assert with_others.others[2].bills[Model.DOCUMENT].total == Decimal("677.08") + Decimal("9.81") + Decimal("68.80")


def test_c09_failed_calls_are_charged_unless_the_setup_excludes_them() -> None:
    setup = Setup(outage_minutes=(45,), traffic=(Traffic(parked=Decimal(0)),))
    assert predict(setup, TARIFF).stages[Stage.PING].document == 45
    free_failures = Setup(outage_minutes=(45,), failed_calls=False, traffic=(Traffic(parked=Decimal(0)),))
    assert predict(free_failures, TARIFF).stages[Stage.PING].document == 0


def test_the_pings_of_each_outage_are_rounded_down() -> None:
    assert predict(Setup(outage_minutes=(1, 1), ping_seconds=50), TARIFF).stages[Stage.PING].document == 2


def test_by_default_the_parked_share_is_the_duration_of_the_outages() -> None:
    setup = Setup(outage_minutes=(100, 332), traffic=(Traffic(messages=1_000_000),))
    assert setup.outage_percent == 1
    assert predict(setup, TARIFF).parked == 10_000


def test_extra_connections_are_charged_in_both_namespaces() -> None:
    many = predict(Setup(days=31, clients=1_000, factories=2), TARIFF)
    assert many.pair.bills[Model.OPERATION].connections == Decimal("90.00")
    assert many.others[0].bills[Model.OPERATION].connections == Decimal("30.00")


def test_c11_messages_that_the_syphon_receives_are_egress() -> None:
    setup = Setup(parking_bytes=0, traffic=(Traffic(messages=2**20, size=1024, parked=Decimal(100)),))
    assert predict(setup, TARIFF).pair.bills[Model.OPERATION].egress == Decimal("0.087")
    assert predict(setup, TARIFF).others[0].bills[Model.OPERATION].egress == 0


def test_several_kinds_of_traffic_are_added_up(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text(
        """
        queues = 5
        outage_minutes = [30, 15]
        [[traffic]]
        name = "orders"
        messages = 1_000
        parked = 10
        [[traffic]]
        name = "news"
        messages = 1_000
        size = 70_000
        subscriptions = 3
        peek_lock = false
        parked = 0
        """
    )
    setup = read_setup(file, {"hosts": 2})
    assert (setup.queues, setup.hosts, setup.outage_minutes) == (5, 2, (30, 15))
    stages = predict(setup, TARIFF).stages
    assert stages[Stage.NOT_PARKED] == Charges(900 * 2 + 1_000 * 8, 900 * 3 + 1_000 * 8)
    assert stages[Stage.RECEIVE_FROM_PRIMARY] == Charges(100, 200)


def test_options_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text("queues = 5\n[[traffic]]\nmessages = 7\n")
    setup = read_setup(file, {"queues": 6, "messages": 8})
    assert (setup.queues, setup.traffic[0].messages) == (6, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("queue = 5", r"queue is unknown \(did you mean queues\?\)"),
        ("queues = 0", r"queues = 0: must be a whole number from 1"),
        ("queues = 1.5", r"queues = 1\.5"),
        ("outage_minutes = -1", "outage_minutes = -1"),
        ('failed_calls = "no"', "failed_calls = 'no': must be true or false"),
        ("egress = 101", "egress = 101: must be a percentage from 0 to 100"),
        ("egress = nan", "egress = nan: must be a percentage from 0 to 100"),
        ("traffic = 5", r"traffic: must be given as \[\[traffic\]\]"),
        ("[[traffic]]\nname = ''", "name = '': must be a non-empty string"),
        ("[[traffic]]\nqueues = 1", "queues is unknown"),
        ("queues = ", "is not TOML"),
    ],
)
def test_an_invalid_setup_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pair.toml"
    file.write_text(text)
    with pytest.raises(PipelineError, match=message):
        read_setup(file)


def test_traffic_options_are_refused_with_several_kinds_of_traffic(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text("[[traffic]]\n[[traffic]]\n")
    with pytest.raises(PipelineError, match="2 kinds of traffic: set messages in its file"):
        read_setup(file, {"messages": 1})
