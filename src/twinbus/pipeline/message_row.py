"""One message from a browse link, split into the values of its columns.

Owns the mapping from a message's bytes to columns. Messages in the layouts that twinbus and common clients write are
decoded in one pass over the bytes; all other messages are decoded with `Message`. This code runs 100,000 times a
second, so it creates no BrokeredMessage. Knows nothing of Arrow: `columns` builds record batches from rows.
"""
# ruff: noqa: PLR2004  # 0x70 is an AMQP uint, and 10 the index of the session id in the properties

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec.decode import decode
from twinbus.amqp.codec.field_numbers import (
    ABSOLUTE_EXPIRY_TIME,
    CONTENT_TYPE,
    CORRELATION_ID,
    CREATION_TIME,
    DELIVERY_COUNT,
    GROUP_ID,
    LARGEST_TTL_MS,
    MESSAGE_ID,
    REPLY_TO,
    REPLY_TO_GROUP_ID,
    SUBJECT,
    TO,
    TTL,
)
from twinbus.amqp.codec.message_layout import (
    annotation_pairs,
    field_offsets,
    layout_of,
    long_at,
    text_at,
    timestamp_at,
    uint32_at,
)
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Header, Message, Properties, Section
from twinbus.amqp.types import Timestamp
from twinbus.model import annotations as names
from twinbus.pipeline.properties import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

BODY_DATA: Final = "data"
BODY_VALUE: Final = "value"
BODY_SEQUENCE: Final = "sequence"
BODY_UNREADABLE: Final = "message"
"""Body type of a message that cannot be decoded: the body is the whole message as received."""
_ABSENT: Final = -1
_NOT_A_UINT: Final = -2
_TEXT_FIELDS: Final = (TO, SUBJECT, REPLY_TO, CORRELATION_ID, CONTENT_TYPE, GROUP_ID, REPLY_TO_GROUP_ID)
_SEQUENCE_NUMBER: Final = names.SEQUENCE_NUMBER.encode()
_ENQUEUED_TIME: Final = names.ENQUEUED_TIME.encode()
_PARTITION_KEY: Final = names.PARTITION_KEY.encode()
_ENQUEUED_SEQUENCE_NUMBER: Final = names.ENQUEUED_SEQUENCE_NUMBER.encode()
_SCHEDULED_TIME: Final = names.SCHEDULED_TIME.encode()
_DEADLETTER_SOURCE: Final = names.DEADLETTER_SOURCE.encode()


class MessageRow:
    """The column values of one message. Times are in microseconds since 1970; -1 marks a missing number."""

    def __init__(self) -> None:
        """Create a row without values."""
        self.body: bytes | None = None
        self.body_type: str | None = BODY_DATA
        self.message_id: str | None = None
        self.session_id: str | None = None
        self.correlation_id: str | None = None
        self.content_type: str | None = None
        self.label: str | None = None
        self.to: str | None = None
        self.reply_to: str | None = None
        self.reply_to_session_id: str | None = None
        self.partition_key: str | None = None
        self.ttl_ms = _ABSENT
        self.scheduled_time_us: int | None = None
        self.enqueued_time_us: int | None = None
        self.expires_at_us: int | None = None
        self.sequence_number = 0
        self.enqueued_sequence_number = _ABSENT
        self.delivery_count = 0
        self.dead_letter_source: str | None = None
        self.application_properties: dict[object, object] | None = None
        """The application properties as decoded AMQP values."""


def read_row(payload: bytes) -> MessageRow:
    """Decode a message into a row."""
    row = MessageRow()
    if _read_common_layout(row, payload):
        return row
    try:
        row = MessageRow()
        _read_decoded(row, Message(payload))
    except DecodeError:  # a malformed message must not block other messages
        row = MessageRow()
        _read_broker_annotations(row, payload)
    return row


# --- common layouts ---------------------------------------------------------------------------------------------------


def _read_common_layout(row: MessageRow, payload: bytes) -> bool:
    """Read a message with a single binary body in the common encodings. Return False for any other message."""
    outline = layout_of(payload)
    if outline is None:
        return False
    header_end, annotations_at, annotations_end, properties_at, properties_end, body_at = outline
    if not header_end or annotations_at == annotations_end:
        return False
    return (
        _read_body(row, payload, body_at)
        and _read_header(row, payload)
        and _read_annotations(row, payload, annotations_at)
        and _read_properties(row, payload, properties_at)
        and (properties_end == body_at or _read_application_properties(row, payload, properties_end))
    )


