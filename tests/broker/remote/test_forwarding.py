"""Messages are forwarded once to entities of another process."""

from __future__ import annotations

from typing import Any

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, QUEUE_ID, BrokerHarness
from tests.broker.messages import message
from twinbus.model.queue import QueueDescription

PLAIN = QueueDescription()


def send_to_source(harness: BrokerHarness, count: int) -> Results:
    source: Any = harness.namespace.find("source")
    return harness.send_and_wait(*[message(b"%d" % number) for number in range(count)], to=source)


def with_source(harness: BrokerHarness, store: int) -> BrokerHarness:
    """Add a plain queue that forwards to the partitioned queue."""
    harness.add_queue(QUEUE_ID + 1, "source", QueueDescription(forward_to="orders"), store)
    harness.run_until_idle()
    return harness


def test_a_queue_of_this_process_forwards_to_fragments_of_both() -> None:
    harness = with_source(BrokerHarness(PARTITIONED, processes=2), 0)
    assert send_to_source(harness, 32) == [None]
    assert harness.counts_by_fragment() == [2] * 16


def test_a_queue_of_another_process_forwards_to_fragments_of_both() -> None:
    harness = with_source(BrokerHarness(PARTITIONED, processes=2), 1)
    assert send_to_source(harness, 32) == [None]
    assert harness.counts_by_fragment() == [2] * 16


def test_messages_are_forwarded_once_when_the_owner_is_back() -> None:
    harness = with_source(BrokerHarness(PARTITIONED, processes=2), 0)
    harness.disconnect()
    assert send_to_source(harness, 32) == [None]
    for _ in range(3):
        harness.advance(1.0)
    harness.connect()
    for _ in range(10):
        harness.advance(1.0)
    assert sum(harness.counts_by_fragment()) == 32


def test_messages_are_sent_via_a_queue_of_another_process() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    via_queue, results = harness.add_queue(QUEUE_ID + 1, "way", PLAIN, 1), Results()
    batch = harness.incoming_batch(*[message(b"%d" % number) for number in range(16)], to=via_queue)
    via_queue.send_via(batch.records, "orders", results)
    harness.run_until_idle()
    assert results == [None]
    assert sum(harness.counts_by_fragment()) == 16
