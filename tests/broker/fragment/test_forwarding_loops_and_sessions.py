"""Forwarding from queues with sessions, and queues that forward to themselves."""

from __future__ import annotations

from random import Random

import pytest

from tests.broker.consumers import FakeSessionConsumer, Results
from tests.broker.fragment.test_forwarding import TwoStoreHarness, bodies
from tests.broker.messages import property_of
from tests.support.parts import local_part
from twinbus.broker.fragment.session_dispatcher import SessionDispatcher
from twinbus.model.errors import NotAllowed
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueDescription


def update(harness: TwoStoreHarness, path: str, **description: object) -> None:
    harness.namespace.update_queue(path, QueueDescription(**description), updated_ms=0)  # type: ignore[arg-type]


def test_messages_of_all_sessions_are_forwarded_in_order() -> None:
    harness = TwoStoreHarness()
    target, source = harness.add("target"), harness.add("source", 0, requires_session=True)
    for number in range(6):
        harness.send(b"%d" % number, session="ab"[number % 2], to=source)
    harness.run_until_idle()
    update(harness, "source", requires_session=True, forward_to="target")
    harness.send(b"6", session="c", to=source)
    harness.run_until_idle()
    assert bodies(harness, target) == [b"%d" % number for number in range(7)]
    assert (local_part(source).main.active_count, local_part(source).main.message_table.size) == (0, 0)


def test_forwarded_messages_keep_their_sessions() -> None:
    harness = TwoStoreHarness()
    target = harness.add("target", requires_session=True)
    source = harness.add("source", 0, requires_session=True, forward_to="target")
    for number in range(4):
        harness.send(b"%d" % number, session="ab"[number % 2], to=source)
    harness.run_until_idle()
    consumer = FakeSessionConsumer(local_part(target).main, session=b"b")
    consumer.grant(9)
    harness.run_until_idle()
    assert consumer.bodies == [b"1", b"3"]


def test_a_session_receiver_is_detached_when_forwarding_begins() -> None:
    harness = TwoStoreHarness()
    target, source = harness.add("target"), harness.add("source", 0, requires_session=True)
    harness.send(b"1", b"2", session="a", to=source)
    harness.run_until_idle()
    consumer = FakeSessionConsumer(local_part(source).main, session=b"a")
    consumer.grant(1)
    harness.run_until_idle()
    assert consumer.bodies == [b"1"]
    update(harness, "source", requires_session=True, forward_to="target")
    harness.run_until_idle()
    harness.advance(1)
    assert [type(error) for error in consumer.errors] == [NotAllowed]
    with pytest.raises(NotAllowed, match="target"):
        source.check_not_forwarded(SubQueue.MAIN)
    assert bodies(harness, target) == [b"1", b"2"]


def test_sessions_can_be_received_after_forwarding_is_turned_off() -> None:
    harness = TwoStoreHarness()
    source = harness.add("source", 0, requires_session=True)
    harness.send(b"1", session="a", to=source)
    harness.run_until_idle()
    harness.add("target", status="SendDisabled")
    harness.stores[1].fail_next_sync("input/output error", harness.random)
    harness.commit_logs[1].add_without_participant(Results())
    harness.run_until_idle()
    update(harness, "source", requires_session=True, forward_to="target")
    harness.send(b"2", session="b", to=source)
    harness.run_until_idle()
    update(harness, "source", requires_session=True)
    harness.send(b"3", session="a", to=source)
    harness.run_until_idle()
    failed = [harness.consumer(5, of=local_part(source).fragment_of(SubQueue.TRANSFER_DEAD_LETTER)).bodies]
    assert isinstance(local_part(source).main.dispatcher, SessionDispatcher)
    received = {}
    for session in (b"a", b"b"):
        consumer = FakeSessionConsumer(local_part(source).main, session=session)
        consumer.grant(5)
        harness.run_until_idle()
        received[session] = consumer.bodies
    assert sorted([*received[b"a"], *received[b"b"], *failed[0]]) == [b"1", b"2", b"3"]
    assert b"3" in received[b"a"]


@pytest.mark.parametrize("seed", range(8))
def test_each_message_of_a_session_is_forwarded_once_across_failures(seed: int) -> None:
    harness, chance = TwoStoreHarness(), Random(seed)
    target, source = harness.add("target"), harness.add("source", 0, requires_session=True, forward_to="target")
    sent: list[tuple[bytes, Results]] = []
    for number in range(30):
        if chance.random() < 0.1:
            harness.crash_store(chance.randrange(2))
        try:
            sent.append((b"%d" % number, harness.send(b"%d" % number, session=str(number % 3), to=source)))
        except Exception:  # noqa: BLE001, S112  # the store is being reopened
            continue
        for _ in range(chance.randrange(12)):
            harness.step_randomly(chance)
    for _ in range(5):
        harness.run_until_idle()
        harness.advance(10)
    harness.run_until_idle()
    accepted = [body for body, results in sent if list(results) == [None]]
    arrived = bodies(harness, target)
    assert len(arrived) == len(set(arrived)), "each once"
    assert set(accepted) <= set(arrived)
    assert arrived == sorted(arrived, key=int), "in order"


@pytest.mark.parametrize("has_sessions", [False, True])
@pytest.mark.parametrize("detects", [False, True])
def test_a_queue_that_forwards_to_itself_dead_letters_after_four_hops(*, detects: bool, has_sessions: bool) -> None:
    harness = TwoStoreHarness()
    options = {"requires_duplicate_detection": detects, "requires_session": has_sessions}
    queue = harness.add("circle", 0, **options)
    update(harness, "circle", **options, forward_to="circle")
    for number in range(3):
        harness.send(b"%d" % number, message_id=f"id-{number}", session="s", to=queue)
    harness.run_until_idle()
    failed = harness.consumer(9, of=local_part(queue).fragment_of(SubQueue.TRANSFER_DEAD_LETTER))
    assert failed.bodies == [b"0", b"1", b"2"]
    assert {property_of(dead, "DeadLetterReason") for dead in failed.messages} == {"MaxTransferHopCountExceeded"}
    assert (local_part(queue).main.active_count, queue.runtime().transfer_count) == (0, 0)


@pytest.mark.parametrize("detects", [False, True])
def test_a_dead_letter_forwarded_to_its_own_queue_is_delivered_again(*, detects: bool) -> None:
    harness = TwoStoreHarness()
    queue = harness.add("circle", 0, requires_duplicate_detection=detects)
    update(harness, "circle", requires_duplicate_detection=detects, forward_dead_lettered_to="circle")
    harness.send(b"again", message_id="one", to=queue)
    harness.run_until_idle()
    for _ in range(5):
        consumer = harness.consumer(1, of=local_part(queue).main)
        assert consumer.bodies == [b"again"]
        local_part(queue).main.settlement.dead_letter(consumer.lock_numbers(), Results(), reason="bad")
        consumer.leave()
        harness.run_until_idle()
    failed = harness.consumer(9, of=local_part(queue).fragment_of(SubQueue.TRANSFER_DEAD_LETTER))
    assert failed.bodies == [b"again"]
    assert local_part(queue).main.active_count == local_part(queue).dead_letters.active_count == 0
