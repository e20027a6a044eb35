"""Messages go on by themselves to another entity: each once, in order, also across failures of either store."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import annotation_of, message, property_of
from tests.broker.topic_harness import TopicHarness
from tests.support.parts import local_part
from twinbus.model.errors import NotAllowed
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.message import Message
    from twinbus.broker.entities.queue import Queue


class TwoStoreHarness(BrokerHarness):
    """A source in one store, and whatever it forwards to in another."""

    def __init__(self) -> None:
        super().__init__(stores=2)
        self._next_id = 50

    def add(self, path: str, store: int = 1, **description: Any) -> Queue:  # noqa: ANN401  # its fields
        self._next_id += 1
        return self.add_queue(self._next_id, path, QueueDescription(**description), store)

    def step(self) -> bool:
        pending = [store for store in self.stores if store.has_work]
        if self.deferred_calls or self.store_callbacks or not pending:
            return super().step()
        self.random.choice(pending).step()
        return True

    def step_randomly(self, chance: Random) -> None:
        """One of all things that can come next: the two disks keep no order with each other."""
        steps: list[Callable[[], object]] = [store.step for store in self.stores if store.has_work]
        steps += [
            lambda queue=queue: queue.popleft()()  # type: ignore[misc]
            for queue in (self.deferred_calls, self.store_callbacks)
            if queue
        ]
        if steps:
            chance.choice(steps)()

    def forward(self, queue: Queue, target: str | None = None, dead: str | None = None) -> None:
        description = QueueDescription(forward_to=target, forward_dead_lettered_to=dead, max_size_mb=5120)
        self.namespace.update_queue(queue.path, description, updated_ms=0)

    def crash_store(self, store: int) -> None:
        """Let the next sync of a store fail, so that some of what was not synced is lost, and open the store again."""
        self.stores[store].fail_next_sync("input/output error", self.random)
        self.namespace.commit_log(store).add_without_participant(Results())
        self.run_until_idle()
        self.reopen()


def bodies(harness: BrokerHarness, queue: Queue) -> list[bytes]:
    consumer = harness.consumer(1_000, of=local_part(queue).main)
    return consumer.bodies


@pytest.mark.parametrize("store", [0, 1])
def test_messages_go_to_the_other_queue_in_order(store: int) -> None:
    rig = TwoStoreHarness()
    target = rig.add("target", store)
    rig.send(b"before", to=rig.queue)
    rig.run_until_idle()
    rig.forward(rig.queue, "target")
    for number in range(5):
        rig.send(b"%d" % number, to=rig.queue)
    rig.run_until_idle()
    assert bodies(rig, target) == [b"before", b"0", b"1", b"2", b"3", b"4"]
    assert rig.queue.runtime().transfer_count == local_part(rig.queue).main.active_count == 0
    assert local_part(rig.queue).main.message_table.size == 0


def test_many_go_some_at_a_time() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    for start in range(0, 1_000, 100):
        rig.send(*[b"%d" % number for number in range(start, start + 100)], to=rig.queue)
    rig.run_until_idle()
    rig.forward(rig.queue, "target")
    rig.run_until_idle()
    assert bodies(rig, target) == [b"%d" % number for number in range(1_000)]


def test_what_arrives_is_as_if_it_had_been_sent() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    rig.forward(rig.queue, "target")
    rig.clock.advance(5)
    rig.send(b"1", to=rig.queue)
    rig.run_until_idle()
    (found,) = rig.consumer(1, of=local_part(target).main).messages
    assert annotation_of(found, "x-opt-enqueue-sequence-number") == 1
    assert annotation_of(found, "x-opt-sequence-number") == 1
    assert annotation_of(found, "x-opt-enqueued-time") == rig.clock.wall_ms()
    assert found.header is not None
    assert found.header.delivery_count == 0


def test_nobody_receives_what_is_forwarded() -> None:
    rig = TwoStoreHarness()
    rig.add("target")
    consumer = rig.consumer(1)
    rig.forward(rig.queue, "target")
    assert [type(error) for error in consumer.errors] == [NotAllowed]
    with pytest.raises(NotAllowed, match="target"):
        rig.queue.check_not_forwarded(SubQueue.MAIN)
    rig.queue.check_not_forwarded(SubQueue.DEAD_LETTER)
    rig.forward(rig.queue, None)
    rig.queue.check_not_forwarded(SubQueue.MAIN)


def test_dead_letters_go_where_they_are_told_to_and_say_where_they_come_from() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    rig.send(b"1", to=rig.queue)
    rig.run_until_idle()
    rig.forward(rig.queue, None, "target")
    consumer = rig.consumer(1)
    rig.main_fragment.settlement.dead_letter(consumer.lock_numbers(), Results(), reason="bad")
    rig.run_until_idle()
    (found,) = rig.consumer(1, of=local_part(target).main).messages
    assert annotation_of(found, "x-opt-deadletter-source") == "orders"
    assert property_of(found, "DeadLetterReason") == "bad"
    assert rig.dead_letters.active_count == 0


@pytest.mark.parametrize(
    ("what", "reason"),
    [("missing", "does not exist"), ("disabled", "is disabled"), ("full", "is full"), ("sessions", "NotAllowed")],
)
def test_what_cannot_arrive_is_moved_to_the_transfer_dead_letters(
    what: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = TwoStoreHarness()
    target = rig.add("target", requires_session=what == "sessions")
    rig.forward(rig.queue, "target")
    if what == "missing":
        rig.namespace.remove("target")
    if what == "disabled":
        rig.namespace.update_queue("target", QueueDescription(status="SendDisabled"), updated_ms=0)
    if what == "full":
        monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 0.2)
        rig.send(b"x", to=rig.queue)
    rig.send(b"y" * 120, to=rig.queue)
    rig.run_until_idle()
    failed = local_part(rig.queue).fragment_of(SubQueue.TRANSFER_DEAD_LETTER)
    (found,) = rig.consumer(5, of=failed).messages
    assert reason in str(property_of(found, "DeadLetterReason"))
    assert found.data == [b"y" * 120]
    assert rig.queue.runtime().transfer_dead_letter_count == 1
    assert rig.queue.runtime().transfer_count == 0
    if what == "full":
        assert bodies(rig, target) == [b"x"]


def test_one_that_cannot_arrive_does_not_keep_the_others() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target", requires_session=True)
    for number in range(20):
        rig.send(b"%d" % number, session="s" if number not in (3, 17) else None, to=rig.queue)
    rig.run_until_idle()
    rig.forward(rig.queue, "target")
    rig.run_until_idle()
    assert local_part(target).main.active_count == 18
    assert rig.queue.runtime().transfer_dead_letter_count == 2


def test_at_most_four_hops() -> None:
    rig = TwoStoreHarness()
    chain = [rig.queue, *[rig.add(f"hop-{number}", number % 2) for number in range(6)]]
    for source, target in pairwise(chain):
        rig.forward(source, target.path)
    rig.send(b"1", to=rig.queue)
    rig.run_until_idle()
    assert [local_part(queue).main.active_count for queue in chain] == [0] * 7
    failed = local_part(chain[4]).fragment_of(SubQueue.TRANSFER_DEAD_LETTER)
    (found,) = rig.consumer(1, of=failed).messages
    assert property_of(found, "DeadLetterReason") == "MaxTransferHopCountExceeded"


def test_a_circle_ends() -> None:
    rig = TwoStoreHarness()
    other = rig.add("other")
    rig.forward(rig.queue, "other")
    rig.forward(other, "orders")
    rig.send(b"1", to=rig.queue)
    rig.run_until_idle()
    assert rig.queue.runtime().transfer_dead_letter_count + other.runtime().transfer_dead_letter_count == 1


def test_a_destination_that_does_not_work_is_waited_for() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    rig.forward(rig.queue, "target")
    rig.commit_logs[1].unavailable_reason = "its disk hangs"
    rig.send(b"1", to=rig.queue)
    rig.run_until_idle()
    rig.advance(3)
    assert rig.queue.runtime().transfer_count == 1
    rig.commit_logs[1].unavailable_reason = None
    rig.advance(5)
    assert bodies(rig, target) == [b"1"]
    assert rig.queue.runtime().transfer_count == 0


def test_forwarding_that_is_ended_leaves_what_was_not_forwarded() -> None:
    rig = TwoStoreHarness()
    rig.add("target")
    rig.forward(rig.queue, "target")
    rig.commit_logs[1].unavailable_reason = "its disk hangs"
    rig.send(b"1", to=rig.queue)
    rig.run_until_idle()
    rig.forward(rig.queue, None)
    assert rig.consumer(1).bodies == [b"1"]


@pytest.mark.parametrize("store", [0, 1])
@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_each_arrives_once_whenever_a_store_fails(store: int, steps: int) -> None:
    rig = TwoStoreHarness()
    target = rig.add("target", requires_duplicate_detection=bool(steps % 2))
    rig.forward(rig.queue, "target")
    accepted = [rig.send(b"%d" % number, message_id=f"m{number}", to=rig.queue) for number in range(4)]
    for _ in range(steps):
        if rig.deferred_calls or rig.store_callbacks or any(one.has_work for one in rig.stores):
            rig.step()
    rig.crash_store(store)
    rig.run_until_idle()
    for _ in range(4):
        rig.advance(6)
    sure = [b"%d" % number for number, answers in enumerate(accepted) if answers == [None]]
    found = bodies(rig, target)
    assert len(found) == len(set(found)), "one arrived twice"
    assert set(sure) <= set(found), "one is lost"
    assert found == sorted(found)
    assert local_part(rig.queue).main.active_count == 0


def test_to_a_topic_and_from_a_subscription() -> None:
    rig = TopicHarness()
    last = rig.add_queue(60, "last", QueueDescription())
    subscription = rig.subscribe("a")
    plain = rig.subscribe("b")
    description = SubscriptionDescription(forward_to="last")
    rig.namespace.update_subscription(subscription.path, description, updated_ms=0)
    rig.namespace.update_queue("orders", QueueDescription(forward_to="news"), updated_ms=0)
    rig.send_stored(b"x" * 500)
    assert rig.consumer(5, of=local_part(last).main).bodies == [b"x" * 500]
    assert rig.complete(plain) == [b"x" * 500]
    assert rig.shared_body_counts() == (0, 0)


# --- send-via ---------------------------------------------------------------------------------------------------------


def records(harness: BrokerHarness, *bodies: bytes) -> list[bytes]:
    return harness.incoming_batch(*[message(body) for body in bodies]).records


def test_what_is_sent_via_a_queue_arrives_at_its_destination() -> None:
    rig = TwoStoreHarness()
    first, second = rig.add("first"), rig.add("second", 0)
    answers = Results()
    for number in range(3):
        rig.queue.send_via(records(rig, b"a%d" % number), "first", answers)
        rig.queue.send_via(records(rig, b"b%d" % number), "second", answers)
    rig.run_until_idle()
    assert answers == [None] * 6
    assert bodies(rig, first) == [b"a0", b"a1", b"a2"]
    assert bodies(rig, second) == [b"b0", b"b1", b"b2"]
    assert rig.queue.runtime().transfer_count == rig.main_fragment.active_count == 0


def test_what_waits_to_be_sent_on_is_there_after_a_restart() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    rig.commit_logs[1].unavailable_reason = "its disk hangs"
    rig.queue.send_via(records(rig, b"1"), "target", Results())
    rig.run_until_idle()
    assert rig.queue.runtime().transfer_count == 1
    rig.crash_store(0)
    rig.run_until_idle()
    rig.commit_logs[1].unavailable_reason = None
    rig.advance(6)
    assert bodies(rig, target) == [b"1"]
    assert rig.queue.runtime().transfer_count == 0


def test_a_destination_that_is_gone_is_told_by_the_transfer_dead_letters() -> None:
    rig = TwoStoreHarness()
    rig.queue.send_via(records(rig, b"1"), "nowhere", Results())
    rig.run_until_idle()
    assert rig.queue.runtime().transfer_dead_letter_count == 1


@pytest.mark.parametrize("seed", range(10))
def test_messages_that_come_while_others_are_being_removed_are_forwarded_once(seed: int) -> None:
    rig = TwoStoreHarness()
    rig.random.seed(seed)
    target = rig.add("target")
    rig.forward(rig.queue, "target")
    for number in range(100):
        rig.send(b"%d" % number, to=rig.queue)
        for _ in range(rig.random.randint(0, 12)):
            if rig.deferred_calls or rig.store_callbacks or any(store.has_work for store in rig.stores):
                rig.step()
    rig.run_until_idle()
    assert bodies(rig, target) == [b"%d" % number for number in range(100)]
    assert local_part(rig.queue).main.active_count == 0


@pytest.mark.parametrize("seed", range(10))
def test_what_comes_while_others_are_on_their_way_is_forwarded_once(seed: int) -> None:
    rig, chance = TwoStoreHarness(), Random(seed)
    target = rig.add("target")
    rig.forward(rig.queue, "target")
    for number in range(30):
        rig.send(b"%d" % number, to=rig.queue)
        for _ in range(chance.randrange(8)):
            rig.step_randomly(chance)
    rig.run_until_idle()
    assert bodies(rig, target) == [b"%d" % number for number in range(30)]
    assert (local_part(rig.queue).main.active_count, local_part(rig.queue).main.message_table.size) == (0, 0)


def test_one_that_someone_has_when_forwarding_begins_goes_in_its_turn() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    rig.send(b"1", b"2", to=rig.queue)
    rig.run_until_idle()
    rig.consumer(1)
    rig.forward(rig.queue, "target")
    rig.send(b"3", to=rig.queue)
    rig.run_until_idle()
    assert rig.queue.runtime().transfer_count == 3
    for _ in range(70):
        rig.advance(1)
    assert bodies(rig, target) == [b"1", b"2", b"3"]


def test_it_goes_on_when_a_queue_that_was_disabled_is_not_any_more() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    rig.forward(rig.queue, "target")
    description = QueueDescription(forward_to="target", status="ReceiveDisabled")
    rig.namespace.update_queue(rig.queue.path, description, updated_ms=0)
    rig.send(b"1", to=rig.queue)
    rig.run_until_idle()
    assert local_part(target).main.active_count == 0
    rig.forward(rig.queue, "target")
    rig.run_until_idle()
    assert bodies(rig, target) == [b"1"]


def test_it_goes_on_by_itself_when_the_store_of_the_source_is_there_again() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    rig.commit_logs[1].unavailable_reason = "its disk hangs"
    rig.forward(rig.queue, "target")
    for number in range(300):  # more than are taken at once, so that it is not hungry any more
        rig.send(b"%d" % number, to=rig.queue)
    rig.run_until_idle()
    rig.crash_store(0)
    rig.commit_logs[1].unavailable_reason = None
    rig.run_until_idle()
    assert bodies(rig, target) == [b"%d" % number for number in range(300)]


def test_it_goes_on_by_itself_when_the_disk_of_the_source_was_silent_for_long() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target")
    for number in range(300):
        rig.send(b"%d" % number, to=rig.queue)
    rig.run_until_idle()
    rig.forward(rig.queue, "target")
    while local_part(target).main.active_count == 0:
        rig.step()
    while not rig.stores[0].has_work:
        rig.step()
    rig.clock.advance(60)
    rig.namespace.timers.run_due()
    assert rig.commit_logs[0].unavailable_reason is not None
    rig.run_until_idle()
    for _ in range(3):
        rig.advance(6)
    assert bodies(rig, target) == [b"%d" % number for number in range(300)]
    assert local_part(rig.queue).main.active_count == 0


def test_a_message_says_once_under_which_number_it_was_there_first() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a")
    rig.namespace.update_queue("orders", QueueDescription(forward_to="news"), updated_ms=0)
    rig.publish_stored(b"before")
    rig.complete(subscription)
    rig.send_stored(b"1")
    consumer = rig.consumer(1, of=local_part(subscription).main)
    assert all_annotations(consumer.messages[0])["x-opt-enqueue-sequence-number"] == 1
    local_part(subscription).main.settlement.dead_letter(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    (dead,) = rig.consumer(1, of=local_part(subscription).dead_letters).messages
    assert all_annotations(dead)["x-opt-enqueue-sequence-number"] == 1


def all_annotations(found: Message) -> dict[object, object]:
    """All of them: one that is there twice makes them unreadable."""
    assert isinstance(found.message_annotations, dict)
    return found.message_annotations