def _read_body(row: MessageRow, payload: bytes, offset: int) -> bool:
    if payload[offset + 2] != 0x75:
        return False
    if payload[offset + 3] == 0xB0:
        start = offset + 8
        end = start + uint32_at(payload, offset + 4)
    else:
        start = offset + 5
        end = start + payload[offset + 4]
    if end != len(payload):
        return False
    row.body = payload[start:end]
    return True


def _read_header(row: MessageRow, payload: bytes) -> bool:
    fields = field_offsets(payload, 0, 5)
    if fields is None:
        return False
    row.ttl_ms = _uint_at(payload, fields[TTL])
    row.delivery_count = max(_uint_at(payload, fields[DELIVERY_COUNT]), 0)
    return row.ttl_ms not in (_NOT_A_UINT, LARGEST_TTL_MS)


def _uint_at(payload: bytes, offset: int) -> int:
    """Return the uint at `offset`."""
    if offset == 0:
        return _ABSENT
    constructor = payload[offset]
    if constructor == 0x70:
        return uint32_at(payload, offset + 1)
    if constructor == 0x52:
        return payload[offset + 1]
    return 0 if constructor == 0x43 else _NOT_A_UINT


def _read_annotations(row: MessageRow, payload: bytes, offset: int) -> bool:  # noqa: C901  # one branch per annotation
    pairs = annotation_pairs(payload, offset)
    if pairs is None:
        return False
    sequence_number, enqueued_ms = _ABSENT, _ABSENT
    for name, pair_at, _ in pairs:
        value_at = pair_at + 2 + len(name)
        if name == _SEQUENCE_NUMBER:
            sequence_number = _value_or_absent(long_at(payload, value_at))
        elif name == _ENQUEUED_TIME:
            enqueued_ms = _value_or_absent(timestamp_at(payload, value_at))
        elif name == _PARTITION_KEY:
            row.partition_key = text_at(payload, value_at)
        elif name == _ENQUEUED_SEQUENCE_NUMBER:
            row.enqueued_sequence_number = _value_or_absent(long_at(payload, value_at))
        elif name == _SCHEDULED_TIME:
            row.scheduled_time_us = _to_microseconds(_value_or_absent(timestamp_at(payload, value_at)))
        elif name == _DEADLETTER_SOURCE:
            row.dead_letter_source = text_at(payload, value_at)
    if sequence_number < 0 or enqueued_ms < 0:
        return False
    row.sequence_number = sequence_number
    row.enqueued_time_us = _to_microseconds(enqueued_ms)
    if row.ttl_ms >= 0:
        row.expires_at_us = _to_microseconds(enqueued_ms + row.ttl_ms)
    return True


def _read_properties(row: MessageRow, payload: bytes, offset: int) -> bool:
    fields = field_offsets(payload, offset, 13)
    if fields is None:
        return False
    row.message_id = text_at(payload, fields[MESSAGE_ID])
    if row.message_id is None:  # a number, a UUID or bytes
        return False
    for index in _TEXT_FIELDS:
        text_at_offset = fields[index]
        if text_at_offset:
            text = _symbol_at(payload, text_at_offset) if index == CONTENT_TYPE else text_at(payload, text_at_offset)
            if text is None:
                return False
            _set_text_field(row, index, text)
    return True


def _set_text_field(row: MessageRow, field_index: int, text: str) -> None:
    if field_index == TO:
        row.to = text
    elif field_index == SUBJECT:
        row.label = text
    elif field_index == REPLY_TO:
        row.reply_to = text
    elif field_index == CORRELATION_ID:
        row.correlation_id = text
    elif field_index == CONTENT_TYPE:
        row.content_type = text
    elif field_index == GROUP_ID:
        row.session_id = text
    else:
        row.reply_to_session_id = text


def _symbol_at(payload: bytes, offset: int) -> str | None:
    if payload[offset] != 0xA3:
        return None
    text = payload[offset + 2 : offset + 2 + payload[offset + 1]]
    return text.decode("ascii") if text.isascii() else None


