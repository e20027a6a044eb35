"""What is forwarded to a partitioned queue arrives exactly once, in the fragment of its key, whatever crashes when."""

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
    """A plain queue, in store 1, beside the partitioned one."""

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
    """Half of them with a key."""
    return [message(b"%d" % number, key=f"k{number}" if number % 2 else None) for number in range(COUNT)]


def bodies(harness: BrokerHarness) -> Counter[bytes]:
    return Counter(harness.consumer(10 * COUNT).bodies)


def test_r120_a_forwarded_message_lies_where_its_key_leads() -> None:
    rig = ForwardingHarness(PARTITIONED)
    rig.add_source()
    rig.publish(*[message(key=key_for_fragment(number)) for number in (3, 7, 7)], message(session="s"))
    rig.run_until_idle()
    expected = Counter({3: 1, 7: 2})
    expected[fragment_of(b"s")] += 1
    assert {number: count for number, count in enumerate(rig.counts_by_fragment()) if count} == expected
    assert local_part(rig.source).main.active_count == 0


def test_without_keys_they_are_spread() -> None:
    rig = ForwardingHarness(PARTITIONED)
    rig.add_source()
    rig.publish(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    rig.run_until_idle()
    assert rig.counts_by_fragment() == [2] * FRAGMENT_COUNT


@pytest.mark.parametrize("steps", range(0, 60, 2))
def test_all_arrive_once_though_power_is_cut_after_any_step(steps: int) -> None:
    rig = ForwardingHarness(PARTITIONED)
    rig.add_source(forward_to=None)
    answers = rig.publish(*make_messages())
    rig.run_until_idle()
    assert answers == [None]
    rig.source.apply_description(QueueDescription(forward_to="orders"), rig.namespace.limits)
    for _ in range(steps):
        rig.step()
    rig.crash()
    rig.advance(10.0)
    assert local_part(rig.source).main.active_count == 0
    assert bodies(rig) == {b"%d" % number: 1 for number in range(COUNT)}


@pytest.mark.parametrize("store", range(4))
@pytest.mark.parametrize("is_kept", [False, True])
def test_all_arrive_once_though_a_store_fails_on_the_way(store: int, *, is_kept: bool) -> None:
    """Store 1 is also that of the source; what was on its way to the disk is there, or it is not."""
    rig = ForwardingHarness(PARTITIONED)
    rig.add_source(forward_to=None)
    rig.publish(*make_messages())
    rig.run_until_idle()
    rig.fail_next_sync(store, keeps_changes=is_kept)
    rig.source.apply_description(QueueDescription(forward_to="orders"), rig.namespace.limits)
    rig.run_until_idle()
    rig.advance(1.0)
    rig.recover()
    rig.advance(10.0)
    rig.advance(10.0)
    assert local_part(rig.source).main.active_count == 0
    assert bodies(rig) == {b"%d" % number: 1 for number in range(COUNT)}


def test_a_full_fragment_dead_letters_what_is_for_it_and_nothing_else() -> None:
    rig = ForwardingHarness(PARTITIONED)
    rig.add_source(forward_to=None)
    rig.publish(*[message(b"%d" % number, key=key_for_fragment(number)) for number in range(FRAGMENT_COUNT)])
    rig.run_until_idle()
    local_part(rig.queue, 5).stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    rig.source.apply_description(QueueDescription(forward_to="orders"), rig.namespace.limits)
    rig.run_until_idle()
    rig.advance(10.0)
    assert rig.counts_by_fragment() == [int(number != 5) for number in range(FRAGMENT_COUNT)]
    assert rig.source.runtime().transfer_dead_letter_count == 1
    assert local_part(rig.source).main.active_count == 0


def test_from_a_partitioned_queue_to_another_all_arrive_once() -> None:
    rig = BrokerHarness(QueueDescription(enable_partitioning=True, forward_to="sink"))
    sink = rig.add_queue(8, "sink", QueueDescription(enable_partitioning=True))
    rig.store_messages(*make_messages())
    rig.run_until_idle()
    rig.advance(1.0)
    assert sum(rig.counts_by_fragment()) == 0
    assert sum(part.main.local.active_count for part in sink.parts) == COUNT
    for number in range(1, COUNT, 2):
        assert sink.parts[fragment_of(b"k%d" % number)].main.local.active_count


def test_sent_via_a_partitioned_queue_they_lie_by_the_key_for_that_until_they_have_arrived() -> None:
    rig = BrokerHarness(PARTITIONED)
    sink = rig.add_queue(8, "sink", QueueDescription(), store=1)
    parcel, answers = rig.incoming_batch(*make_messages(), to=sink), Results()
    rig.queue.send_via(parcel.records, "sink", answers)
    rig.run_until_idle()
    rig.advance(1.0)
    assert answers == [None]
    assert local_part(sink).main.active_count == COUNT
    assert rig.queue.runtime().transfer_count == 0


def test_what_cannot_be_sent_via_it_is_answered_once_and_not_raised_beside() -> None:
    """One fragment's store fails with what is on its way: whoever sent it hears so, when all others have answered."""
    rig = BrokerHarness(PARTITIONED)
    sink = rig.add_queue(8, "sink", QueueDescription(), store=1)
    rig.fail_next_sync(0)
    parcel, answers = rig.incoming_batch(*make_messages(), to=sink), Results()
    rig.queue.send_via(parcel.records, "sink", answers)
    rig.run_until_idle()
    (error,) = answers
    assert isinstance(error, StoreUnavailable)


def test_dead_letters_that_are_forwarded_to_a_partitioned_queue_arrive_there() -> None:
    rig = ForwardingHarness(PARTITIONED)
    description = QueueDescription(forward_dead_lettered_to="orders")
    rig.source = rig.add_queue(9, "intake", description, store=1)
    rig.publish(message(b"dead", key=key_for_fragment(6)))
    rig.run_until_idle()
    consumer = rig.consumer()
    main = local_part(rig.source).main
    taker = FakeConsumer(main)
    taker.grant(1)
    rig.run_until_idle()
    main.settlement.dead_letter(taker.lock_numbers(), Results(), reason="no", description=None, properties={})
    rig.run_until_idle()
    consumer.grant(1)
    rig.run_until_idle()
    assert consumer.bodies == [b"dead"]
    assert consumer.multi_fragment_receiver.fragment_of_tag(consumer.deliveries[0][1]).number == 6
