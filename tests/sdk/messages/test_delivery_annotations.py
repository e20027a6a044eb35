"""Delivery annotations of a sent message reach its receiver, whichever way the message takes."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.sdk.bus import receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SENT: dict[Any, Any] = {"delivery": "by hand", b"number": 7}
GOT = {b"delivery": b"by hand", b"number": 7}


def annotated(body: bytes = b"x") -> Any:  # noqa: ANN401  # the SDK's types do not know that it can be sent
    return AmqpAnnotatedMessage(data_body=body, delivery_annotations=SENT)


def told(message: Any) -> dict[Any, Any]:  # noqa: ANN401  # received or peeked
    """Delivery annotations, without the lock token."""
    found = message.raw_amqp_message.delivery_annotations
    assert found is not None, "the message has no such section"
    return {key: value for key, value in found.items() if key != b"x-opt-lock-token"}


def test_they_are_there_after_a_peek_a_deferral_and_a_dead_lettering(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    dead = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender.send_messages(annotated())
    [peeked] = receiver.peek_messages()
    assert told(peeked) == GOT
    [message] = receive(receiver, 1)
    assert told(message) == GOT
    receiver.defer_message(message)
    [deferred] = receiver.receive_deferred_messages(message.sequence_number)
    assert told(deferred) == GOT
    receiver.dead_letter_message(deferred, reason="to see it there")
    [buried] = receive(dead, 1)
    assert told(buried) == GOT


def test_they_are_there_in_batches_when_scheduled_and_when_received_and_deleted(bus: Bus, queue: str) -> None:
    sender = bus.sender(queue)
    receiver = bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    sender.send_messages([annotated(), annotated()])
    sender.schedule_messages(annotated(), dt.datetime.now(dt.UTC))
    assert [told(message) for message in receive(receiver, 3)] == [GOT] * 3


def test_a_message_without_any_has_an_empty_section_of_them(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    assert told(*receiver.peek_messages()) == {}
    assert told(*receive(receiver, 1)) == {}


def test_they_reach_the_copies_of_a_topic_and_go_on_with_a_forwarded_message(bus: Bus, server: ServerProcess) -> None:
    end = server.create_queue()
    topic = bus.topic("here", "there")
    bus.administration.create_subscription(topic, "forwarding", forward_to=end)
    sender, receivers = bus.topic_sender(topic), [bus.subscription_receiver(topic, name) for name in ("here", "there")]
    receivers.append(bus.receiver(end))
    sender.send_messages(annotated(b"large " * 1_000))
    for receiver in receivers:
        assert [told(message) for message in receive(receiver, 1)] == [GOT]


def test_a_message_that_is_sent_on_keeps_them_without_the_old_lock(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(annotated())
    [first] = receive(receiver, 1)
    receiver.complete_message(first)
    sender.send_messages(first.raw_amqp_message)
    [second] = receive(receiver, 1)
    assert told(second) == GOT
    assert second.raw_amqp_message.delivery_annotations[b"x-opt-lock-token"] == second.lock_token != first.lock_token