def _read_application_properties(row: MessageRow, payload: bytes, offset: int) -> bool:
    if payload[offset + 2] != 0x74:
        return False
    try:
        properties, _ = decode(payload, offset + 3)
    except DecodeError:
        return False
    if not isinstance(properties, dict):
        return False
    row.application_properties = properties
    return True


# --- other layouts ----------------------------------------------------------------------------------------------------


def _read_decoded(row: MessageRow, message: Message) -> None:
    header = message.checked(Section.HEADER, Header)
    fields = message.checked(Section.PROPERTIES, Properties)
    annotations = dict(message.message_annotations)
    row.application_properties = dict(message.application_properties)
    row.message_id = _id_as_text(fields[MESSAGE_ID])
    for index in _TEXT_FIELDS:
        text = _id_as_text(fields[index])
        if text is not None:
            _set_text_field(row, index, text)
    row.ttl_ms = _time_to_live_of(header[TTL], fields[ABSOLUTE_EXPIRY_TIME], fields[CREATION_TIME])
    row.delivery_count = int(header[DELIVERY_COUNT])
    row.partition_key = _text_or_none(annotations.get(names.PARTITION_KEY))
    row.dead_letter_source = _text_or_none(annotations.get(names.DEADLETTER_SOURCE))
    row.scheduled_time_us = _to_microseconds(_integer_or_absent(annotations.get(names.SCHEDULED_TIME)))
    row.enqueued_sequence_number = _integer_or_absent(annotations.get(names.ENQUEUED_SEQUENCE_NUMBER))
    row.sequence_number = max(_integer_or_absent(annotations.get(names.SEQUENCE_NUMBER)), 0)
    enqueued_ms = _integer_or_absent(annotations.get(names.ENQUEUED_TIME))
    row.enqueued_time_us = _to_microseconds(enqueued_ms)
    if row.ttl_ms >= 0 and enqueued_ms >= 0:
        row.expires_at_us = _to_microseconds(enqueued_ms + row.ttl_ms)
    _read_decoded_body(row, message)


def _read_decoded_body(row: MessageRow, message: Message) -> None:
    """Set the body: the concatenated binaries of data sections, or the encoded sections of any other body."""
    section = message.body_section
    if section is None:
        row.body_type = None
    elif section is Section.DATA:
        row.body = b"".join(message.data)
    else:
        row.body_type = BODY_VALUE if section is Section.VALUE else BODY_SEQUENCE
        row.body = message.raw(section)


def _read_broker_annotations(row: MessageRow, payload: bytes) -> None:
    """Read the sequence number and enqueued time that the namespace added to a message that cannot be decoded."""
    row.body, row.body_type = payload, BODY_UNREADABLE
    number_at, time_at = payload.find(_SEQUENCE_NUMBER), payload.find(_ENQUEUED_TIME)
    if number_at >= 0:
        row.sequence_number = max(_value_or_absent(long_at(payload, number_at + len(_SEQUENCE_NUMBER))), 0)
    if time_at >= 0:
        row.enqueued_time_us = _to_microseconds(_value_or_absent(timestamp_at(payload, time_at + len(_ENQUEUED_TIME))))


def _value_or_absent(value: int | None) -> int:
    return _ABSENT if value is None else value


def _to_microseconds(milliseconds: int) -> int | None:
    """Convert a time to microseconds. Return None if the time is missing (-1) or outside the years 1 to 9999."""
    if milliseconds == _ABSENT or not MIN_TIMESTAMP_MS <= milliseconds <= MAX_TIMESTAMP_MS:
        return None
    return milliseconds * 1000


def _integer_or_absent(value: object) -> int:
    return int(value) if isinstance(value, int | Timestamp) else _ABSENT


def _text_or_none(value: object) -> str | None:
    return str(value) if isinstance(value, str) else None


def _id_as_text(value: object) -> str | None:
    """Return a message id or correlation id as text. An id may also be a number, a UUID or bytes."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    return format(value, "d") if isinstance(value, int) else str(value)


def _time_to_live_of(header_ttl_ms: int | None, expiry_time_ms: int | None, creation_time_ms: int | None) -> int:
    if header_ttl_ms is None:
        return _ABSENT
    if header_ttl_ms == LARGEST_TTL_MS and expiry_time_ms is not None and creation_time_ms is not None:
        return int(expiry_time_ms) - int(creation_time_ms)
    return int(header_ttl_ms)
