"""Forwarding: each message reaches the destination once and in order, also if either store fails; and send-via."""

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
    """A source queue in one store, and its destinations in another."""

    def __init__(self) -> None:
        super().__init__(stores=2)
        self._next_id = 50

    def add(self, path: str, store: int = 1, **description: Any) -> Queue:  # noqa: ANN401  # fields of the description
        self._next_id += 1
        return self.add_queue(self._next_id, path, QueueDescription(**description), store)

    def step(self) -> bool:
        pending = [store for store in self.stores if store.has_work]
        if self.deferred_calls or self.store_callbacks or not pending:
            return super().step()
        self.random.choice(pending).step()
        return True

    def step_randomly(self, chance: Random) -> None:
        """Run a random pending step: the two disks do not order their work."""
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
        """Make the next sync of a store fail, so that some unsynced changes are lost, and reopen the store."""
        self.stores[store].fail_next_sync("input/output error", self.random)
        self.namespace.commit_log(store).add_without_participant(Results())
        self.run_until_idle()
        self.reopen()


def bodies(harness: BrokerHarness, queue: Queue) -> list[bytes]:
    consumer = harness.consumer(1_000, of=local_part(queue).main)
    return consumer.bodies


@pytest.mark.parametrize("store", [0, 1])
def test_messages_are_forwarded_to_the_destination_in_order(store: int) -> None:
    harness = TwoStoreHarness()
    target = harness.add("target", store)
    harness.send(b"before", to=harness.queue)
    harness.run_until_idle()
    harness.forward(harness.queue, "target")
    for number in range(5):
        harness.send(b"%d" % number, to=harness.queue)
    harness.run_until_idle()
    assert bodies(harness, target) == [b"before", b"0", b"1", b"2", b"3", b"4"]
    assert harness.queue.runtime().transfer_count == local_part(harness.queue).main.active_count == 0
    assert local_part(harness.queue).main.message_table.size == 0


def test_many_messages_are_forwarded_in_several_batches() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    for start in range(0, 1_000, 100):
        harness.send(*[b"%d" % number for number in range(start, start + 100)], to=harness.queue)
    harness.run_until_idle()
    harness.forward(harness.queue, "target")
    harness.run_until_idle()
    assert bodies(harness, target) == [b"%d" % number for number in range(1_000)]


def test_a_forwarded_message_arrives_like_a_sent_one() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    harness.forward(harness.queue, "target")
    harness.clock.advance(5)
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    (received,) = harness.consumer(1, of=local_part(target).main).messages
    assert annotation_of(received, "x-opt-enqueue-sequence-number") == 1
    assert annotation_of(received, "x-opt-sequence-number") == 1
    assert annotation_of(received, "x-opt-enqueued-time") == harness.clock.wall_ms()
    assert received.header is not None
    assert received.header.delivery_count == 0


def test_a_forwarding_queue_refuses_receivers() -> None:
    harness = TwoStoreHarness()
    harness.add("target")
    consumer = harness.consumer(1)
    harness.forward(harness.queue, "target")
    assert [type(error) for error in consumer.errors] == [NotAllowed]
    with pytest.raises(NotAllowed, match="target"):
        harness.queue.check_not_forwarded(SubQueue.MAIN)
    harness.queue.check_not_forwarded(SubQueue.DEAD_LETTER)
    harness.forward(harness.queue, None)
    harness.queue.check_not_forwarded(SubQueue.MAIN)


def test_forwarded_dead_letters_carry_their_source() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    harness.forward(harness.queue, None, "target")
    consumer = harness.consumer(1)
    harness.main_fragment.settlement.dead_letter(consumer.lock_numbers(), Results(), reason="bad")
    harness.run_until_idle()
    (received,) = harness.consumer(1, of=local_part(target).main).messages
    assert annotation_of(received, "x-opt-deadletter-source") == "orders"
    assert property_of(received, "DeadLetterReason") == "bad"
    assert harness.dead_letters.active_count == 0


