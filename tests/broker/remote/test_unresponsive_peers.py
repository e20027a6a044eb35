"""A process that does not respond is unavailable; one that responds but owes a reply is not."""

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


def abandon_on_hanging_disk(harness: BrokerHarness) -> list[ServiceBusError | None]:
    """Abandon a message whose record must be read from a hanging disk; return the results."""
    harness.store_messages(message(key=key_for_fragment(HUNG)))
    ((_, tag),) = harness.consumer(10).deliveries
    harness.stores[HUNG].hang()
    fragment, results = harness.queue.parts[HUNG].main, Results()
    fragment.settlement.abandon(fragment.lock_numbers([tag]), results)
    return results


def test_a_hanging_disk_leaves_other_stores_of_its_process_available() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    results = abandon_on_hanging_disk(harness)
    for _ in range(15):
        harness.advance(1.0)
        assert harness.queue.parts[WORKING].main.is_available
        harness.store_messages(message(key=key_for_fragment(WORKING)))
    assert isinstance(results[0], StoreUnavailable)


def test_a_hanging_disk_leaves_other_stores_available_without_other_requests() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    results = abandon_on_hanging_disk(harness)
    for _ in range(15):
        harness.advance(1.0)
    assert isinstance(results[0], StoreUnavailable)
    assert harness.queue.parts[WORKING].main.is_available


def test_a_process_that_stops_responding_becomes_unavailable() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(key=key_for_fragment(WORKING)))
    for _ in range(3):
        harness.advance(1.0)
    harness.silent_processes.add(1)
    results = [harness.send_and_wait(message(key=key_for_fragment(WORKING)))]
    for _ in range(12):
        harness.advance(1.0)
    assert isinstance(results[0][0], StoreUnavailable)
    assert not harness.queue.parts[WORKING].main.is_available


def test_a_request_with_a_long_timeout_fails_if_a_process_never_responds() -> None:
    harness, replies = BrokerHarness(PARTITIONED, processes=2), list[object]()
    harness.silent_processes.add(1)
    harness.first_process.peer_client.send_request(Purge((7, WORKING, 0), b"", 1, 0), replies.append)
    for _ in range(10):
        harness.advance(1.0)
    assert replies == []
    for _ in range(8):
        harness.advance(1.0)
    assert isinstance(replies[0], StoreUnavailable)


def test_store_health_is_forgotten_when_a_process_reconnects() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.first_process.peer_client.receive(0, StoreHealth({1: ("it failed", None), 3: (None, None)}))
    assert not harness.queue.parts[HUNG].main.is_available
    harness.disconnect()
    harness.connect()
    assert harness.queue.parts[HUNG].main.is_available
    harness.store_messages(message(key=key_for_fragment(HUNG)))
