"""Message layout: the offset-based reader agrees with `Message`, or returns None for layouts that it does not know."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.codec.encode import encode
from twinbus.amqp.codec.message_layout import data_of, is_text_map, layout_of, long_at
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, Section, build, data, sequence, value
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
def test_data_of_returns_the_binaries_that_message_returns(
    binaries: list[bytes],
    has_properties: bool,  # noqa: FBT001  # given by hypothesis
) -> None:
    payload = build(properties=Properties(message_id="1") if has_properties else None, body=data(*binaries))
    assert data_of(payload) == Message(payload).data == binaries


@pytest.mark.parametrize("body", [sequence([1]), value("x"), data(b"x") + b"\x00\x53\x78\xc1\x01\x00", data(b"x")[:-1]])
def test_data_of_returns_none_for_other_bodies(body: bytes) -> None:
    assert data_of(build(properties=Properties(message_id="1"), body=body)) is None


@given(st.binary(max_size=60))
def test_data_of_random_bytes_is_none_or_agrees_with_message(payload: bytes) -> None:
    binaries = data_of(payload)
    if binaries is not None:
        assert Message(payload).data == binaries


@given(st.dictionaries(st.text(st.characters(codec="ascii"), max_size=20), _VALUES, max_size=4))
def test_a_map_with_short_ascii_keys_is_a_text_map(properties: dict[str, object]) -> None:
    payload = build(properties=Properties(message_id="1"), application_properties=properties, body=data(b"x"))
    layout = layout_of(payload)
    assert layout is not None
    assert is_text_map(payload, layout[4])


@given(st.binary(max_size=40))
def test_a_section_accepted_as_a_text_map_can_be_decoded(content: bytes) -> None:
    section = b"\x00\x53\x74\xc1" + bytes((len(content) + 1, 2)) + content
    if is_text_map(section, 0):
        try:
            Message(section).pairs(Section.APPLICATION_PROPERTIES)
        except DecodeError as error:
            raise AssertionError("it cannot be read") from error


@pytest.mark.parametrize("key", ["ü", Symbol("a"), 7, "a" * 300])
def test_a_map_with_any_other_key_is_not_a_text_map(key: object) -> None:
    assert not is_text_map(b"\x00\x53\x74" + encode({key: 1}), 0)


@pytest.mark.parametrize("number", [0, 1, -1, 127, -128, 128, 2**63 - 1, -(2**63)])
def test_a_long_is_read_from_both_of_its_encodings(number: int) -> None:
    assert long_at(encode(number), 0) == number


@pytest.mark.parametrize("other", [ULong(1), Int(1), "1", Timestamp(1)])
def test_long_at_returns_none_for_other_types(other: object) -> None:
    assert long_at(encode(other), 0) is None
