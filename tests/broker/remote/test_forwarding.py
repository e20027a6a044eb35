"""Messages are forwarded to entities of another process, each once."""

from __future__ import annotations

from tests.broker.partitioned.rig import message
from tests.broker.remote.rig import QUEUE_ID, TwoProcesses
from tests.broker.rig import Answers
from twinbus.broker.ports.incoming import Parcel
from twinbus.model.queue import QueueDescription

PLAIN = QueueDescription()


def sent(rig: TwoProcesses, count: int) -> Answers:
    answers, parcel, namespace = Answers(), Parcel(), rig.near.namespace
    queue = namespace.find_sendable("source")
    for number in range(count):
        namespace.intake.add_to(parcel, message(b"%d" % number), 0, rig.clock.wall_ms(), queue.terms)
    queue.send(parcel, answers)
    rig.settle()
    return answers


def with_source(rig: TwoProcesses, store: int) -> TwoProcesses:
    """A plain queue whose messages go to the partitioned one."""
    for process in (rig.near, rig.far):
        process.add_queue(QUEUE_ID + 1, "source", QueueDescription(forward_to="orders"), store)
    rig.settle()
    return rig


def test_a_queue_of_this_process_forwards_to_fragments_of_both() -> None:
    rig = with_source(TwoProcesses(), 0)
    assert sent(rig, 32) == [None]
    assert rig.counts() == [2] * 16


def test_a_queue_of_another_process_forwards_to_fragments_of_both() -> None:
    rig = with_source(TwoProcesses(), 1)
    assert sent(rig, 32) == [None]
    assert rig.counts() == [2] * 16


def test_what_cannot_be_forwarded_now_is_when_its_owner_is_back_and_once() -> None:
    rig = with_source(TwoProcesses(), 0)
    rig.disconnect()
    assert sent(rig, 32) == [None]
    for _ in range(3):
        rig.wait(1.0)
    rig.connect()
    for _ in range(10):
        rig.wait(1.0)
    assert sum(rig.counts()) == 32


def test_messages_are_sent_via_a_queue_of_another_process() -> None:
    rig = TwoProcesses()
    for process in (rig.near, rig.far):
        process.add_queue(QUEUE_ID + 1, "way", PLAIN, 1)
    namespace, answers, parcel = rig.near.namespace, Answers(), Parcel()
    way = namespace.find_sendable("way")
    for number in range(16):
        namespace.intake.add_to(parcel, message(b"%d" % number), 0, rig.clock.wall_ms(), way.terms)
    way.send_on(parcel.records, "orders", answers)  # type: ignore[union-attr]  # it is a queue
    rig.settle()
    assert answers == [None]
    assert sum(rig.counts()) == 16
