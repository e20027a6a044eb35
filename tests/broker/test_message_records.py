"""Message records: the stored form of a message, and its rendering as a delivery."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.codec.encode import write
from twinbus.amqp.message import Message, Properties, Section, build, data
from twinbus.amqp.types import Symbol
from twinbus.broker.message_record import (
    MessageHeader,
    RecordFields,
    change_record,
    due_time_of,
    make_header,
    make_plain_record,
    make_record,
    parse_record,
    render_locked,
    render_unlocked,
    session_id_of,
    shared_body_of,
)

BARE = build(
    properties=Properties(message_id="m", subject="s"),
    application_properties={"color": "red", "size": 7},
    body=data(b"body"),
)
TOKEN = bytes(range(16))


def encode_pairs(annotations: dict[str, Any]) -> bytes:
    out = bytearray()
    for key, value in annotations.items():
        write(out, Symbol(key))
        write(out, value)
    return bytes(out)


headers = st.builds(
    make_header,
    durable=st.booleans(),
    priority=st.integers(0, 255),
    ttl_ms=st.none() | st.integers(0, 2**32 - 1),
)
annotation_maps = st.dictionaries(
    st.sampled_from(["a", "x-opt-partition-key", "b" * 100]), st.integers(0, 9) | st.text()
)


@given(
    headers,
    annotation_maps,
    st.integers(0, 2**32 - 1),
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**40),
    st.booleans(),
    st.tuples(st.integers(0, 2**63), st.none() | st.binary(max_size=300), st.integers(0, 9), annotation_maps),
)
def test_a_delivery_carries_everything_its_record_holds(
    message_header: MessageHeader,
    annotations: dict[str, Any],
    count: int,
    sequence: int,
    enqueued_ms: int,
    is_locked: bool,  # noqa: FBT001
    rare_fields: tuple[int, bytes | None, int, dict[str, Any]],
) -> None:
    due_ms, session, shared_body, delivery_annotations = rare_fields
    encoded_annotations = encode_pairs(annotations)
    record = make_record(
        RecordFields(
            message_header,
            BARE,
            enqueued_ms,
            due_ms=due_ms,
            session_id=session,
            annotations=encoded_annotations,
            annotation_count=2 * len(annotations),
            delivery_count=count,
            shared_body=shared_body,
            delivery_annotations=encode_pairs(delivery_annotations),
            delivery_annotation_count=2 * len(delivery_annotations),
        )
    )
    payload = render_locked(record, sequence, TOKEN, 99) if is_locked else render_unlocked(record, sequence)
    message = Message(payload)
    header = message.header
    assert header is not None
    assert make_header(durable=header.durable, priority=header.priority, ttl_ms=header.ttl) == message_header
    assert header.delivery_count == count
    assert not header.first_acquirer
    assert message.bare() == BARE
    expected: dict[str, Any] = {"x-opt-enqueued-time": enqueued_ms, "x-opt-sequence-number": sequence} | annotations
    lock_annotations: dict[str, Any] = {}
    if is_locked:
        expected["x-opt-locked-until"] = 99
        lock_annotations = {"x-opt-lock-token": UUID(bytes=TOKEN)}
    assert Section.DELIVERY_ANNOTATIONS in message
    assert message.delivery_annotations == lock_annotations | delivery_annotations
    assert message.message_annotations == expected
    assert encoded_annotations in message.raw(Section.MESSAGE_ANNOTATIONS)
    parts = parse_record(record)
    assert (parts.header, parts.delivery_count, parts.enqueued_ms) == (message_header, count, enqueued_ms)
    assert (parts.due_ms, due_time_of(record)) == (due_ms, due_ms)
    assert (parts.session_id, session_id_of(record)) == (session, session)
    assert (parts.annotations, parts.annotation_count, parts.bare_message) == (
        encoded_annotations,
        2 * len(annotations),
        BARE,
    )
    assert (parts.delivery_annotations, parts.delivery_annotation_count) == (
        encode_pairs(delivery_annotations),
        2 * len(delivery_annotations),
    )
    assert (parts.shared_body, shared_body_of(record), make_record(parts)) == (shared_body, shared_body, record)


def test_a_record_of_the_previous_version_has_no_delivery_annotations() -> None:
    """The record has a session and one annotation."""
    head = struct.pack(">BBBBIQQQHIH", 2, 1 | 8, 4, 0, 3, 0, 77, 0, 2, len(encode_pairs({"a": 1})), 2)
    record = head + b"s1" + encode_pairs({"a": 1}) + BARE
    parts = parse_record(record)
    assert (parts.session_id, parts.delivery_count, parts.bare_message) == (b"s1", 3, BARE)
    assert (parts.delivery_annotation_count, parts.delivery_annotations) == (0, b"")
    assert make_record(parts) == record


def test_a_plain_record_is_one_without_annotations() -> None:
    header = make_header(durable=True, priority=9, ttl_ms=1_000)
    assert make_plain_record(header, BARE, 5) == make_record(RecordFields(header, BARE, 5))


def test_a_message_without_a_time_to_live_is_delivered_without_one() -> None:
    never = make_plain_record(make_header(durable=False, priority=4, ttl_ms=None), BARE, 5)
    at_once = make_plain_record(make_header(durable=False, priority=4, ttl_ms=0), BARE, 5)
    ttls = [header.ttl for record in (never, at_once) if (header := Message(render_unlocked(record, 1)).header)]
    assert ttls == [None, 0]


def test_changing_the_delivery_count_changes_nothing_else() -> None:
    record = make_record(RecordFields(make_header(durable=True, priority=4, ttl_ms=7), BARE, 5))
    changed = change_record(record, delivery_count=3)
    assert parse_record(changed) == parse_record(record)._replace(delivery_count=3)


def test_changing_properties_keeps_the_bytes_of_the_others() -> None:
    record = make_plain_record(make_header(durable=True, priority=4, ttl_ms=None), BARE, 5)
    bare = parse_record(change_record(record, properties={"color": "blue", "new": True})).bare_message
    before, after = Message(BARE), Message(bare)
    assert after.application_properties == {"size": 7, "color": "blue", "new": True}
    kept = dict(before.pairs(Section.APPLICATION_PROPERTIES))
    assert dict(after.pairs(Section.APPLICATION_PROPERTIES))["size"] == kept["size"]
    assert after.raw(Section.PROPERTIES) == before.raw(Section.PROPERTIES)
    assert after.raw(Section.DATA) == before.raw(Section.DATA)


@pytest.mark.parametrize(
    "bare",
    [
        build(body=data(b"only a body")),
        build(properties=Properties(message_id="m"), body=data(b"1", b"2")),
        build(properties=Properties(message_id="m"), body=data(b""), footer={"f": 1}),
        build(application_properties={}),
    ],
)
def test_properties_can_be_set_on_any_message(bare: bytes) -> None:
    record = make_plain_record(make_header(durable=True, priority=4, ttl_ms=None), bare, 5)
    before, after = Message(bare), Message(parse_record(change_record(record, properties={"why": "x"})).bare_message)
    assert after.application_properties == {"why": "x"}
    for section in (Section.PROPERTIES, Section.DATA, Section.FOOTER):
        assert after.raw(section) == before.raw(section)


def test_annotations_are_added_after_those_of_the_sender() -> None:
    header = make_header(durable=True, priority=4, ttl_ms=None)
    record = make_record(RecordFields(header, BARE, 5, annotations=encode_pairs({"a": 1}), annotation_count=2))
    changed = change_record(record, annotations={"x-opt-enqueue-sequence-number": 12})
    annotations = Message(render_unlocked(changed, 3)).message_annotations
    assert annotations == {
        "a": 1,
        "x-opt-enqueue-sequence-number": 12,
        "x-opt-enqueued-time": 5,
        "x-opt-sequence-number": 3,
    }