@pytest.mark.parametrize(
    ("problem", "reason"),
    [("missing", "does not exist"), ("disabled", "is disabled"), ("full", "is full"), ("sessions", "NotAllowed")],
)
def test_undeliverable_messages_go_to_the_transfer_dead_letters(
    problem: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = TwoStoreHarness()
    target = harness.add("target", requires_session=problem == "sessions")
    harness.forward(harness.queue, "target")
    if problem == "missing":
        harness.namespace.remove("target")
    if problem == "disabled":
        harness.namespace.update_queue("target", QueueDescription(status="SendDisabled"), updated_ms=0)
    if problem == "full":
        monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 0.2)
        harness.send(b"x", to=harness.queue)
    harness.send(b"y" * 120, to=harness.queue)
    harness.run_until_idle()
    failed = local_part(harness.queue).fragment_of(SubQueue.TRANSFER_DEAD_LETTER)
    (received,) = harness.consumer(5, of=failed).messages
    assert reason in str(property_of(received, "DeadLetterReason"))
    assert received.data == [b"y" * 120]
    assert harness.queue.runtime().transfer_dead_letter_count == 1
    assert harness.queue.runtime().transfer_count == 0
    if problem == "full":
        assert bodies(harness, target) == [b"x"]


def test_an_undeliverable_message_does_not_block_the_others() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target", requires_session=True)
    for number in range(20):
        harness.send(b"%d" % number, session="s" if number not in (3, 17) else None, to=harness.queue)
    harness.run_until_idle()
    harness.forward(harness.queue, "target")
    harness.run_until_idle()
    assert local_part(target).main.active_count == 18
    assert harness.queue.runtime().transfer_dead_letter_count == 2


def test_a_message_is_forwarded_at_most_four_times() -> None:
    harness = TwoStoreHarness()
    chain = [harness.queue, *[harness.add(f"hop-{number}", number % 2) for number in range(6)]]
    for source, target in pairwise(chain):
        harness.forward(source, target.path)
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    assert [local_part(queue).main.active_count for queue in chain] == [0] * 7
    failed = local_part(chain[4]).fragment_of(SubQueue.TRANSFER_DEAD_LETTER)
    (received,) = harness.consumer(1, of=failed).messages
    assert property_of(received, "DeadLetterReason") == "MaxTransferHopCountExceeded"


def test_a_forwarding_loop_ends() -> None:
    harness = TwoStoreHarness()
    other = harness.add("other")
    harness.forward(harness.queue, "other")
    harness.forward(other, "orders")
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    assert harness.queue.runtime().transfer_dead_letter_count + other.runtime().transfer_dead_letter_count == 1


def test_forwarding_waits_for_an_unavailable_destination() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    harness.forward(harness.queue, "target")
    harness.commit_logs[1].unavailable_reason = "its disk hangs"
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    harness.advance(3)
    assert harness.queue.runtime().transfer_count == 1
    harness.commit_logs[1].unavailable_reason = None
    harness.advance(5)
    assert bodies(harness, target) == [b"1"]
    assert harness.queue.runtime().transfer_count == 0


def test_messages_not_yet_forwarded_stay_when_forwarding_is_turned_off() -> None:
    harness = TwoStoreHarness()
    harness.add("target")
    harness.forward(harness.queue, "target")
    harness.commit_logs[1].unavailable_reason = "its disk hangs"
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    harness.forward(harness.queue, None)
    assert harness.consumer(1).bodies == [b"1"]


@pytest.mark.parametrize("store", [0, 1])
@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_each_message_arrives_once_whenever_a_store_fails(store: int, steps: int) -> None:
    harness = TwoStoreHarness()
    target = harness.add("target", requires_duplicate_detection=bool(steps % 2))
    harness.forward(harness.queue, "target")
    accepted = [harness.send(b"%d" % number, message_id=f"m{number}", to=harness.queue) for number in range(4)]
    for _ in range(steps):
        if (
            harness.deferred_calls
            or harness.store_callbacks
            or any(pending_store.has_work for pending_store in harness.stores)
        ):
            harness.step()
    harness.crash_store(store)
    harness.run_until_idle()
    for _ in range(4):
        harness.advance(6)
    confirmed = [b"%d" % number for number, results in enumerate(accepted) if results == [None]]
    arrived = bodies(harness, target)
    assert len(arrived) == len(set(arrived)), "a message arrived twice"
    assert set(confirmed) <= set(arrived), "a message is lost"
    assert arrived == sorted(arrived)
    assert local_part(harness.queue).main.active_count == 0


