"""A process that does not answer is unavailable; one that speaks and owes an answer is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.broker.ports.peer_protocol import Purge, StoreHealth
from twinbus.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError

HUNG, WORKING = 1, 3
"""Fragments of the other process, in two stores."""


def abandoned(harness: BrokerHarness) -> list[ServiceBusError | None]:
    """What is told to who gives a message back that has to be read for it, from a disk that hangs."""
    harness.store_messages(message(key=key_for_fragment(HUNG)))
    ((_, tag),) = harness.consumer(10).deliveries
    harness.stores[HUNG].hang()
    fragment, answers = harness.queue.parts[HUNG].main, Results()
    fragment.settlement.abandon(fragment.lock_numbers([tag]), answers)
    return answers


def test_while_one_disk_hangs_the_other_stores_of_its_process_are_there() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    answers = abandoned(rig)
    for _ in range(15):
        rig.advance(1.0)
        assert rig.queue.parts[WORKING].main.is_available
        rig.store_messages(message(key=key_for_fragment(WORKING)))
    assert isinstance(answers[0], StoreUnavailable)


def test_while_one_disk_hangs_and_nobody_else_asks_the_other_stores_of_its_process_are_there() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    answers = abandoned(rig)
    for _ in range(15):
        rig.advance(1.0)
    assert isinstance(answers[0], StoreUnavailable)
    assert rig.queue.parts[WORKING].main.is_available


def test_a_process_that_falls_silent_later_is_unavailable_then() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(key=key_for_fragment(WORKING)))
    for _ in range(3):
        rig.advance(1.0)
    rig.silent_processes.add(1)
    answers = [rig.send_and_wait(message(key=key_for_fragment(WORKING)))]
    for _ in range(12):
        rig.advance(1.0)
    assert isinstance(answers[0][0], StoreUnavailable)
    assert not rig.queue.parts[WORKING].main.is_available


def test_who_is_patient_is_answered_too_where_a_process_says_nothing_at_all() -> None:
    rig, told = BrokerHarness(PARTITIONED, processes=2), list[object]()
    rig.silent_processes.add(1)
    rig.first_process.peer_client.send_request(Purge((7, WORKING, 0), b"", 1, 0), told.append)
    for _ in range(10):
        rig.advance(1.0)
    assert told == []
    for _ in range(8):
        rig.advance(1.0)
    assert isinstance(told[0], StoreUnavailable)


def test_what_was_said_of_the_stores_of_a_process_is_not_held_against_the_next() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.first_process.peer_client.receive(0, StoreHealth({1: ("it failed", None), 3: (None, None)}))
    assert not rig.queue.parts[HUNG].main.is_available
    rig.disconnect()
    rig.connect()
    assert rig.queue.parts[HUNG].main.is_available
    rig.store_messages(message(key=key_for_fragment(HUNG)))
