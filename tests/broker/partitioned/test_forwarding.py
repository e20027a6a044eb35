"""What is forwarded to a partitioned queue arrives exactly once, in the fragment of its key, whatever crashes when."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Answers, TestConsumer
from tests.broker.messages import key_for, message
from tests.broker.rig import PARTITIONED, Rig
from tests.parts import part_of
from twinbus.model.description import FRAGMENTS
from twinbus.model.errors import StoreUnavailable
from twinbus.model.partition_key import fragment_of
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from twinbus.broker.queue import Queue

COUNT = 40


class ForwardingRig(Rig):
    """A plain queue, in store 1, beside the partitioned one."""

    source: Queue

    def add_source(self, forward_to: str | None = "orders") -> None:
        description = QueueDescription(forward_to=forward_to)
        self.source = self.add_queue(9, "intake", description, store=1)

    def crash(self) -> None:
        super().crash()
        self.add_source()
        self.load(self.source)

    def publish(self, *payloads: bytes) -> Answers:
        return self.send_messages(*payloads, to=self.source)


def letters() -> list[bytes]:
    """Half of them with a key."""
    return [message(b"%d" % number, key=f"k{number}" if number % 2 else None) for number in range(COUNT)]


def bodies(rig: Rig) -> Counter[bytes]:
    return Counter(rig.consumer(10 * COUNT).bodies)


def test_r120_a_forwarded_message_lies_where_its_key_leads() -> None:
    rig = ForwardingRig(PARTITIONED)
    rig.add_source()
    rig.publish(*[message(key=key_for(number)) for number in (3, 7, 7)], message(session="s"))
    rig.settle()
    expected = Counter({3: 1, 7: 2})
    expected[fragment_of(b"s")] += 1
    assert {number: count for number, count in enumerate(rig.counts_by_fragment()) if count} == expected
    assert part_of(rig.source).main.count == 0


def test_without_keys_they_are_spread() -> None:
    rig = ForwardingRig(PARTITIONED)
    rig.add_source()
    rig.publish(*[message() for _ in range(2 * FRAGMENTS)])
    rig.settle()
    assert rig.counts_by_fragment() == [2] * FRAGMENTS


@pytest.mark.parametrize("steps", range(0, 60, 2))
def test_all_arrive_once_though_power_is_cut_after_any_step(steps: int) -> None:
    rig = ForwardingRig(PARTITIONED)
    rig.add_source(forward_to=None)
    answers = rig.publish(*letters())
    rig.settle()
    assert answers == [None]
    rig.source.describe(QueueDescription(forward_to="orders"), rig.namespace.limits)
    for _ in range(steps):
        rig.step()
    rig.crash()
    rig.wait(10.0)
    assert part_of(rig.source).main.count == 0
    assert bodies(rig) == {b"%d" % number: 1 for number in range(COUNT)}


@pytest.mark.parametrize("store", range(4))
@pytest.mark.parametrize("is_kept", [False, True])
def test_all_arrive_once_though_a_store_fails_on_the_way(store: int, *, is_kept: bool) -> None:
    """Store 1 is also that of the source; what was on its way to the disk is there, or it is not."""
    rig = ForwardingRig(PARTITIONED)
    rig.add_source(forward_to=None)
    rig.publish(*letters())
    rig.settle()
    rig.fail(store, is_kept=is_kept)
    rig.source.describe(QueueDescription(forward_to="orders"), rig.namespace.limits)
    rig.settle()
    rig.wait(1.0)
    rig.recover()
    rig.wait(10.0)
    rig.wait(10.0)
    assert part_of(rig.source).main.count == 0
    assert bodies(rig) == {b"%d" % number: 1 for number in range(COUNT)}


def test_a_full_fragment_dead_letters_what_is_for_it_and_nothing_else() -> None:
    rig = ForwardingRig(PARTITIONED)
    rig.add_source(forward_to=None)
    rig.publish(*[message(b"%d" % number, key=key_for(number)) for number in range(FRAGMENTS)])
    rig.settle()
    part_of(rig.queue, 5).held_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    rig.source.describe(QueueDescription(forward_to="orders"), rig.namespace.limits)
    rig.settle()
    rig.wait(10.0)
    assert rig.counts_by_fragment() == [int(number != 5) for number in range(FRAGMENTS)]
    assert rig.source.runtime().transfer_dead_letter_count == 1
    assert part_of(rig.source).main.count == 0


def test_from_a_partitioned_queue_to_another_all_arrive_once() -> None:
    rig = Rig(QueueDescription(enable_partitioning=True, forward_to="sink"))
    sink = rig.add_queue(8, "sink", QueueDescription(enable_partitioning=True))
    rig.store_messages(*letters())
    rig.settle()
    rig.wait(1.0)
    assert sum(rig.counts_by_fragment()) == 0
    assert sum(part.main.local.count for part in sink.parts) == COUNT
    for number in range(1, COUNT, 2):
        assert sink.parts[fragment_of(b"k%d" % number)].main.local.count


def test_sent_via_a_partitioned_queue_they_lie_by_the_key_for_that_until_they_have_arrived() -> None:
    rig = Rig(PARTITIONED)
    sink = rig.add_queue(8, "sink", QueueDescription(), store=1)
    parcel, answers = rig.parcel(*letters(), to=sink), Answers()
    rig.queue.send_on(parcel.records, "sink", answers)
    rig.settle()
    rig.wait(1.0)
    assert answers == [None]
    assert part_of(sink).main.count == COUNT
    assert rig.queue.runtime().transfer_count == 0


def test_what_cannot_be_sent_via_it_is_answered_once_and_not_raised_beside() -> None:
    """One fragment's store fails with what is on its way: whoever sent it hears so, when all others have answered."""
    rig = Rig(PARTITIONED)
    sink = rig.add_queue(8, "sink", QueueDescription(), store=1)
    rig.fail(0)
    parcel, answers = rig.parcel(*letters(), to=sink), Answers()
    rig.queue.send_on(parcel.records, "sink", answers)
    rig.settle()
    (error,) = answers
    assert isinstance(error, StoreUnavailable)


def test_dead_letters_that_are_forwarded_to_a_partitioned_queue_arrive_there() -> None:
    rig = ForwardingRig(PARTITIONED)
    description = QueueDescription(forward_dead_lettered_to="orders")
    rig.source = rig.add_queue(9, "intake", description, store=1)
    rig.publish(message(b"dead", key=key_for(6)))
    rig.settle()
    consumer = rig.consumer()
    main = part_of(rig.source).main
    taker = TestConsumer(main)
    taker.grant(1)
    rig.settle()
    main.settlement.dead_letter(taker.numbers(), Answers(), reason="no", description=None, properties={})
    rig.settle()
    consumer.grant(1)
    rig.settle()
    assert consumer.bodies == [b"dead"]
    assert consumer.gathering.find(consumer.deliveries[0][1]).number == 6
