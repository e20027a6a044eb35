"""Message sections: decoded on demand, one section, field or key at a time."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Header, Message, Properties, Section, build, data, sequence, value
from twinbus.amqp.outcomes import Declare
from twinbus.amqp.types import Described, Symbol, Timestamp, UInt, ULong

ALL_SECTIONS = build(
    header=Header(durable=True, ttl=60_000, delivery_count=3),
    delivery_annotations={"x-opt-lock-token": uuid.UUID(int=7)},
    message_annotations={"x-opt-sequence-number": 42, "x-opt-partition-key": "key"},
    properties=Properties(message_id="m-1", content_type="text/plain", group_id="session", creation_time=123),
    application_properties={"colour": "red", "size": UInt(3)},
    body=data(b"hello"),
    footer={"checksum": b"\x01"},
)


def test_every_section_is_decoded() -> None:
    message = Message(ALL_SECTIONS)
    assert message.header == Header(durable=True, ttl=60_000, delivery_count=3)
    assert message.delivery_annotations == {"x-opt-lock-token": uuid.UUID(int=7)}
    assert message.message_annotations == {"x-opt-sequence-number": 42, "x-opt-partition-key": "key"}
    assert message.properties == Properties(
        message_id="m-1", content_type="text/plain", group_id="session", creation_time=123
    )
    assert message.application_properties == {"colour": "red", "size": UInt(3)}
    assert message.data == [b"hello"]
    assert message.footer == {"checksum": b"\x01"}
    assert message.body_section is Section.DATA


def test_keys_of_annotations_are_symbols_and_of_application_properties_strings() -> None:
    message = Message(ALL_SECTIONS)
    assert {type(key) for key in message.message_annotations} == {Symbol}
    assert {type(key) for key in message.application_properties} == {str}


def test_single_fields_and_keys_are_read_without_the_others() -> None:
    message = Message(ALL_SECTIONS)
    assert message.field(Section.PROPERTIES, 0) == "m-1"
    assert message.field(Section.PROPERTIES, 10) == "session"
    assert message.field(Section.PROPERTIES, 9) == Timestamp(123)
    assert message.field(Section.PROPERTIES, 12) is None
    assert message.field(Section.PROPERTIES, 99) is None
    assert message.field(Section.HEADER, 2) == 60_000
    assert message.lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-partition-key") == "key"
    assert message.lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-via-partition-key") is None
    assert message.lookup(Section.APPLICATION_PROPERTIES, "size") == UInt(3)


def test_the_raw_sections_joined_are_the_message() -> None:
    message = Message(ALL_SECTIONS)
    assert b"".join(message.raw(section) for section in Section) == ALL_SECTIONS


def test_missing_sections_are_empty() -> None:
    message = Message(build(body=value(None)))
    assert (message.header, message.properties, message.application_properties) == (None, None, {})
    assert message.field(Section.PROPERTIES, 0) is None
    assert message.lookup(Section.MESSAGE_ANNOTATIONS, "x") is None
    assert message.raw(Section.HEADER) == b""
    assert Section.HEADER not in message
    assert (message.body_section, message.value, message.data) == (Section.VALUE, None, [])


def test_a_message_may_have_no_body() -> None:
    assert Message(build(properties=Properties(message_id="m"))).body_section is None
    assert Message(b"").body_section is None


def test_a_body_may_have_several_sections_of_data_or_sequence() -> None:
    several = Message(build(body=data(b"1", b"2" * 300, b"")))
    assert several.data == [b"1", b"2" * 300, b""]
    assert several.raw(Section.DATA) == data(b"1", b"2" * 300, b"")
    assert Message(build(body=sequence([1, "two"], []))).sequences == [[1, "two"], []]


def test_a_composite_body_is_decoded_as_a_composite() -> None:
    assert Message(build(body=value(Declare()))).value == Declare()
    assert Message(build(body=value(Described(ULong(0x99), [])))).value == Described(ULong(0x99), [])


def test_sections_may_come_in_any_order() -> None:
    whole = Message(ALL_SECTIONS)
    shuffled = Message(b"".join(whole.raw(section) for section in reversed(Section)))
    assert shuffled.properties == whole.properties
    assert shuffled.delivery_annotations == whole.delivery_annotations
    assert shuffled.data == whole.data


def test_section_descriptors_may_have_any_legal_encoding() -> None:
    body = b"\xa0\x01x"
    for descriptor in (b"\x53\x75", b"\x80" + bytes(7) + b"\x75", b"\xa3\x10amqp:data:binary"):
        assert Message(b"\x00" + descriptor + body).data == [b"x"]


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x75",
        b"\x00\x53\x75\xa0\x05x",
        b"\x00\x53\x99\x45",
        b"\x40",
        b"hello",
        data(b"x") + value(1),
        value(1) + value(2),
        build(header=Header()) * 2,
        b"\x00\xa3\x04what\x45",
    ],
)
def test_bytes_that_are_not_a_message_are_refused(wrong: bytes) -> None:
    with pytest.raises(DecodeError):
        Message(wrong)


def test_a_section_of_the_wrong_type_is_refused_when_it_is_read() -> None:
    message = Message(b"\x00\x53\x74\x45" + b"\x00\x53\x73\xa1\x01x" + b"\x00\x53\x75\xa1\x01x")
    with pytest.raises(DecodeError, match="not a map"):
        _ = message.application_properties
    with pytest.raises(DecodeError, match="not a list"):
        _ = message.properties
    with pytest.raises(DecodeError, match="data"):
        _ = message.data
    with pytest.raises(DecodeError):
        message.field(Section.PROPERTIES, 0)
    with pytest.raises(DecodeError):
        message.lookup(Section.APPLICATION_PROPERTIES, "x")


@given(st.data(), st.integers(0, len(ALL_SECTIONS) - 1), st.binary(min_size=0, max_size=4))
def test_a_damaged_message_decodes_or_raises_decode_error(draw: st.DataObject, at: int, junk: bytes) -> None:
    mangled = ALL_SECTIONS[:at] + junk + ALL_SECTIONS[at + draw.draw(st.integers(0, 6)) :]
    try:
        message = Message(mangled)
        _ = (message.header, message.properties, message.message_annotations, message.application_properties)
        _ = (message.data, message.value, message.footer, message.delivery_annotations)
        message.field(Section.PROPERTIES, 11)
        message.lookup(Section.APPLICATION_PROPERTIES, "nothing")
    except DecodeError:
        pass
