"""Charges for a parked message, an idle syphon, pings and the start of a pair, in both models."""

from __future__ import annotations

import pytest

from twinbus.pipeline.costs.charges import (
    PARKED_STAGES,
    Charges,
    Stage,
    direct_message_charges,
    idle_syphon_charges,
    pairing_start_charges,
    parked_message_charges,
    ping_charges,
    sum_charges,
)

KB = 1024


def test_c05_an_idle_syphon_of_ten_queues_polls_28800_times_in_thirty_days() -> None:
    assert idle_syphon_charges(10, 1, 15, days=30) == Charges(28_800, 28_800)
    assert idle_syphon_charges(10, 1, 15, days=1) == Charges(960, 960)


def test_c05_every_host_polls() -> None:
    assert idle_syphon_charges(10, 3, 15, days=30) == Charges(86_400, 86_400)


def test_c06_an_outage_of_45_minutes_costs_8640_pings() -> None:
    assert ping_charges(45 * 60, 60, entities=12, factories=2, clients=8).document == 8_640


def test_c06_a_day_without_the_primary_costs_1440000_pings() -> None:
    assert ping_charges(24 * 3600, 60, entities=20, factories=1, clients=50).operation == 1_440_000


def test_c06_an_incomplete_interval_has_no_ping() -> None:
    assert ping_charges(119, 60, entities=1, factories=1, clients=1).document == 1


def test_c07_a_parked_message_is_charged_four_times_and_makes_six_operations() -> None:
    stages = parked_message_charges(1 * KB)
    assert tuple(stages) == PARKED_STAGES
    assert [charges.document for charges in stages.values()] == [1, 1, 1, 1]
    assert sum_charges(stages) == Charges(4, 6)


def test_c07_a_parked_message_costs_two_charges_and_three_operations_more_than_a_direct_one() -> None:
    assert direct_message_charges(1 * KB) == Charges(2, 3)
    assert sum_charges(parked_message_charges(1 * KB)) - direct_message_charges(1 * KB) == Charges(2, 3)


@pytest.mark.parametrize("subscriptions", [0, 1, 2, 5])
def test_c07_a_message_parked_for_a_topic_costs_three_charges_and_one_for_each_subscription(subscriptions: int) -> None:
    assert sum_charges(parked_message_charges(1 * KB, subscriptions=subscriptions)) == Charges(
        3 + subscriptions, 4 + 2 * subscriptions
    )


def test_c07_parking_may_push_a_message_over_a_64_kb_step() -> None:
    stages = parked_message_charges(64 * KB, parking_bytes=256)
    assert [charges.document for charges in stages.values()] == [2, 2, 1, 1]
    assert sum_charges(stages) == Charges(6, 8)
    assert sum_charges(stages) - direct_message_charges(64 * KB) == Charges(4, 5)


def test_c03_receive_and_delete_saves_the_application_an_operation_and_the_syphon_none() -> None:
    assert direct_message_charges(1 * KB, is_peek_lock=False) == Charges(2, 2)
    assert sum_charges(parked_message_charges(1 * KB, is_peek_lock=False)) == Charges(4, 5)


def test_c08_each_process_lists_once_and_missing_queues_are_created() -> None:
    assert pairing_start_charges(processes=3, missing_queues=10) == Charges(0, 13)


def test_stages_have_distinct_names() -> None:
    assert len({stage.value for stage in Stage}) == len(Stage)
