"""Frames: the bytes of the frame header, and decoding of the performative inside the frame's bounds."""

from __future__ import annotations

import pytest

from twinbus.amqp.codec.decode import DEFAULT_LIMITS
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.codec.frames import HEARTBEAT, SASL_FRAME, frame, read_performative
from twinbus.amqp.codec.performatives import Close, Error, Open
from twinbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED, DecodeError
from twinbus.amqp.settings import Limits
from twinbus.amqp.types import Described, ULong


def test_a_frame_header_holds_size_data_offset_type_and_channel() -> None:
    assert frame(0x1234, b"body").hex(" ", 1) == "00 00 00 0c 02 00 12 34 62 6f 64 79"
    assert frame(0, b"", SASL_FRAME).hex(" ", 1) == "00 00 00 08 02 01 00 00"


def test_a_heartbeat_is_a_frame_without_a_body() -> None:
    assert HEARTBEAT == frame(0, b"") == bytes.fromhex("00000008 02000000")


def test_a_performative_is_decoded_at_an_offset_between_other_bytes() -> None:
    close = Close(error=Error(condition="amqp:not-found"))
    data = b"\xff" * 5 + close.encode() + b"payload" + b"\xff" * 5
    assert read_performative(data, 5, len(data) - 5, DEFAULT_LIMITS) == (close, 5 + len(close.encode()))


def test_a_performative_that_runs_past_the_end_of_its_frame_is_refused() -> None:
    data = Close().encode() + Close().encode()
    for end in range(len(Close().encode())):
        with pytest.raises(DecodeError, match="past the end of its frame"):
            read_performative(data, 0, end, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    "value",
    [None, [], "a", Described(ULong(0x1F), []), Described("amqp:close:list", []), Described(None, [])],
    ids=repr,
)
def test_a_value_that_is_not_a_known_composite_is_not_a_performative(value: object) -> None:
    data = encode(value)
    with pytest.raises(DecodeError, match="not a performative"):
        read_performative(data, 0, len(data), DEFAULT_LIMITS)


def test_the_string_limit_applies_to_performatives() -> None:
    data = Open(container_id="x" * 100).encode()
    with pytest.raises(DecodeError) as raised:
        read_performative(data, 0, len(data), Limits(max_string_bytes=99))
    assert raised.value.condition == RESOURCE_LIMIT_EXCEEDED
