"""What comes in: limits, ids, batches, and that the fast way and the slow one make the same of a message."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.message import Header, Message, Properties, Section, build, data, sequence, value
from twinbus.amqp.message_layout import field_offsets, layout_of, text_at
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


def take(payload: bytes, message_format: int = 0) -> list[RecordFields]:
    parcel = IncomingBatch()
    make_intake().add_to(parcel, payload, message_format, 77, ValidationPolicy())
    return [parse_record(record) for record in parcel.records]


def with_property(**properties: str) -> bytes:
    return build(properties=Properties(message_id="m"), application_properties=properties, body=data(b""))


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_bare_message_is_kept_to_the_byte() -> None:
    bare = build(properties=Properties(message_id="m"), application_properties={"a": 1}, body=data(b"x"))
    header = Header(durable=True, priority=7, ttl=5)
    (parts,) = take(build(header=header, delivery_annotations={"hop": 1}) + bare)
    assert parts.bare_message == bare
    assert parts.enqueued_ms == 77
    assert parts.header == make_header(durable=True, priority=7, ttl_ms=5)


def test_delivery_annotations_are_kept_wherever_they_stand_except_ours() -> None:
    bare = build(properties=Properties(message_id="m"), body=data(b"x"))
    section = build(delivery_annotations={"mine": 1, "x-opt-lock-token": 2})
    own = build(delivery_annotations={"mine": 1})
    for payload in (section + bare, bare + section):  # the SDK for Python writes them behind the body
        (parts,) = take(payload)
        assert parts.bare_message == bare
        assert (parts.delivery_annotation_count, parts.delivery_annotations) == (
            2,
            own[-len(parts.delivery_annotations) :],
        )
    (parts,) = take(build(delivery_annotations={}) + bare)
    assert parts.delivery_annotation_count == 0


def test_delivery_annotations_count_as_properties() -> None:
    bare = build(properties=Properties(message_id="m"), application_properties={"a": "x" * 30_000}, body=data(b"x"))
    take(build(delivery_annotations={"one": "x" * 30_000}) + bare)
    with pytest.raises(MessageTooLarge, match="of properties and annotations"):
        take(build(delivery_annotations={"one": "x" * 30_000, "two": "x" * 10_000}) + bare)
    with pytest.raises(MessageTooLarge, match=r"'one'.* takes 33010 bytes"):
        take(build(delivery_annotations={"one": "x" * 33_000}) + build(body=data(b"x")))
    with pytest.raises(MessageTooLarge, match="of delivery annotations"):
        take(build(delivery_annotations={"one": "x" * 32_600, "two": "x" * 32_600}) + build(body=data(b"x")))


def test_annotations_of_the_sender_are_kept_and_ours_are_not() -> None:
    annotations: Mapping[str, object] = {
        "x-opt-partition-key": "k",
        "x-opt-sequence-number": 1,
        "x-opt-enqueued-time": 2,
        "x-opt-locked-until": 3,
        "mine": 4,
    }
    (parts,) = take(build(message_annotations=annotations, properties=Properties(message_id="m"), body=data(b"x")))
    assert parts.annotation_count == 4
    assert b"x-opt-partition-key" in parts.annotations
    assert b"mine" in parts.annotations
    assert b"x-opt-sequence-number" not in parts.annotations


def test_a_message_without_id_gets_one_and_keeps_the_rest() -> None:
    payload = build(properties=Properties(subject="s"), application_properties={"a": 1}, body=data(b"x"), footer={})
    (parts,) = take(payload)
    before, after = Message(payload), Message(parts.bare_message)
    assert after.properties == Properties(message_id="made 1", subject="s")
    for section in (Section.APPLICATION_PROPERTIES, Section.DATA, Section.FOOTER):
        assert after.raw(section) == before.raw(section)


@pytest.mark.parametrize("payload", [build(body=data(b"x")), build(body=value(None)), build(properties=Properties())])
def test_so_does_one_without_properties(payload: bytes) -> None:
    (parts,) = take(payload)
    properties = Message(parts.bare_message).properties
    assert properties is not None
    assert properties.message_id == "made 1"


# --- batches ----------------------------------------------------------------------------------------------------------


def test_each_section_of_a_batch_is_a_message() -> None:
    messages = [build(properties=Properties(message_id=f"m{number}"), body=data(b"x")) for number in range(3)]
    assert [parts.bare_message for parts in take(data(*messages), BATCH_FORMAT)] == messages


@pytest.mark.parametrize("payload", [b"", build(properties=Properties(message_id="m")), build(body=value(b"x"))])
def test_a_batch_without_messages_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        take(payload, BATCH_FORMAT)


def test_one_wrong_message_of_a_batch_refuses_all() -> None:
    parcel = IncomingBatch()
    right = build(properties=Properties(message_id="m"), body=data(b"x"))
    wrong = build(properties=Properties(message_id="m" * 129), body=data(b"x"))
    with pytest.raises(ArgumentOutOfRange):
        make_intake().add_to(parcel, data(right, wrong), BATCH_FORMAT, 0, ValidationPolicy())
    assert len(parcel) == 0


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["message_id", "group_id"])
def test_an_id_has_at_most_128_characters(field: str) -> None:
    ids: dict[str, Any] = {"message_id": "m"}
    take(build(properties=Properties(**(ids | {field: "x" * 128})), body=data(b"")))
    with pytest.raises(ArgumentOutOfRange, match="129 characters"):
        take(build(properties=Properties(**(ids | {field: "x" * 129})), body=data(b"")))


def test_characters_are_counted_not_bytes() -> None:
    take(build(properties=Properties(message_id="ä" * 128), body=data(b"")))


def test_one_property_has_at_most_32_kilobytes() -> None:
    take(with_property(a="x" * 32_000))
    with pytest.raises(MessageTooLarge, match="'a'"):
        take(with_property(a="x" * 32_768))
    with pytest.raises(MessageTooLarge, match="'a'"):
        take(build(message_annotations={"a": "x" * 32_768}, properties=Properties(message_id="m"), body=data(b"")))


def test_all_properties_have_at_most_64_kilobytes() -> None:
    take(with_property(a="x" * 32_000, b="x" * 32_000))
    with pytest.raises(MessageTooLarge, match="65536"):
        take(with_property(a="x" * 32_000, b="x" * 32_000, c="x" * 2_000))


def test_a_large_body_is_no_property() -> None:
    take(build(properties=Properties(message_id="m"), body=data(bytes(200_000))))


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
def test_bytes_that_are_no_message_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        take(payload)


@given(st.binary(max_size=60))
def test_any_bytes_are_taken_or_refused(payload: bytes) -> None:
    for message_format in (0, BATCH_FORMAT):
        try:
            take(payload, message_format)
        except ServiceBusError:
            continue


# --- the fast way and the slow one ------------------------------------------------------------------------------------

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
def test_an_outline_agrees_with_the_message(payload: bytes) -> None:
    message, outline = Message(payload), layout_of(payload)
    if outline is None:
        return
    header_end, annotations_at, annotations_end, properties_at, properties_end, body_at = outline
    assert payload[:header_end] == message.raw(Section.HEADER)
    assert payload[annotations_at:annotations_end] == message.raw(Section.MESSAGE_ANNOTATIONS)
    assert payload[properties_at:properties_end] == message.raw(Section.PROPERTIES)
    assert message.has_field(Section.PROPERTIES, 0)
    assert payload[properties_at:] == message.bare()
    assert message.body_section is not None
    assert payload[body_at:] == message.raw(message.body_section) + message.raw(Section.FOOTER)


terms = st.builds(
    ValidationPolicy,
    max_ttl_ms=st.sampled_from([5_000, FOREVER_MS]),
    requires_session=st.booleans(),
    detects_duplicates=st.booleans(),
)


def added(add: Callable[[IncomingBatch], None]) -> tuple[object, ...]:
    parcel = IncomingBatch()
    try:
        add(parcel)
    except NotAllowed as error:
        return (str(error),)
    return (parcel.records, parcel.duplicate_ids, parcel.ping_count)


@given(messages, terms)
def test_both_ways_make_the_same_record(payload: bytes, terms: ValidationPolicy) -> None:
    usual = added(lambda parcel: make_intake().add_to(parcel, payload, 0, 77, terms))
    assert usual == added(lambda parcel: make_intake()._add_decoded(parcel, payload, 77, terms))  # noqa: SLF001


@given(messages)
def test_fields_are_found_where_they_are(payload: bytes) -> None:
    outline = layout_of(payload)
    if outline is None:
        return
    fields = field_offsets(payload, outline[3], 11)
    assert fields is not None
    message = Message(payload)
    for index, at in enumerate(fields):
        assert bool(at) == message.has_field(Section.PROPERTIES, index)
        if at and isinstance(message.field(Section.PROPERTIES, index), str):
            expected = message.field(Section.PROPERTIES, index)
            assert text_at(payload, at) == expected or isinstance(expected, Symbol)


def test_the_usual_message_has_an_outline() -> None:
    """Else it takes the slow way, which is right and takes three times as long."""
    bare = build(properties=Properties(message_id="m"), body=data(b"x"))
    assert layout_of(build(header=Header(durable=True)) + bare) is not None
    assert layout_of(bare) is not None
