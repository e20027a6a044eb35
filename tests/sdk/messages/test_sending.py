"""Sending: single messages, lists and batches are in the queue when the call returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

BATCH_LIMIT = 262_144


def test_a_message_sent_is_received_and_completed(every_bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("an order"))
    assert server.message_counts(queue) == (1, 0)
    [message] = receive(receiver, 1)
    assert body_of(message) == b"an order"
    receiver.complete_message(message)
    assert server.message_counts(queue) == (0, 0)


def test_a_list_of_messages_is_received_in_order(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(20)])
    assert server.message_counts(queue) == (20, 0)
    assert [body_of(message) for message in receive(receiver, 20)] == [b"order %d" % number for number in range(20)]


def test_a_batch_accepts_messages_up_to_its_limit_and_all_arrive(bus: Bus, server: ServerProcess, queue: str) -> None:
    sender = bus.sender(queue)
    batch = sender.create_message_batch()
    assert batch.max_size_in_bytes == BATCH_LIMIT
    while batch.size_in_bytes < BATCH_LIMIT - 1_200:
        batch.add_message(ServiceBusMessage(b"x" * 1_000))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * 1_200))
    sender.send_messages(batch)
    assert server.message_counts(queue) == (len(batch), 0)


def test_messages_of_several_sends_are_received_in_order(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    for number in range(10):
        sender.send_messages(ServiceBusMessage(f"order {number}"))
    assert [body_of(message) for message in receive(receiver, 10)] == [b"order %d" % number for number in range(10)]


def test_queue_names_are_case_insensitive(bus: Bus, server: ServerProcess, queue: str) -> None:
    bus.sender(queue.upper()).send_messages(ServiceBusMessage("an order"))
    assert server.message_counts(queue) == (1, 0)
