"""The annotations the broker writes on forwarded messages cannot be set by senders or seen by receivers."""

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
    """A queue, and other queues beside it."""

    def __init__(self, *paths: str) -> None:
        super().__init__()
        self.others = [self.add_queue(50 + number, path, QueueDescription()) for number, path in enumerate(paths)]

    def forward(self, queue: Queue, target: str) -> None:
        self.namespace.update_queue(queue.path, QueueDescription(forward_to=target), updated_ms=0)

    def annotated(self, annotations: dict[str, object] | None = None) -> IncomingBatch:
        """Return a batch with one message that has these annotations."""
        return self.incoming_batch(
            build(message_annotations=annotations, properties=Properties(message_id="1"), body=data(b"1"))
        )

    def annotations(self, fragment: Fragment) -> set[str]:
        """Return the names of the annotations a receiver sees."""
        (received,) = self.consumer(1, of=fragment).messages
        assert isinstance(received.message_annotations, dict)
        return {str(name) for name in received.message_annotations}


@pytest.mark.parametrize("hops", ["many", Int(4), Int(-1)])
def test_a_sender_cannot_set_the_hop_count(hops: object) -> None:
    harness = ForwardingChain("target")
    (target,) = harness.others
    harness.forward(harness.queue, "target")
    harness.queue.send(harness.annotated({Symbol(HOPS): hops}), Results())
    harness.run_until_idle()
    assert (local_part(target).main.active_count, harness.queue.runtime().transfer_dead_letter_count) == (1, 0)


def test_a_sender_cannot_set_the_destination_annotation_of_a_send_via() -> None:
    harness = ForwardingChain("target", "secret")
    target, secret = harness.others
    harness.queue.send_via(harness.annotated({Symbol(DESTINATION): "secret"}).records, "target", Results())
    harness.run_until_idle()
    assert (local_part(target).main.active_count, local_part(secret).main.active_count) == (1, 0)


def test_a_receiver_sees_no_forwarding_annotations() -> None:
    harness = ForwardingChain("target", "second")
    target, second = harness.others
    harness.forward(harness.queue, "target")
    harness.queue.send(harness.annotated(), Results())
    harness.run_until_idle()
    usual = {"x-opt-enqueued-time", "x-opt-sequence-number", "x-opt-locked-until", "x-opt-enqueue-sequence-number"}
    assert harness.annotations(local_part(target).main) == usual
    harness.queue.send_via(harness.annotated().records, "second", Results())
    harness.run_until_idle()
    assert harness.annotations(local_part(second).main) == usual


def test_a_transfer_dead_letter_has_no_destination_annotation() -> None:
    harness = ForwardingChain()
    harness.queue.send_via(harness.annotated().records, "nowhere", Results())
    harness.run_until_idle()
    assert DESTINATION not in harness.annotations(local_part(harness.queue).fragment_of(SubQueue.TRANSFER_DEAD_LETTER))
