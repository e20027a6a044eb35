"""Delivery annotations of a sent message reach its receiver on every path."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.sdk.bus import receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SENT_ANNOTATIONS: dict[Any, Any] = {"delivery": "by hand", b"number": 7}
RECEIVED_ANNOTATIONS = {b"delivery": b"by hand", b"number": 7}


def annotated(body: bytes = b"x") -> Any:  # noqa: ANN401  # the SDK accepts it, but its types do not
    return AmqpAnnotatedMessage(data_body=body, delivery_annotations=SENT_ANNOTATIONS)


def annotations_of(message: Any) -> dict[Any, Any]:  # noqa: ANN401  # received or peeked
    """Return the delivery annotations without the lock token."""
    annotations = message.raw_amqp_message.delivery_annotations
    assert annotations is not None, "the message has no such section"
    return {key: value for key, value in annotations.items() if key != b"x-opt-lock-token"}


def test_delivery_annotations_survive_a_peek_a_deferral_and_dead_lettering(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead_letters = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender.send_messages(annotated())
    [peeked] = receiver.peek_messages()
    assert annotations_of(peeked) == RECEIVED_ANNOTATIONS
    [message] = receive(receiver, 1)
    assert annotations_of(message) == RECEIVED_ANNOTATIONS
    receiver.defer_message(message)
    [deferred] = receiver.receive_deferred_messages(message.sequence_number)
    assert annotations_of(deferred) == RECEIVED_ANNOTATIONS
    receiver.dead_letter_message(deferred, reason="to see it there")
    [dead_lettered] = receive(dead_letters, 1)
    assert annotations_of(dead_lettered) == RECEIVED_ANNOTATIONS


def test_delivery_annotations_survive_batches_scheduling_and_receive_and_delete(bus: Bus, queue: str) -> None:
    sender = bus.sender(queue)
    receiver = bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    sender.send_messages([annotated(), annotated()])
    sender.schedule_messages(annotated(), dt.datetime.now(dt.UTC))
    assert [annotations_of(message) for message in receive(receiver, 3)] == [RECEIVED_ANNOTATIONS] * 3


def test_a_message_without_delivery_annotations_has_an_empty_section(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    assert annotations_of(*receiver.peek_messages()) == {}
    assert annotations_of(*receive(receiver, 1)) == {}


def test_delivery_annotations_reach_topic_copies_and_forwarded_messages(bus: Bus, server: ServerProcess) -> None:
    end = server.create_queue()
    topic = bus.topic("here", "there")
    bus.administration.create_subscription(topic, "forwarding", forward_to=end)
    sender, receivers = bus.topic_sender(topic), [bus.subscription_receiver(topic, name) for name in ("here", "there")]
    receivers.append(bus.receiver(end))
    sender.send_messages(annotated(b"large " * 1_000))
    for receiver in receivers:
        assert [annotations_of(message) for message in receive(receiver, 1)] == [RECEIVED_ANNOTATIONS]


def test_a_resent_message_keeps_its_delivery_annotations_but_not_its_lock_token(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(annotated())
    [first] = receive(receiver, 1)
    receiver.complete_message(first)
    sender.send_messages(first.raw_amqp_message)
    [second] = receive(receiver, 1)
    assert annotations_of(second) == RECEIVED_ANNOTATIONS
    assert second.raw_amqp_message.delivery_annotations[b"x-opt-lock-token"] == second.lock_token != first.lock_token
