"""What the broker notes on a message that it forwards: nobody can write it, and nobody sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.support.parts import local_part
from twinbus.amqp.message import Properties, build, data
from twinbus.amqp.types import Int, Symbol
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.incoming_batch import IncomingBatch

DESTINATION = "x-opt-twinbus-destination"
HOPS = "x-opt-twinbus-hops"


class ForwardingChain(BrokerHarness):
    """A queue, and others beside it."""

    def __init__(self, *paths: str) -> None:
        super().__init__()
        self.others = [self.add_queue(50 + place, path, QueueDescription()) for place, path in enumerate(paths)]

    def forward(self, queue: Queue, target: str) -> None:
        self.namespace.update_queue(queue.path, QueueDescription(forward_to=target), updated_ms=0)

    def annotated(self, annotations: dict[str, object] | None = None) -> IncomingBatch:
        """A parcel with one message that has these annotations."""
        return self.incoming_batch(
            build(message_annotations=annotations, properties=Properties(message_id="1"), body=data(b"1"))
        )

    def annotations(self, fragment: Fragment) -> set[str]:
        """The names of those that a receiver sees."""
        (found,) = self.consumer(1, of=fragment).messages
        assert isinstance(found.message_annotations, dict)
        return {str(name) for name in found.message_annotations}


@pytest.mark.parametrize("hops", ["many", Int(4), Int(-1)])
def test_a_sender_cannot_say_how_often_a_message_was_forwarded(hops: object) -> None:
    rig = ForwardingChain("target")
    (target,) = rig.others
    rig.forward(rig.queue, "target")
    rig.queue.send(rig.annotated({Symbol(HOPS): hops}), Results())
    rig.run_until_idle()
    assert (local_part(target).main.active_count, rig.queue.runtime().transfer_dead_letter_count) == (1, 0)


def test_a_sender_cannot_say_where_a_message_goes_that_it_sends_via_another_queue() -> None:
    rig = ForwardingChain("target", "secret")
    target, secret = rig.others
    rig.queue.send_via(rig.annotated({Symbol(DESTINATION): "secret"}).records, "target", Results())
    rig.run_until_idle()
    assert (local_part(target).main.active_count, local_part(secret).main.active_count) == (1, 0)


def test_a_receiver_sees_nothing_of_the_way() -> None:
    rig = ForwardingChain("target", "second")
    target, second = rig.others
    rig.forward(rig.queue, "target")
    rig.queue.send(rig.annotated(), Results())
    rig.run_until_idle()
    usual = {"x-opt-enqueued-time", "x-opt-sequence-number", "x-opt-locked-until", "x-opt-enqueue-sequence-number"}
    assert rig.annotations(local_part(target).main) == usual
    rig.queue.send_via(rig.annotated().records, "second", Results())
    rig.run_until_idle()
    assert rig.annotations(local_part(second).main) == usual


def test_nor_does_who_finds_one_that_could_not_arrive() -> None:
    rig = ForwardingChain()
    rig.queue.send_via(rig.annotated().records, "nowhere", Results())
    rig.run_until_idle()
    assert DESTINATION not in rig.annotations(local_part(rig.queue).fragment_of(SubQueue.TRANSFER_DEAD_LETTER))
