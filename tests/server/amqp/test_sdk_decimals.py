"""Decimals are rewritten for the SDK for Python so that its own decoder reads the number that was sent."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode, _encode  # the decoder and encoder under test
from hypothesis import example, given
from hypothesis import strategies as st

from twinbus.amqp.codec import decimals
from twinbus.amqp.message import Message, Properties, Section, build, data
from twinbus.amqp.types import Decimal128
from twinbus.server.amqp import sdk_decimals
from twinbus.server.amqp.sdk_decimals import MAX_ENTRIES, rewrite_decimals

numbers = st.builds(
    lambda sign, coefficient, exponent: Decimal((sign, tuple(map(int, str(coefficient))), exponent)),
    st.integers(0, 1),
    st.integers(0, 10**25 - 1),
    st.integers(-32, 90),
)


def decode_with_sdk(payload: bytes) -> Any:  # noqa: ANN401  # the SDK's message type
    return _decode.decode_payload(memoryview(payload))


def encode_with_sdk(number: Decimal) -> bytes:
    out = bytearray()
    _encode.encode_decimal128(out, number)
    return bytes(out)


def message_with(**properties: object) -> bytes:
    return build(
        delivery_annotations={"one": 1},
        message_annotations={"two": 2},
        properties=Properties(message_id="m"),
        application_properties={name: _amqp(value) for name, value in properties.items()},
        body=data(b"\x94 in a body"),
        footer={"f": 1},
    )


def _amqp(value: object) -> object:
    return Decimal128(decimals.pack(value, decimals.DECIMAL128)) if isinstance(value, Decimal) else value


@given(numbers)
@example(Decimal("1.1"))
@example(Decimal("-12345.678"))
@example(Decimal(0))
@example(Decimal("0.00"))
@example(Decimal(4294967296))
@example(Decimal("1000000000000000000000000.1"))
@example(Decimal("79228162514264337593543.95"))
def test_the_sdk_reads_the_number_that_was_sent(number: Decimal) -> None:
    payload = message_with(price=number, other="x")
    assert encode_with_sdk(number) in payload, "the SDK encodes decimals like every other client"
    message = decode_with_sdk(rewrite_decimals(payload))
    assert message.application_properties == {b"price": number, b"other": b"x"}
    assert message.delivery_annotations == {b"one": 1}
    assert message.message_annotations == {b"two": 2}
    assert message.properties.message_id == b"m"
    assert (message.data, message.footer) == ([b"\x94 in a body"], {b"f": 1})


def test_an_exponent_out_of_the_sdks_range_is_shifted_if_there_are_digits_for_it() -> None:
    message = decode_with_sdk(rewrite_decimals(message_with(large=Decimal("1E+100"), zero=Decimal("0E-40"))))
    assert message.application_properties == {b"large": Decimal("1E+100"), b"zero": 0}


@given(numbers)
def test_a_rewritten_message_is_not_rewritten_again(number: Decimal) -> None:
    once = rewrite_decimals(message_with(price=number))
    assert rewrite_decimals(once) == once


@pytest.mark.parametrize("number", [Decimal("1E-40"), Decimal(1234567890123456789012345678901234), Decimal("1E+300")])
def test_a_number_that_the_sdk_cannot_represent_is_sent_as_text(number: Decimal) -> None:
    text = decode_with_sdk(rewrite_decimals(message_with(price=number))).application_properties[b"price"]
    assert Decimal(text.decode()) == number


def test_a_message_without_decimals_is_not_copied() -> None:
    payload = message_with(size=0x94, name="\x94", raw=b"\x94" * 17)
    assert rewrite_decimals(payload) is payload
    assert Message(payload).lookup(Section.APPLICATION_PROPERTIES, "size") == 0x94


def test_a_message_with_too_many_properties_is_not_rewritten() -> None:
    fewer = message_with(
        **{f"p{number}": Decimal("1.5") for number in range(MAX_ENTRIES - 2)}
    )  # the message also has 2 annotations
    more = message_with(**{f"p{number}": Decimal("1.5") for number in range(MAX_ENTRIES - 1)})
    assert rewrite_decimals(fewer) is not fewer
    assert rewrite_decimals(more) is more


def test_an_unrepresentable_number_is_detected_after_at_most_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    original = sdk_decimals.split_into_words

    def recording(text: str) -> list[int] | None:
        tried.append(text)
        return original(text)

    monkeypatch.setattr(sdk_decimals, "split_into_words", recording)
    for number in (Decimal("1E-300"), Decimal("1E+300"), Decimal(10**33 + 1), Decimal((0, (9,) * 30, -10))):
        assert sdk_decimals.pack_for_sdk(number) is None
    assert len(tried) <= 1
