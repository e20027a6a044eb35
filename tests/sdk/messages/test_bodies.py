"""Message bodies: every kind of body that the SDK can send is received unchanged."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from tests.sdk.bus import receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus

SECTIONS = [b"one", b"", b"three " * 100, bytes(range(256))]
VALUES = ["text", "Zürich 東京 🚂", 7, -(2**31), 2.5, True, ["a", 1], {"key": "value", "other": 2}, uuid.UUID(int=7)]
SEQUENCES = [["one", 2, None], [], [b"bytes", [1, [2]], {"a": True}]]


def as_received(value: object) -> object:
    """Convert text to bytes, because the SDK returns text of received bodies as bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_received(item) for item in value]
    if isinstance(value, dict):
        return {as_received(key): as_received(item) for key, item in value.items()}
    return value


def test_data_sections_are_received_as_they_were_sent(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(AmqpAnnotatedMessage(data_body=SECTIONS))
    [message] = receive(receiver, 1)
    assert message.body_type is AmqpMessageBodyType.DATA
    assert list(message.body) == SECTIONS


def test_value_bodies_are_received_unchanged(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages([AmqpAnnotatedMessage(value_body=value) for value in VALUES])
    received = receive(receiver, len(VALUES))
    assert {message.body_type for message in received} == {AmqpMessageBodyType.VALUE}
    assert [message.body for message in received] == [as_received(value) for value in VALUES]


def test_sequence_bodies_are_received_unchanged(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(AmqpAnnotatedMessage(sequence_body=SEQUENCES))
    [message] = receive(receiver, 1)
    assert message.body_type is AmqpMessageBodyType.SEQUENCE
    assert list(message.body) == [as_received(sequence) for sequence in SEQUENCES]


@pytest.mark.parametrize("body", [b"", b"\x00" * 300, "ä" * 300], ids=["empty", "bytes", "text"])
def test_a_body_of_bytes_or_text_is_received_unchanged(bus: Bus, queue: str, body: str | bytes) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage(body))
    [message] = receive(receiver, 1)
    assert b"".join(message.body) == (body.encode() if isinstance(body, str) else body)


def test_a_message_without_a_body_section_is_accepted_and_delivered(bus: Bus, queue: str) -> None:
    """The SDK sends no body section for a body of None."""
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage(None, subject="empty"))
    [message] = receive(receiver, 1)
    assert message.subject == "empty"
    receiver.complete_message(message)
