"""Message properties: every property of every type is received and peeked as it was sent."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.sdk.bus import receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus

PROPERTIES: dict[str, Any] = {
    "message_id": "id 7 ü",
    "correlation_id": "correlation 7",
    "subject": "subject",
    "content_type": "application/json",
    "to": "somebody",
    "reply_to": "an answer queue",
    "reply_to_session_id": "answer session",
    "session_id": "a session of a queue that has none",
    "partition_key": "a session of a queue that has none",
    "time_to_live": dt.timedelta(minutes=5),
}
INSTANT = dt.datetime(2026, 11, 16, 1, 2, 3, 456_000, tzinfo=dt.UTC)
APPLICATION_PROPERTIES: dict[Any, Any] = {
    "text": "Zürich 🚂",
    "empty": "",
    "int": 7,
    "negative": -7,
    "largest": 2**31 - 1,
    "float": 2.5,
    "yes": True,
    "no": False,
    "uuid": uuid.UUID("25279ea5-2d40-446c-89d5-7403cc71ff37"),
    "time": INSTANT,
    "nothing": None,
    "price": Decimal("12.345"),
    "debt": Decimal("-12345678901234567890.12345"),
    "zero": Decimal(0),
}
AS_RECEIVED = {
    name.encode(): value.encode() if isinstance(value, str) else value for name, value in APPLICATION_PROPERTIES.items()
} | {b"time": int(INSTANT.timestamp() * 1000)}
"""Properties as the SDK returns them: text as bytes, a time as milliseconds."""


def properties_of(message: Any) -> dict[str, Any]:  # noqa: ANN401  # received or peeked
    return {name: getattr(message, name) for name in PROPERTIES}


def test_every_property_is_received_and_peeked_as_it_was_sent(every_bus: Bus, queue: str) -> None:
    sender, receiver = every_bus.sender(queue), every_bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x", **PROPERTIES, application_properties=APPLICATION_PROPERTIES))
    [peeked], [received] = receiver.peek_messages(), receive(receiver, 1)
    for message in (peeked, received):
        assert properties_of(message) == PROPERTIES
        assert message.application_properties == AS_RECEIVED


def test_properties_that_were_not_set_are_none(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("x"))
    [message] = receive(receiver, 1)
    assert {name: value for name, value in properties_of(message).items() if value is not None}.keys() == {"message_id"}
    assert message.application_properties is None


@pytest.mark.parametrize("identity", [uuid.UUID(int=2**100), 2**60, b"bytes", "text"])
def test_message_and_correlation_ids_keep_their_type(bus: Bus, queue: str, identity: Any) -> None:  # noqa: ANN401  # of several types
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    message = AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": identity, "correlation_id": identity})
    sender.send_messages(message)
    [received] = receive(receiver, 1)
    properties = received.raw_amqp_message.properties
    expected = identity.encode() if isinstance(identity, str) else identity
    assert (properties.message_id, properties.correlation_id) == (expected, expected)


def test_annotations_footer_and_header_of_the_sender_are_delivered(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    annotated = AmqpAnnotatedMessage(
        data_body=b"x",
        annotations={"x-opt-colour": "red", "x-opt-sequence-number": 4_711},
        footer={"checksum": 7},
        header={"priority": 9, "durable": True},
    )
    sender.send_messages(annotated)
    [message] = receive(receiver, 1)
    raw = message.raw_amqp_message
    assert raw.annotations[b"x-opt-colour"] == b"red"
    assert raw.footer == {b"checksum": 7}
    assert (raw.header.priority, raw.header.durable) == (9, True)
    assert message.sequence_number == 1, "what the sender says of it means nothing"


def test_the_messages_of_a_batch_keep_their_own_properties(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(
        [ServiceBusMessage("x", message_id=f"id {number}", subject=f"s {number}") for number in range(5)]
    )
    received = receive(receiver, 5)
    assert [(message.message_id, message.subject) for message in received] == [
        (f"id {number}", f"s {number}") for number in range(5)
    ]
