"""A body of every kind the SDK can send comes back as it was."""

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


def as_text(value: object) -> object:
    """The SDK hands out text as bytes, which it does not do itself before it sends."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_text(item) for item in value]
    if isinstance(value, dict):
        return {as_text(key): as_text(item) for key, item in value.items()}
    return value


def test_data_comes_back_in_as_many_sections_as_it_was_sent_in(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(AmqpAnnotatedMessage(data_body=SECTIONS))
    [message] = receive(receiver, 1)
    assert message.body_type is AmqpMessageBodyType.DATA
    assert list(message.body) == SECTIONS


def test_values_come_back(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages([AmqpAnnotatedMessage(value_body=value) for value in VALUES])
    received = receive(receiver, len(VALUES))
    assert {message.body_type for message in received} == {AmqpMessageBodyType.VALUE}
    assert [message.body for message in received] == [as_text(value) for value in VALUES]


def test_sequences_come_back(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(AmqpAnnotatedMessage(sequence_body=SEQUENCES))
    [message] = receive(receiver, 1)
    assert message.body_type is AmqpMessageBodyType.SEQUENCE
    assert list(message.body) == [as_text(sequence) for sequence in SEQUENCES]


@pytest.mark.parametrize("body", [b"", b"\x00" * 300, "ä" * 300], ids=["empty", "bytes", "text"])
def test_a_body_of_bytes_or_text_comes_back(bus: Bus, queue: str, body: str | bytes) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage(body))
    [message] = receive(receiver, 1)
    assert b"".join(message.body) == (body.encode() if isinstance(body, str) else body)


def test_a_message_without_a_body_section_is_taken_and_handed_out(bus: Bus, queue: str) -> None:
    """The SDK writes no body for a value that is none."""
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage(None, subject="empty"))
    [message] = receive(receiver, 1)
    assert message.subject == "empty"
    receiver.complete_message(message)
