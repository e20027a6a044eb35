"""A message forwarded to a partitioned queue arrives exactly once, in the fragment of its key, whatever fails."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.support.parts import local_part
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import StoreUnavailable
from twinbus.model.partition_key import fragment_of
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue

COUNT = 40


class ForwardingHarness(BrokerHarness):
    """A plain queue in store 1, beside the partitioned queue."""

    source: Queue

    def add_source(self, forward_to: str | None = "orders") -> None:
        description = QueueDescription(forward_to=forward_to)
        self.source = self.add_queue(9, "intake", description, store=1)

    def crash(self) -> None:
        super().crash()
        self.add_source()
        self.load(self.source)

    def publish(self, *payloads: bytes) -> Results:
        return self.send_messages(*payloads, to=self.source)


def make_messages() -> list[bytes]:
    """Return messages, half of them with a partition key."""
    return [message(b"%d" % number, key=f"k{number}" if number % 2 else None) for number in range(COUNT)]


def bodies(harness: BrokerHarness) -> Counter[bytes]:
    return Counter(harness.consumer(10 * COUNT).bodies)


def test_r120_a_forwarded_message_is_stored_in_the_fragment_of_its_key() -> None:
    harness = ForwardingHarness(PARTITIONED)
    harness.add_source()
    harness.publish(*[message(key=key_for_fragment(number)) for number in (3, 7, 7)], message(session="s"))
    harness.run_until_idle()
    expected = Counter({3: 1, 7: 2})
    expected[fragment_of(b"s")] += 1
    assert {number: count for number, count in enumerate(harness.counts_by_fragment()) if count} == expected
    assert local_part(harness.source).main.active_count == 0


def test_messages_without_keys_are_spread_over_all_fragments() -> None:
    harness = ForwardingHarness(PARTITIONED)
    harness.add_source()
    harness.publish(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    harness.run_until_idle()
    assert harness.counts_by_fragment() == [2] * FRAGMENT_COUNT


@pytest.mark.parametrize("steps", range(0, 60, 2))
def test_all_messages_arrive_once_if_power_is_cut_after_any_step(steps: int) -> None:
    harness = ForwardingHarness(PARTITIONED)
    harness.add_source(forward_to=None)
    results = harness.publish(*make_messages())
    harness.run_until_idle()
    assert results == [None]
    harness.source.apply_description(QueueDescription(forward_to="orders"), harness.namespace.limits)
    for _ in range(steps):
        harness.step()
    harness.crash()
    harness.advance(10.0)
    assert local_part(harness.source).main.active_count == 0
    assert bodies(harness) == {b"%d" % number: 1 for number in range(COUNT)}


@pytest.mark.parametrize("store", range(4))
@pytest.mark.parametrize("is_kept", [False, True])
def test_all_messages_arrive_once_if_a_store_fails_meanwhile(store: int, *, is_kept: bool) -> None:
    """Store 1 also holds the source. Changes of the failed sync are lost, or are on disk."""
    harness = ForwardingHarness(PARTITIONED)
    harness.add_source(forward_to=None)
    harness.publish(*make_messages())
    harness.run_until_idle()
    harness.fail_next_sync(store, keeps_changes=is_kept)
    harness.source.apply_description(QueueDescription(forward_to="orders"), harness.namespace.limits)
    harness.run_until_idle()
    harness.advance(1.0)
    harness.recover()
    harness.advance(10.0)
    harness.advance(10.0)
    assert local_part(harness.source).main.active_count == 0
    assert bodies(harness) == {b"%d" % number: 1 for number in range(COUNT)}


def test_only_messages_for_a_full_fragment_are_dead_lettered() -> None:
    harness = ForwardingHarness(PARTITIONED)
    harness.add_source(forward_to=None)
    harness.publish(*[message(b"%d" % number, key=key_for_fragment(number)) for number in range(FRAGMENT_COUNT)])
    harness.run_until_idle()
    local_part(harness.queue, 5).stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    harness.source.apply_description(QueueDescription(forward_to="orders"), harness.namespace.limits)
    harness.run_until_idle()
    harness.advance(10.0)
    assert harness.counts_by_fragment() == [int(number != 5) for number in range(FRAGMENT_COUNT)]
    assert harness.source.runtime().transfer_dead_letter_count == 1
    assert local_part(harness.source).main.active_count == 0


def test_all_messages_arrive_once_from_one_partitioned_queue_to_another() -> None:
    harness = BrokerHarness(QueueDescription(enable_partitioning=True, forward_to="sink"))
    sink = harness.add_queue(8, "sink", QueueDescription(enable_partitioning=True))
    harness.store_messages(*make_messages())
    harness.run_until_idle()
    harness.advance(1.0)
    assert sum(harness.counts_by_fragment()) == 0
    assert sum(part.main.local.active_count for part in sink.parts) == COUNT
    for number in range(1, COUNT, 2):
        assert sink.parts[fragment_of(b"k%d" % number)].main.local.active_count


def test_messages_sent_via_a_partitioned_queue_arrive() -> None:
    harness = BrokerHarness(PARTITIONED)
    sink = harness.add_queue(8, "sink", QueueDescription(), store=1)
    batch, results = harness.incoming_batch(*make_messages(), to=sink), Results()
    harness.queue.send_via(batch.records, "sink", results)
    harness.run_until_idle()
    harness.advance(1.0)
    assert results == [None]
    assert local_part(sink).main.active_count == COUNT
    assert harness.queue.runtime().transfer_count == 0


def test_a_failed_send_via_reports_one_error() -> None:
    """The store of one fragment fails during the send; the sender gets the error after all other stores responded."""
    harness = BrokerHarness(PARTITIONED)
    sink = harness.add_queue(8, "sink", QueueDescription(), store=1)
    harness.fail_next_sync(0)
    batch, results = harness.incoming_batch(*make_messages(), to=sink), Results()
    harness.queue.send_via(batch.records, "sink", results)
    harness.run_until_idle()
    (error,) = results
    assert isinstance(error, StoreUnavailable)


def test_forwarded_dead_letters_arrive_at_a_partitioned_queue() -> None:
    harness = ForwardingHarness(PARTITIONED)
    description = QueueDescription(forward_dead_lettered_to="orders")
    harness.source = harness.add_queue(9, "intake", description, store=1)
    harness.publish(message(b"dead", key=key_for_fragment(6)))
    harness.run_until_idle()
    consumer = harness.consumer()
    main = local_part(harness.source).main
    source_consumer = FakeConsumer(main)
    source_consumer.grant(1)
    harness.run_until_idle()
    main.settlement.dead_letter(source_consumer.lock_numbers(), Results(), reason="no", description=None, properties={})
    harness.run_until_idle()
    consumer.grant(1)
    harness.run_until_idle()
    assert consumer.bodies == [b"dead"]
    assert consumer.multi_fragment_receiver.fragment_of_tag(consumer.deliveries[0][1]).number == 6
