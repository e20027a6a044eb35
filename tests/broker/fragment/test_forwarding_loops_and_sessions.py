"""A queue with sessions forwards like any other; one that forwards to itself loses nothing, and comes to an end."""

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


def described(harness: TwoStoreHarness, path: str, **description: object) -> None:
    harness.namespace.update_queue(path, QueueDescription(**description), updated_ms=0)  # type: ignore[arg-type]


def test_messages_of_all_sessions_go_on_in_their_order() -> None:
    rig = TwoStoreHarness()
    target, source = rig.add("target"), rig.add("source", 0, requires_session=True)
    for number in range(6):
        rig.send(b"%d" % number, session="ab"[number % 2], to=source)
    rig.run_until_idle()
    described(rig, "source", requires_session=True, forward_to="target")
    rig.send(b"6", session="c", to=source)
    rig.run_until_idle()
    assert bodies(rig, target) == [b"%d" % number for number in range(7)]
    assert (local_part(source).main.active_count, local_part(source).main.message_table.size) == (0, 0)


def test_sessions_stay_sessions_where_the_destination_has_some() -> None:
    rig = TwoStoreHarness()
    target = rig.add("target", requires_session=True)
    source = rig.add("source", 0, requires_session=True, forward_to="target")
    for number in range(4):
        rig.send(b"%d" % number, session="ab"[number % 2], to=source)
    rig.run_until_idle()
    consumer = FakeSessionConsumer(local_part(target).main, session=b"b")
    consumer.grant(9)
    rig.run_until_idle()
    assert consumer.bodies == [b"1", b"3"]


def test_who_has_a_session_loses_it_when_forwarding_begins_and_its_messages_go_on() -> None:
    rig = TwoStoreHarness()
    target, source = rig.add("target"), rig.add("source", 0, requires_session=True)
    rig.send(b"1", b"2", session="a", to=source)
    rig.run_until_idle()
    consumer = FakeSessionConsumer(local_part(source).main, session=b"a")
    consumer.grant(1)
    rig.run_until_idle()
    assert consumer.bodies == [b"1"]
    described(rig, "source", requires_session=True, forward_to="target")
    rig.run_until_idle()
    rig.advance(1)
    assert [type(error) for error in consumer.errors] == [NotAllowed]
    with pytest.raises(NotAllowed, match="target"):
        source.check_not_forwarded(SubQueue.MAIN)
    assert bodies(rig, target) == [b"1", b"2"]


def test_sessions_can_be_received_again_when_forwarding_has_ended() -> None:
    rig = TwoStoreHarness()
    source = rig.add("source", 0, requires_session=True)
    rig.send(b"1", session="a", to=source)
    rig.run_until_idle()
    rig.add("target", status="SendDisabled")
    rig.stores[1].fail_next_sync("input/output error", rig.random)
    rig.commit_logs[1].add_without_participant(Results())
    rig.run_until_idle()
    described(rig, "source", requires_session=True, forward_to="target")
    rig.send(b"2", session="b", to=source)
    rig.run_until_idle()
    described(rig, "source", requires_session=True)
    rig.send(b"3", session="a", to=source)
    rig.run_until_idle()
    failed = [rig.consumer(5, of=local_part(source).fragment_of(SubQueue.TRANSFER_DEAD_LETTER)).bodies]
    assert isinstance(local_part(source).main.dispatcher, SessionDispatcher)
    found = {}
    for session in (b"a", b"b"):
        consumer = FakeSessionConsumer(local_part(source).main, session=session)
        consumer.grant(5)
        rig.run_until_idle()
        found[session] = consumer.bodies
    assert sorted([*found[b"a"], *found[b"b"], *failed[0]]) == [b"1", b"2", b"3"]
    assert b"3" in found[b"a"]


@pytest.mark.parametrize("seed", range(8))
def test_each_message_of_a_session_goes_on_once_across_failures(seed: int) -> None:
    rig, chance = TwoStoreHarness(), Random(seed)
    target, source = rig.add("target"), rig.add("source", 0, requires_session=True, forward_to="target")
    sent: list[tuple[bytes, Results]] = []
    for number in range(30):
        if chance.random() < 0.1:
            rig.crash_store(chance.randrange(2))
        try:
            sent.append((b"%d" % number, rig.send(b"%d" % number, session=str(number % 3), to=source)))
        except Exception:  # noqa: BLE001, S112  # its store is being opened
            continue
        for _ in range(chance.randrange(12)):
            rig.step_randomly(chance)
    for _ in range(5):
        rig.run_until_idle()
        rig.advance(10)
    rig.run_until_idle()
    accepted = [body for body, answers in sent if list(answers) == [None]]
    found = bodies(rig, target)
    assert len(found) == len(set(found)), "each once"
    assert set(accepted) <= set(found)
    assert found == sorted(found, key=int), "in order"


@pytest.mark.parametrize("has_sessions", [False, True])
@pytest.mark.parametrize("detects", [False, True])
def test_a_queue_that_forwards_to_itself_moves_its_messages_aside_after_four_hops(
    *, detects: bool, has_sessions: bool
) -> None:
    rig = TwoStoreHarness()
    options = {"requires_duplicate_detection": detects, "requires_session": has_sessions}
    queue = rig.add("circle", 0, **options)
    described(rig, "circle", **options, forward_to="circle")
    for number in range(3):
        rig.send(b"%d" % number, message_id=f"id-{number}", session="s", to=queue)
    rig.run_until_idle()
    failed = rig.consumer(9, of=local_part(queue).fragment_of(SubQueue.TRANSFER_DEAD_LETTER))
    assert failed.bodies == [b"0", b"1", b"2"]
    assert {property_of(found, "DeadLetterReason") for found in failed.messages} == {"MaxTransferHopCountExceeded"}
    assert (local_part(queue).main.active_count, queue.runtime().transfer_count) == (0, 0)


@pytest.mark.parametrize("detects", [False, True])
def test_a_dead_letter_that_goes_back_to_its_queue_is_there_again(*, detects: bool) -> None:
    rig = TwoStoreHarness()
    queue = rig.add("circle", 0, requires_duplicate_detection=detects)
    described(rig, "circle", requires_duplicate_detection=detects, forward_dead_lettered_to="circle")
    rig.send(b"again", message_id="one", to=queue)
    rig.run_until_idle()
    for _ in range(5):
        consumer = rig.consumer(1, of=local_part(queue).main)
        assert consumer.bodies == [b"again"]
        local_part(queue).main.settlement.dead_letter(consumer.lock_numbers(), Results(), reason="bad")
        consumer.leave()
        rig.run_until_idle()
    failed = rig.consumer(9, of=local_part(queue).fragment_of(SubQueue.TRANSFER_DEAD_LETTER))
    assert failed.bodies == [b"again"]
    assert local_part(queue).main.active_count == local_part(queue).dead_letters.active_count == 0