def test_a_queue_forwards_to_a_topic_and_a_subscription_to_a_queue() -> None:
    harness = TopicHarness()
    last = harness.add_queue(60, "last", QueueDescription())
    subscription = harness.subscribe("a")
    plain = harness.subscribe("b")
    description = SubscriptionDescription(forward_to="last")
    harness.namespace.update_subscription(subscription.path, description, updated_ms=0)
    harness.namespace.update_queue("orders", QueueDescription(forward_to="news"), updated_ms=0)
    harness.send_stored(b"x" * 500)
    assert harness.consumer(5, of=local_part(last).main).bodies == [b"x" * 500]
    assert harness.complete(plain) == [b"x" * 500]
    assert harness.shared_body_counts() == (0, 0)


# --- send-via ---------------------------------------------------------------------------------------------------------


def records(harness: BrokerHarness, *bodies: bytes) -> list[bytes]:
    return harness.incoming_batch(*[message(body) for body in bodies]).records


def test_messages_sent_via_a_queue_arrive_at_their_destination() -> None:
    harness = TwoStoreHarness()
    first, second = harness.add("first"), harness.add("second", 0)
    results = Results()
    for number in range(3):
        harness.queue.send_via(records(harness, b"a%d" % number), "first", results)
        harness.queue.send_via(records(harness, b"b%d" % number), "second", results)
    harness.run_until_idle()
    assert results == [None] * 6
    assert bodies(harness, first) == [b"a0", b"a1", b"a2"]
    assert bodies(harness, second) == [b"b0", b"b1", b"b2"]
    assert harness.queue.runtime().transfer_count == harness.main_fragment.active_count == 0


def test_pending_transfers_survive_a_restart() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    harness.commit_logs[1].unavailable_reason = "its disk hangs"
    harness.queue.send_via(records(harness, b"1"), "target", Results())
    harness.run_until_idle()
    assert harness.queue.runtime().transfer_count == 1
    harness.crash_store(0)
    harness.run_until_idle()
    harness.commit_logs[1].unavailable_reason = None
    harness.advance(6)
    assert bodies(harness, target) == [b"1"]
    assert harness.queue.runtime().transfer_count == 0


def test_an_inspection_sees_messages_that_are_sent_via_a_queue_and_wait() -> None:
    harness = TwoStoreHarness()
    harness.add("target")
    inspection = local_part(harness.queue).inspect()
    assert inspection is not None
    assert inspection.figures().transfer == 0
    harness.commit_logs[1].unavailable_reason = "its disk hangs"
    for number in (1, 2):
        harness.queue.send_via(records(harness, b"x"), "target", Results())
        harness.run_until_idle()
        assert inspection.figures().transfer == number
    harness.commit_logs[1].unavailable_reason = None
    harness.advance(6)
    assert inspection.figures().transfer == 0


def test_an_inspection_keeps_its_figures_until_one_changes() -> None:
    harness = TwoStoreHarness()
    inspection = local_part(harness.queue).inspect()
    assert inspection is not None
    before = inspection.figures()
    assert inspection.figures() is before
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    after = inspection.figures()
    assert after.active == before.active + 1
    assert inspection.figures() is after


def test_an_inspection_sees_when_forwarding_begins_and_ends() -> None:
    harness = TwoStoreHarness()
    harness.add("target")
    inspection = local_part(harness.queue).inspect()
    assert inspection is not None
    harness.commit_logs[1].unavailable_reason = "its disk hangs"
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    assert (inspection.figures().active, inspection.figures().transfer) == (1, 0)
    harness.forward(harness.queue, "target")
    harness.run_until_idle()
    assert (inspection.figures().active, inspection.figures().transfer) == (0, 1)
    harness.namespace.update_queue("orders", QueueDescription(), updated_ms=0)
    assert (inspection.figures().active, inspection.figures().transfer) == (1, 0)


def test_a_message_sent_via_to_a_missing_entity_goes_to_the_transfer_dead_letters() -> None:
    harness = TwoStoreHarness()
    harness.queue.send_via(records(harness, b"1"), "nowhere", Results())
    harness.run_until_idle()
    assert harness.queue.runtime().transfer_dead_letter_count == 1


