"""One message as it comes from a browse link, taken apart into the values of its columns.

Owns: what of a message's bytes goes into which column. The layouts that twinbus and usual clients write are read in one
pass, by offsets; anything else by `Message`. This is done a hundred thousand times a second, so no BrokeredMessage is
made. Knows nothing of Arrow: `columns` makes record batches of rows.
"""
# ruff: noqa: PLR2004  # 0x70 is an AMQP uint, and 10 the place of the session's id among the properties

from __future__ import annotations

from typing import Final

from twinbus.amqp.decode import decode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.fields import (
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
from twinbus.amqp.message import Header, Message, Properties, Section
from twinbus.amqp.outline import (
    annotation_pairs,
    field_offsets,
    long_at,
    outline_of,
    text_at,
    timestamp_at,
    uint32_at,
)
from twinbus.amqp.types import Timestamp
from twinbus.model import annotations as names
from twinbus.pipeline.properties import EARLIEST_MS, LATEST_MS

DATA: Final = "data"
VALUE: Final = "value"
SEQUENCE: Final = "sequence"
MESSAGE: Final = "message"
"""Of a message whose bytes do not add up: its body is all of it, as it came."""
_NONE: Final = -1
_OTHER: Final = -2
_TEXTS: Final = (TO, SUBJECT, REPLY_TO, CORRELATION_ID, CONTENT_TYPE, GROUP_ID, REPLY_TO_GROUP_ID)
_SEQUENCE_NUMBER: Final = names.SEQUENCE_NUMBER.encode()
_ENQUEUED_TIME: Final = names.ENQUEUED_TIME.encode()
_PARTITION_KEY: Final = names.PARTITION_KEY.encode()
_ENQUEUED_SEQUENCE_NUMBER: Final = names.ENQUEUED_SEQUENCE_NUMBER.encode()
_SCHEDULED_TIME: Final = names.SCHEDULED_TIME.encode()
_DEADLETTER_SOURCE: Final = names.DEADLETTER_SOURCE.encode()


class Row:
    """One message. Moments are microseconds since 1970; -1 stands for a number that is not there."""

    def __init__(self) -> None:
        """Nothing is known."""
        self.body: bytes | None = None
        self.body_type: str | None = DATA
        self.message_id: str | None = None
        self.session_id: str | None = None
        self.correlation_id: str | None = None
        self.content_type: str | None = None
        self.label: str | None = None
        self.to: str | None = None
        self.reply_to: str | None = None
        self.reply_to_session_id: str | None = None
        self.partition_key: str | None = None
        self.ttl_ms = _NONE
        self.scheduled: int | None = None
        self.enqueued: int | None = None
        self.expires: int | None = None
        self.sequence_number = 0
        self.enqueued_sequence_number = _NONE
        self.delivery_count = 0
        self.source: str | None = None
        self.properties: dict[object, object] | None = None
        """The application's, as AMQP has them."""


def read_row(payload: bytes) -> Row:
    """An encoded message."""
    row = Row()
    if _read_usual(row, payload):
        return row
    try:
        row = Row()
        _read_any(row, Message(payload))
    except DecodeError:  # it must not keep the others from being read
        row = Row()
        _read_stamps(row, payload)
    return row


# --- the usual layouts ------------------------------------------------------------------------------------------------


def _read_usual(row: Row, payload: bytes) -> bool:
    """A message with one binary as its body, and everything written as most do; False if it is another."""
    outline = outline_of(payload)
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
        and (properties_end == body_at or _read_own(row, payload, properties_end))
    )


def _read_body(row: Row, payload: bytes, at: int) -> bool:
    if payload[at + 2] != 0x75:
        return False
    if payload[at + 3] == 0xB0:
        start = at + 8
        end = start + uint32_at(payload, at + 4)
    else:
        start = at + 5
        end = start + payload[at + 4]
    if end != len(payload):
        return False
    row.body = payload[start:end]
    return True


def _read_header(row: Row, payload: bytes) -> bool:
    fields = field_offsets(payload, 0, 5)
    if fields is None:
        return False
    row.ttl_ms = _uint_at(payload, fields[TTL])
    row.delivery_count = max(_uint_at(payload, fields[DELIVERY_COUNT]), 0)
    return row.ttl_ms not in (_OTHER, LARGEST_TTL_MS)


def _uint_at(payload: bytes, at: int) -> int:
    """The uint that begins there."""
    if at == 0:
        return _NONE
    constructor = payload[at]
    if constructor == 0x70:
        return uint32_at(payload, at + 1)
    if constructor == 0x52:
        return payload[at + 1]
    return 0 if constructor == 0x43 else _OTHER


def _read_annotations(row: Row, payload: bytes, at: int) -> bool:  # noqa: C901  # one branch for each that there is
    pairs = annotation_pairs(payload, at)
    if pairs is None:
        return False
    number, enqueued_ms = _NONE, _NONE
    for name, begins, _ in pairs:
        value_at = begins + 2 + len(name)
        if name == _SEQUENCE_NUMBER:
            number = _known(long_at(payload, value_at))
        elif name == _ENQUEUED_TIME:
            enqueued_ms = _known(timestamp_at(payload, value_at))
        elif name == _PARTITION_KEY:
            row.partition_key = text_at(payload, value_at)
        elif name == _ENQUEUED_SEQUENCE_NUMBER:
            row.enqueued_sequence_number = _known(long_at(payload, value_at))
        elif name == _SCHEDULED_TIME:
            row.scheduled = _moment(_known(timestamp_at(payload, value_at)))
        elif name == _DEADLETTER_SOURCE:
            row.source = text_at(payload, value_at)
    if number < 0 or enqueued_ms < 0:
        return False
    row.sequence_number = number
    row.enqueued = _moment(enqueued_ms)
    if row.ttl_ms >= 0:
        row.expires = _moment(enqueued_ms + row.ttl_ms)
    return True


