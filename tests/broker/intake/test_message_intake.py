"""Message intake: limits, message ids, batches, and equal results of the fast path and the full decoder."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.codec.message_layout import field_offsets, layout_of, text_at
from twinbus.amqp.message import Header, Message, Properties, Section, build, data, sequence, value
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.broker.intake.message_intake import MessageIntake
from twinbus.broker.message_record import make_header, parse_record
from twinbus.broker.ports.incoming_batch import IncomingBatch, ValidationPolicy
from twinbus.model.annotations import SCHEDULED_TIME
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import ArgumentOutOfRange, MalformedMessage, MessageTooLarge, NotAllowed, ServiceBusError
from twinbus.model.limits import NamespaceLimits
from twinbus.model.message import BATCH_FORMAT, PING_CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.message_record import RecordFields


def make_intake() -> MessageIntake:
    numbers = count(1)
    return MessageIntake(NamespaceLimits(), lambda: f"made {next(numbers)}")


def accept(payload: bytes, message_format: int = 0) -> list[RecordFields]:
    batch = IncomingBatch()
    make_intake().add_to(batch, payload, message_format, 77, ValidationPolicy())
    return [parse_record(record) for record in batch.records]


def with_property(**properties: str) -> bytes:
    return build(properties=Properties(message_id="m"), application_properties=properties, body=data(b""))


# --- stored parts of a message ----------------------------------------------------------------------------------------


def test_the_bare_message_is_stored_byte_for_byte() -> None:
    bare = build(properties=Properties(message_id="m"), application_properties={"a": 1}, body=data(b"x"))
    header = Header(durable=True, priority=7, ttl=5)
    (parts,) = accept(build(header=header, delivery_annotations={"hop": 1}) + bare)
    assert parts.bare_message == bare
    assert parts.enqueued_ms == 77
    assert parts.header == make_header(durable=True, priority=7, ttl_ms=5)


def test_delivery_annotations_are_stored_except_those_of_the_broker() -> None:
    bare = build(properties=Properties(message_id="m"), body=data(b"x"))
    section = build(delivery_annotations={"mine": 1, "x-opt-lock-token": 2})
    own = build(delivery_annotations={"mine": 1})
    for payload in (section + bare, bare + section):  # the SDK for Python writes delivery annotations after the body
        (parts,) = accept(payload)
        assert parts.bare_message == bare
        assert (parts.delivery_annotation_count, parts.delivery_annotations) == (
            2,
            own[-len(parts.delivery_annotations) :],
        )
    (parts,) = accept(build(delivery_annotations={}) + bare)
    assert parts.delivery_annotation_count == 0


def test_delivery_annotations_count_as_properties() -> None:
    bare = build(properties=Properties(message_id="m"), application_properties={"a": "x" * 30_000}, body=data(b"x"))
    accept(build(delivery_annotations={"one": "x" * 30_000}) + bare)
    with pytest.raises(MessageTooLarge, match="of properties and annotations"):
        accept(build(delivery_annotations={"one": "x" * 30_000, "two": "x" * 10_000}) + bare)
    with pytest.raises(MessageTooLarge, match=r"'one'.* has 33010 bytes"):
        accept(build(delivery_annotations={"one": "x" * 33_000}) + build(body=data(b"x")))
    with pytest.raises(MessageTooLarge, match="of delivery annotations"):
        accept(build(delivery_annotations={"one": "x" * 32_600, "two": "x" * 32_600}) + build(body=data(b"x")))


def test_message_annotations_are_stored_except_those_of_the_broker() -> None:
    annotations: Mapping[str, object] = {
        "x-opt-partition-key": "k",
        "x-opt-sequence-number": 1,
        "x-opt-enqueued-time": 2,
        "x-opt-locked-until": 3,
        "mine": 4,
    }
    (parts,) = accept(build(message_annotations=annotations, properties=Properties(message_id="m"), body=data(b"x")))
    assert parts.annotation_count == 4
    assert b"x-opt-partition-key" in parts.annotations
    assert b"mine" in parts.annotations
    assert b"x-opt-sequence-number" not in parts.annotations


def test_a_message_without_an_id_gets_one_and_is_otherwise_unchanged() -> None:
    payload = build(properties=Properties(subject="s"), application_properties={"a": 1}, body=data(b"x"), footer={})
    (parts,) = accept(payload)
    before, after = Message(payload), Message(parts.bare_message)
    assert after.properties == Properties(message_id="made 1", subject="s")
    for section in (Section.APPLICATION_PROPERTIES, Section.DATA, Section.FOOTER):
        assert after.raw(section) == before.raw(section)


@pytest.mark.parametrize("payload", [build(body=data(b"x")), build(body=value(None)), build(properties=Properties())])
def test_a_message_without_properties_gets_an_id(payload: bytes) -> None:
    (parts,) = accept(payload)
    properties = Message(parts.bare_message).properties
    assert properties is not None
    assert properties.message_id == "made 1"


# --- batches ----------------------------------------------------------------------------------------------------------


def test_each_section_of_a_batch_is_a_message() -> None:
    messages = [build(properties=Properties(message_id=f"m{number}"), body=data(b"x")) for number in range(3)]
    assert [parts.bare_message for parts in accept(data(*messages), BATCH_FORMAT)] == messages


@pytest.mark.parametrize("payload", [b"", build(properties=Properties(message_id="m")), build(body=value(b"x"))])
def test_a_batch_without_messages_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        accept(payload, BATCH_FORMAT)


def test_an_invalid_message_refuses_the_whole_batch() -> None:
    batch = IncomingBatch()
    right = build(properties=Properties(message_id="m"), body=data(b"x"))
    wrong = build(properties=Properties(message_id="m" * 129), body=data(b"x"))
    with pytest.raises(ArgumentOutOfRange):
        make_intake().add_to(batch, data(right, wrong), BATCH_FORMAT, 0, ValidationPolicy())
    assert len(batch) == 0


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["message_id", "group_id"])
def test_an_id_has_at_most_128_characters(field: str) -> None:
    ids: dict[str, Any] = {"message_id": "m"}
    accept(build(properties=Properties(**(ids | {field: "x" * 128})), body=data(b"")))
    with pytest.raises(ArgumentOutOfRange, match="129 characters"):
        accept(build(properties=Properties(**(ids | {field: "x" * 129})), body=data(b"")))


def test_characters_are_counted_not_bytes() -> None:
    accept(build(properties=Properties(message_id="ä" * 128), body=data(b"")))


def test_one_property_has_at_most_32_kilobytes() -> None:
    accept(with_property(a="x" * 32_000))
    with pytest.raises(MessageTooLarge, match="'a'"):
        accept(with_property(a="x" * 32_768))
    with pytest.raises(MessageTooLarge, match="'a'"):
        accept(build(message_annotations={"a": "x" * 32_768}, properties=Properties(message_id="m"), body=data(b"")))


def test_all_properties_have_at_most_64_kilobytes() -> None:
    accept(with_property(a="x" * 32_000, b="x" * 32_000))
    with pytest.raises(MessageTooLarge, match="65536"):
        accept(with_property(a="x" * 32_000, b="x" * 32_000, c="x" * 2_000))


def test_the_body_does_not_count_as_properties() -> None:
    accept(build(properties=Properties(message_id="m"), body=data(bytes(200_000))))


# --- malformed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x70\xa0\x00" + build(properties=Properties(message_id="m"), body=data(b"")),
        b"nonsense",
        build(properties=Properties(message_id="m"), body=data(b"x")) + b"\x00\x53\x99\x45",
        build(properties=Properties(message_id="m")) * 2,
        build(properties=Properties(message_id="m"), body=data(b"x")) + value(1),
    ],
)
def test_malformed_messages_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        accept(payload)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_accepted_or_refused(payload: bytes) -> None:
    for message_format in (0, BATCH_FORMAT):
        try:
            accept(payload, message_format)
        except ServiceBusError:
            continue


# --- fast path and full decoder ---------------------------------------------------------------------------------------

texts = st.text(max_size=12)
maps = st.none() | st.dictionaries(texts.filter(lambda key: key.isascii()), st.integers(0, 2**40) | texts, max_size=4)
bodies = st.one_of(
    st.lists(st.binary(max_size=300), max_size=3).map(lambda items: data(*items)),
    st.lists(st.integers(0, 300), max_size=3).map(lambda items: sequence(list(items))),
    st.one_of(st.none(), texts, st.binary(max_size=9), st.integers(0, 9)).map(value),
)
messages = st.builds(
    build,
    header=st.none() | st.builds(Header, durable=st.booleans(), ttl=st.none() | st.integers(0, 2**32 - 1)),
    delivery_annotations=maps,
    message_annotations=maps
    | st.dictionaries(
        st.sampled_from([SCHEDULED_TIME, "x-opt-sequence-number", "x-opt-partition-key", "other"]),
        st.integers(0, 2**40).map(Timestamp) | st.integers(0, 2**40) | texts,
    ),
    properties=st.none()
    | st.builds(
        Properties,
        message_id=st.none() | texts | st.binary(max_size=5),
        subject=st.none() | texts,
        content_type=st.none() | st.just(Symbol(PING_CONTENT_TYPE)),
        absolute_expiry_time=st.none() | st.integers(0, 2**40).map(Timestamp),
        creation_time=st.none() | st.integers(0, 2**40).map(Timestamp),
        group_id=st.none() | texts,
    ),
    application_properties=maps,
    body=bodies,
    footer=maps,
)


@given(messages)
def test_the_layout_agrees_with_the_decoded_message(payload: bytes) -> None:
    message, layout = Message(payload), layout_of(payload)
    if layout is None:
        return
    header_end, annotations_at, annotations_end, properties_at, properties_end, body_at = layout
    assert payload[:header_end] == message.raw(Section.HEADER)
    assert payload[annotations_at:annotations_end] == message.raw(Section.MESSAGE_ANNOTATIONS)
    assert payload[properties_at:properties_end] == message.raw(Section.PROPERTIES)
    assert message.has_field(Section.PROPERTIES, 0)
    assert payload[properties_at:] == message.bare()
    assert message.body_section is not None
    assert payload[body_at:] == message.raw(message.body_section) + message.raw(Section.FOOTER)


policies = st.builds(
    ValidationPolicy,
    max_ttl_ms=st.sampled_from([5_000, FOREVER_MS]),
    requires_session=st.booleans(),
    detects_duplicates=st.booleans(),
)


def result_of(add: Callable[[IncomingBatch], None]) -> tuple[object, ...]:
    batch = IncomingBatch()
    try:
        add(batch)
    except NotAllowed as error:
        return (str(error),)
    return (batch.records, batch.duplicate_ids, batch.ping_count)


@given(messages, policies)
def test_the_fast_path_and_the_full_decoder_make_the_same_record(payload: bytes, policy: ValidationPolicy) -> None:
    fast = result_of(lambda batch: make_intake().add_to(batch, payload, 0, 77, policy))
    assert fast == result_of(lambda batch: make_intake()._add_decoded(batch, payload, 77, policy))  # noqa: SLF001


@given(messages)
def test_field_offsets_agree_with_the_decoded_message(payload: bytes) -> None:
    layout = layout_of(payload)
    if layout is None:
        return
    fields = field_offsets(payload, layout[3], 11)
    assert fields is not None
    message = Message(payload)
    for index, at in enumerate(fields):
        assert bool(at) == message.has_field(Section.PROPERTIES, index)
        if at and isinstance(message.field(Section.PROPERTIES, index), str):
            expected = message.field(Section.PROPERTIES, index)
            assert text_at(payload, at) == expected or isinstance(expected, Symbol)


def test_a_typical_message_has_a_layout() -> None:
    """Without a layout, a message is decoded fully, which takes three times as long."""
    bare = build(properties=Properties(message_id="m"), body=data(b"x"))
    assert layout_of(build(header=Header(durable=True)) + bare) is not None
    assert layout_of(bare) is not None
