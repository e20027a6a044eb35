"""Lazy decoding of received messages: values set before decoding are kept, malformed properties fail on first use."""

from __future__ import annotations

import pytest

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Properties, build, data, sequence
from twinbus.client import BrokeredMessage


def received_message(**properties: object) -> BrokeredMessage:
    message = BrokeredMessage(b"apples", message_id="17", label="fruit", properties=properties)
    return BrokeredMessage.decode(message.encode(0))


def test_a_property_set_before_decoding_is_kept() -> None:
    message = received_message(colour="red")
    message.label = "vegetables"
    assert message.message_id == "17"
    assert message.label == "vegetables"


def test_changes_of_application_properties_are_kept() -> None:
    message = received_message(colour="red")
    message.properties["colour"] = "green"
    assert message.properties == {"colour": "green"}
    assert message.clone().properties == {"colour": "green"}


def test_a_renewed_lock_expiry_is_kept() -> None:
    message = received_message()
    message.received.locked_until_ms = 5
    assert message.sequence_number == 0
    assert message.received.locked_until_ms == 5


def test_an_unknown_attribute_raises_attribute_error() -> None:
    message = received_message()
    with pytest.raises(AttributeError, match="colour"):
        message.colour  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="colour"):
        message.received.colour  # type: ignore[attr-defined]  # noqa: B018


def test_malformed_sections_fail_at_once() -> None:
    with pytest.raises(DecodeError):
        BrokeredMessage.decode(received_message().payload + b"\x00")


def test_malformed_properties_fail_when_they_are_read() -> None:
    payload = b"\x00\x53\x73\xc0\x03\x01\x52\x11" + data(b"apples")  # a message-id that is a uint
    message = BrokeredMessage.decode(payload)
    assert message.body == b"apples"
    with pytest.raises(DecodeError, match="message_id"):
        message.label  # noqa: B018


@pytest.mark.parametrize(
    ("body", "expected"),
    [(data(b"a", b"b"), b"ab"), (sequence([1], [2]), [[1], [2]]), (b"", b""), (data(b"x" * 300), b"x" * 300)],
)
def test_every_kind_of_body_is_decoded(body: bytes, expected: object) -> None:
    for message_id in ("17", None):
        assert BrokeredMessage.decode(build(properties=Properties(message_id=message_id), body=body)).body == expected
