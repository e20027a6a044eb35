"""What is found by offsets is what `Message` finds; where it is not found so, nothing is said."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.encode import encode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, Section, build, data, sequence, value
from twinbus.amqp.message_layout import data_of, is_text_map, layout_of, long_at
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, ULong

_VALUES: Final = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(codec="utf-8"), max_size=300),
    st.binary(max_size=300),
    st.integers(0, 2**40).map(Timestamp),
    st.integers(0, 9).map(lambda ticks: Described(Symbol("com.microsoft:timespan"), ticks)),
    st.lists(st.integers(0, 9), max_size=3),
)


@given(st.lists(st.binary(max_size=300), max_size=5), st.booleans())
def test_the_binaries_of_a_body_are_those_of_the_message(
    binaries: list[bytes],
    has_properties: bool,  # noqa: FBT001  # given by hypothesis
) -> None:
    payload = build(properties=Properties(message_id="1") if has_properties else None, body=data(*binaries))
    assert data_of(payload) == Message(payload).data == binaries


@pytest.mark.parametrize("body", [sequence([1]), value("x"), data(b"x") + b"\x00\x53\x78\xc1\x01\x00", data(b"x")[:-1]])
def test_of_another_body_nothing_is_said(body: bytes) -> None:
    assert data_of(build(properties=Properties(message_id="1"), body=body)) is None


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_have_no_binaries(payload: bytes) -> None:
    found = data_of(payload)
    if found is not None:
        assert Message(payload).data == found


@given(st.dictionaries(st.text(st.characters(codec="ascii"), max_size=20), _VALUES, max_size=4))
def test_a_map_of_short_plain_names_is_one(properties: dict[str, object]) -> None:
    payload = build(properties=Properties(message_id="1"), application_properties=properties, body=data(b"x"))
    outline = layout_of(payload)
    assert outline is not None
    assert is_text_map(payload, outline[4])


@given(st.binary(max_size=40))
def test_a_map_that_is_said_to_be_right_can_be_read(content: bytes) -> None:
    section = b"\x00\x53\x74\xc1" + bytes((len(content) + 1, 2)) + content
    if is_text_map(section, 0):
        try:
            Message(section).pairs(Section.APPLICATION_PROPERTIES)
        except DecodeError as error:
            raise AssertionError("it cannot be read") from error


@pytest.mark.parametrize("key", ["ü", Symbol("a"), 7, "a" * 300])
def test_of_a_map_with_another_name_nothing_is_said(key: object) -> None:
    assert not is_text_map(b"\x00\x53\x74" + encode({key: 1}), 0)


@pytest.mark.parametrize("number", [0, 1, -1, 127, -128, 128, 2**63 - 1, -(2**63)])
def test_a_long_is_read_in_both_ways_to_write_it(number: int) -> None:
    assert long_at(encode(number), 0) == number


@pytest.mark.parametrize("other", [ULong(1), Int(1), "1", Timestamp(1)])
def test_what_is_no_long_is_none(other: object) -> None:
    assert long_at(encode(other), 0) is None
