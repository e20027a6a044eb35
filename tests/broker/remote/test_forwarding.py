"""Messages are forwarded to entities of another process, each once."""

from __future__ import annotations

from typing import Any

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, QUEUE_ID, BrokerHarness
from tests.broker.messages import message
from twinbus.model.queue import QueueDescription

PLAIN = QueueDescription()


def sent(harness: BrokerHarness, count: int) -> Results:
    source: Any = harness.namespace.find("source")
    return harness.send_and_wait(*[message(b"%d" % number) for number in range(count)], to=source)


def with_source(harness: BrokerHarness, store: int) -> BrokerHarness:
    """A plain queue whose messages go to the partitioned one."""
    harness.add_queue(QUEUE_ID + 1, "source", QueueDescription(forward_to="orders"), store)
    harness.run_until_idle()
    return harness


def test_a_queue_of_this_process_forwards_to_fragments_of_both() -> None:
    rig = with_source(BrokerHarness(PARTITIONED, processes=2), 0)
    assert sent(rig, 32) == [None]
    assert rig.counts_by_fragment() == [2] * 16


def test_a_queue_of_another_process_forwards_to_fragments_of_both() -> None:
    rig = with_source(BrokerHarness(PARTITIONED, processes=2), 1)
    assert sent(rig, 32) == [None]
    assert rig.counts_by_fragment() == [2] * 16


def test_what_cannot_be_forwarded_now_is_when_its_owner_is_back_and_once() -> None:
    rig = with_source(BrokerHarness(PARTITIONED, processes=2), 0)
    rig.disconnect()
    assert sent(rig, 32) == [None]
    for _ in range(3):
        rig.advance(1.0)
    rig.connect()
    for _ in range(10):
        rig.advance(1.0)
    assert sum(rig.counts_by_fragment()) == 32


def test_messages_are_sent_via_a_queue_of_another_process() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    way, answers = rig.add_queue(QUEUE_ID + 1, "way", PLAIN, 1), Results()
    parcel = rig.incoming_batch(*[message(b"%d" % number) for number in range(16)], to=way)
    way.send_via(parcel.records, "orders", answers)
    rig.run_until_idle()
    assert answers == [None]
    assert sum(rig.counts_by_fragment()) == 16