def _read_properties(row: Row, payload: bytes, at: int) -> bool:
    fields = field_offsets(payload, at, 13)
    if fields is None:
        return False
    row.message_id = text_at(payload, fields[MESSAGE_ID])
    if row.message_id is None:  # a number, a UUID or bytes
        return False
    for index in _TEXTS:
        begins = fields[index]
        if begins:
            text = _symbol_at(payload, begins) if index == CONTENT_TYPE else text_at(payload, begins)
            if text is None:
                return False
            _put_text(row, index, text)
    return True


def _put_text(row: Row, index: int, text: str) -> None:
    if index == TO:
        row.to = text
    elif index == SUBJECT:
        row.label = text
    elif index == REPLY_TO:
        row.reply_to = text
    elif index == CORRELATION_ID:
        row.correlation_id = text
    elif index == CONTENT_TYPE:
        row.content_type = text
    elif index == GROUP_ID:
        row.session_id = text
    else:
        row.reply_to_session_id = text


def _symbol_at(payload: bytes, at: int) -> str | None:
    if payload[at] != 0xA3:
        return None
    text = payload[at + 2 : at + 2 + payload[at + 1]]
    return text.decode("ascii") if text.isascii() else None


def _read_own(row: Row, payload: bytes, at: int) -> bool:
    if payload[at + 2] != 0x74:
        return False
    try:
        found, _ = decode(payload, at + 3)
    except DecodeError:
        return False
    if not isinstance(found, dict):
        return False
    row.properties = found
    return True


# --- any other --------------------------------------------------------------------------------------------------------


def _read_any(row: Row, message: Message) -> None:
    header = message.checked(Section.HEADER, Header)
    fields = message.checked(Section.PROPERTIES, Properties)
    annotations = dict(message.message_annotations)
    row.properties = dict(message.application_properties)
    row.message_id = _id_text(fields[MESSAGE_ID])
    for index in _TEXTS:
        text = _id_text(fields[index])
        if text is not None:
            _put_text(row, index, text)
    row.ttl_ms = _ttl_of(header[TTL], fields[ABSOLUTE_EXPIRY_TIME], fields[CREATION_TIME])
    row.delivery_count = int(header[DELIVERY_COUNT])
    row.partition_key = _text(annotations.get(names.PARTITION_KEY))
    row.source = _text(annotations.get(names.DEADLETTER_SOURCE))
    row.scheduled = _moment(_integer(annotations.get(names.SCHEDULED_TIME)))
    row.enqueued_sequence_number = _integer(annotations.get(names.ENQUEUED_SEQUENCE_NUMBER))
    row.sequence_number = max(_integer(annotations.get(names.SEQUENCE_NUMBER)), 0)
    enqueued_ms = _integer(annotations.get(names.ENQUEUED_TIME))
    row.enqueued = _moment(enqueued_ms)
    if row.ttl_ms >= 0 and enqueued_ms >= 0:
        row.expires = _moment(enqueued_ms + row.ttl_ms)
    _take_body(row, message)


def _take_body(row: Row, message: Message) -> None:
    """The binaries of a body of data; the sections of another as they came."""
    section = message.body_section
    if section is None:
        row.body_type = None
    elif section is Section.DATA:
        row.body = b"".join(message.data)
    else:
        row.body_type = VALUE if section is Section.VALUE else SEQUENCE
        row.body = message.raw(section)


def _read_stamps(row: Row, payload: bytes) -> None:
    """Number and time, as the namespace wrote them, of a message that cannot be read."""
    row.body, row.body_type = payload, MESSAGE
    number_at, time_at = payload.find(_SEQUENCE_NUMBER), payload.find(_ENQUEUED_TIME)
    if number_at >= 0:
        row.sequence_number = max(_known(long_at(payload, number_at + len(_SEQUENCE_NUMBER))), 0)
    if time_at >= 0:
        row.enqueued = _moment(_known(timestamp_at(payload, time_at + len(_ENQUEUED_TIME))))


def _known(found: int | None) -> int:
    return _NONE if found is None else found


def _moment(milliseconds: int) -> int | None:
    """In microseconds; None of one that is not there (-1), or that no calendar has."""
    if milliseconds == _NONE or not EARLIEST_MS <= milliseconds <= LATEST_MS:
        return None
    return milliseconds * 1000


def _integer(found: object) -> int:
    return int(found) if isinstance(found, int | Timestamp) else _NONE


def _text(found: object) -> str | None:
    return str(found) if isinstance(found, str) else None


def _id_text(found: object) -> str | None:
    """An id may be a number, a UUID or bytes, too."""
    if found is None:
        return None
    if isinstance(found, bytes):
        return found.hex()
    return format(found, "d") if isinstance(found, int) else str(found)


def _ttl_of(header_ms: int | None, ends_ms: int | None, made_ms: int | None) -> int:
    if header_ms is None:
        return _NONE
    if header_ms == LARGEST_TTL_MS and ends_ms is not None and made_ms is not None:
        return int(ends_ms) - int(made_ms)
    return int(header_ms)
