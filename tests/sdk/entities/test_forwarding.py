"""Auto-forwarding of messages and dead letters to another entity."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus


def new_queue_name() -> str:
    return f"queue-{uuid.uuid4().hex}"


def test_messages_are_forwarded_through_a_queue_a_topic_and_a_subscription(bus: Bus) -> None:
    administration, first, last, topic = bus.administration, new_queue_name(), new_queue_name(), bus.topic()
    administration.create_queue(last)
    administration.create_subscription(topic, "one", forward_to=last)
    administration.create_queue(first, forward_to=topic)
    bus.sender(first).send_messages([ServiceBusMessage(f"{number}") for number in range(5)])
    received = receive(bus.receiver(last), 5)
    assert [body_of(message) for message in received] == [b"0", b"1", b"2", b"3", b"4"]
    runtime = administration.get_queue_runtime_properties(first)
    assert (runtime.active_message_count, runtime.transfer_message_count) == (0, 0)
    with pytest.raises(ServiceBusError, match="forwarded"):
        bus.receiver(first).receive_messages(max_wait_time=1)


def test_dead_letters_are_forwarded_with_their_dead_letter_source(bus: Bus) -> None:
    administration, source, target = bus.administration, new_queue_name(), new_queue_name()
    administration.create_queue(target)
    administration.create_queue(source, forward_dead_lettered_messages_to=target)
    bus.sender(source).send_messages(ServiceBusMessage("bad"))
    receiver = bus.receiver(source)
    receiver.dead_letter_message(receive(receiver, 1)[0], reason="why")
    (message,) = receive(bus.receiver(target), 1)
    assert (body_of(message), message.dead_letter_reason, message.dead_letter_source) == (b"bad", "why", source)


def test_a_message_that_cannot_be_forwarded_goes_to_the_transfer_dead_letter_queue(bus: Bus) -> None:
    administration, source, target = bus.administration, new_queue_name(), new_queue_name()
    administration.create_queue(target)
    administration.create_queue(source, forward_to=target)
    administration.delete_queue(target)
    bus.sender(source).send_messages(ServiceBusMessage("lost"))
    deadline = time.monotonic() + 20
    while administration.get_queue_runtime_properties(source).transfer_dead_letter_message_count != 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (message,) = receive(bus.receiver(source, sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER), 1)
    assert body_of(message) == b"lost"


def test_forwarding_to_a_missing_entity_is_refused(bus: Bus) -> None:
    with pytest.raises(HttpResponseError, match="ForwardTo"):
        bus.administration.create_queue(new_queue_name(), forward_to="nowhere")