@pytest.mark.parametrize("seed", range(10))
def test_messages_that_arrive_during_removals_are_forwarded_once(seed: int) -> None:
    harness = TwoStoreHarness()
    harness.random.seed(seed)
    target = harness.add("target")
    harness.forward(harness.queue, "target")
    for number in range(100):
        harness.send(b"%d" % number, to=harness.queue)
        for _ in range(harness.random.randint(0, 12)):
            if harness.deferred_calls or harness.store_callbacks or any(store.has_work for store in harness.stores):
                harness.step()
    harness.run_until_idle()
    assert bodies(harness, target) == [b"%d" % number for number in range(100)]
    assert local_part(harness.queue).main.active_count == 0


@pytest.mark.parametrize("seed", range(10))
def test_messages_that_arrive_during_transfers_are_forwarded_once(seed: int) -> None:
    harness, chance = TwoStoreHarness(), Random(seed)
    target = harness.add("target")
    harness.forward(harness.queue, "target")
    for number in range(30):
        harness.send(b"%d" % number, to=harness.queue)
        for _ in range(chance.randrange(8)):
            harness.step_randomly(chance)
    harness.run_until_idle()
    assert bodies(harness, target) == [b"%d" % number for number in range(30)]
    assert (local_part(harness.queue).main.active_count, local_part(harness.queue).main.message_table.size) == (0, 0)


def test_a_message_locked_when_forwarding_begins_is_forwarded_in_order() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    harness.send(b"1", b"2", to=harness.queue)
    harness.run_until_idle()
    harness.consumer(1)
    harness.forward(harness.queue, "target")
    harness.send(b"3", to=harness.queue)
    harness.run_until_idle()
    assert harness.queue.runtime().transfer_count == 3
    for _ in range(70):
        harness.advance(1)
    assert bodies(harness, target) == [b"1", b"2", b"3"]


def test_forwarding_resumes_when_a_disabled_queue_is_enabled() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    harness.forward(harness.queue, "target")
    description = QueueDescription(forward_to="target", status="ReceiveDisabled")
    harness.namespace.update_queue(harness.queue.path, description, updated_ms=0)
    harness.send(b"1", to=harness.queue)
    harness.run_until_idle()
    assert local_part(target).main.active_count == 0
    harness.forward(harness.queue, "target")
    harness.run_until_idle()
    assert bodies(harness, target) == [b"1"]


def test_forwarding_resumes_when_the_store_of_the_source_is_reopened() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    harness.commit_logs[1].unavailable_reason = "its disk hangs"
    harness.forward(harness.queue, "target")
    for number in range(300):  # more than one batch, so that the forwarder stops asking for more
        harness.send(b"%d" % number, to=harness.queue)
    harness.run_until_idle()
    harness.crash_store(0)
    harness.commit_logs[1].unavailable_reason = None
    harness.run_until_idle()
    assert bodies(harness, target) == [b"%d" % number for number in range(300)]


def test_forwarding_resumes_after_a_long_hang_of_the_source_disk() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target")
    for number in range(300):
        harness.send(b"%d" % number, to=harness.queue)
    harness.run_until_idle()
    harness.forward(harness.queue, "target")
    while local_part(target).main.active_count == 0:
        harness.step()
    while not harness.stores[0].has_work:
        harness.step()
    harness.clock.advance(60)
    harness.namespace.timers.run_due()
    assert harness.commit_logs[0].unavailable_reason is not None
    harness.run_until_idle()
    for _ in range(3):
        harness.advance(6)
    assert bodies(harness, target) == [b"%d" % number for number in range(300)]
    assert local_part(harness.queue).main.active_count == 0


def test_the_enqueue_sequence_number_is_annotated_once() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a")
    harness.namespace.update_queue("orders", QueueDescription(forward_to="news"), updated_ms=0)
    harness.publish_stored(b"before")
    harness.complete(subscription)
    harness.send_stored(b"1")
    consumer = harness.consumer(1, of=local_part(subscription).main)
    assert all_annotations(consumer.messages[0])["x-opt-enqueue-sequence-number"] == 1
    local_part(subscription).main.settlement.dead_letter(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    (dead,) = harness.consumer(1, of=local_part(subscription).dead_letters).messages
    assert all_annotations(dead)["x-opt-enqueue-sequence-number"] == 1


def all_annotations(received: Message) -> dict[object, object]:
    """Return all annotations; decoding fails if one of them occurs twice."""
    assert isinstance(received.message_annotations, dict)
    return received.message_annotations
