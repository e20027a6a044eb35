"""BrokerProperties: the JSON header with the system properties of a message over HTTP.

    {"MessageId": "m-1", "Label": "order", "TimeToLive": 60, "SessionId": "eu"}

Owns: the properties, their valid values, and the conversion to and from the sections of an AMQP message. Application
properties are in `custom_properties`.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

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
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Header, Message, Properties, Section, build, data
from twinbus.amqp.types import Timestamp
from twinbus.model.annotations import (
    DEADLETTER_SOURCE,
    PARTITION_KEY,
    SCHEDULED_TIME,
    SEQUENCE_NUMBER,
    VIA_PARTITION_KEY,
)
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import InvalidArgument
from twinbus.model.message import id_text
from twinbus.model.times import milliseconds_of

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    T = TypeVar("T")

_TIME_SPAN: Final = re.compile(r"(?:([0-9]{1,8})\.)?([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]{1,7})?)")
_MESSAGE_STATES: Final = {0: "Active", 1: "Deferred", 2: "Scheduled"}
_CONTENT_TYPE_PATTERN: Final = re.compile(r"[ -~]{1,255}")


class BrokerProperties(msgspec.Struct, rename="pascal"):
    """Properties that a sender may set.

    Other properties are ignored, because clients that forward a message send them, too.
    """

    content_type: str | None = None
    correlation_id: str | None = None
    force_persistence: bool | None = None
    """This property is accepted without effect, because every message is on disk before it is accepted."""
    label: str | None = None
    message_id: str | None = None
    partition_key: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    scheduled_enqueue_time_utc: str | None = None
    session_id: str | None = None
    time_to_live: float | None = None
    """The time to live in seconds."""
    time_to_live_time_span: str | None = None
    to: str | None = None
    via_partition_key: str | None = None

    @classmethod
    def from_header(cls, text: bytes) -> BrokerProperties:
        """Parse the header. Raise InvalidArgument if the header is invalid."""
        return decode_json(text, cls, "BrokerProperties")

    def encode_message(self, body: bytes, custom_properties: Mapping[str, object], now_ms: int) -> bytes:
        """Return an encoded AMQP message with these properties. Raise InvalidArgument if a property is invalid."""
        if self.session_id is not None and self.partition_key not in (None, self.session_id):
            raise InvalidArgument(
                f"PartitionKey is {self.partition_key!r:.60} and SessionId {self.session_id!r:.60}: they have to agree"
            )
        properties = Properties(
            message_id=self.message_id or None,  # a message with an empty id gets a generated id
            to=self.to,
            subject=self.label,
            reply_to=self.reply_to,
            correlation_id=self.correlation_id,
            content_type=_checked_content_type(self.content_type),
            group_id=self.session_id,
            reply_to_group_id=self.reply_to_session_id,
        )
        header, ttl_ms = Header(durable=True), self._ttl_ms()
        if ttl_ms is not None and ttl_ms <= LARGEST_TTL_MS:
            header.ttl = ttl_ms
        elif ttl_ms is not None:
            properties.creation_time, properties.absolute_expiry_time = now_ms, now_ms + ttl_ms
        return build(
            header=header,
            message_annotations=self._annotations() or None,
            properties=properties,
            application_properties=custom_properties or None,
            body=data(body),
        )

    def _annotations(self) -> dict[str, object]:
        values: dict[str, object] = {PARTITION_KEY: self.partition_key, VIA_PARTITION_KEY: self.via_partition_key}
        if self.scheduled_enqueue_time_utc is not None:
            values[SCHEDULED_TIME] = Timestamp(_parse_time(self.scheduled_enqueue_time_utc))
        return {name: value for name, value in values.items() if value is not None}

    def _ttl_ms(self) -> int | None:
        if self.time_to_live is not None:
            seconds = self.time_to_live
        elif self.time_to_live_time_span is not None:
            match = _TIME_SPAN.fullmatch(self.time_to_live_time_span)
            if match is None:
                raise InvalidArgument(
                    f"TimeToLiveTimeSpan is {self.time_to_live_time_span!r:.60}; write it as 00:01:30"
                )
            days, hours, minutes, remainder = match.groups(default="0")
            seconds = int(days) * 86_400 + int(hours) * 3_600 + int(minutes) * 60 + float(remainder)
        else:
            return None
        if seconds <= 0:
            raise InvalidArgument(f"TimeToLive is {seconds:g} s; it has to be above zero")
        return max(1, int(min(seconds * 1000, FOREVER_MS)))


def decode_json(text: bytes, json_type: type[T], name: str) -> T:
    """Decode JSON into `json_type`. If the JSON is invalid, raise InvalidArgument; the message starts with `name`."""
    try:
        return msgspec.json.decode(text, type=json_type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{name}: {error}") from None


# --- properties of a received message ---------------------------------------------------------------------------------


def to_header(message: Message, lock_token: uuid.UUID | None) -> bytes:
    """Return the header for a delivered message; `lock_token` is None for receive-and-delete."""
    ttl_ms = _field(message, Section.HEADER, TTL)
    count = _field(message, Section.HEADER, DELIVERY_COUNT)
    annotation = {
        name: _annotation(message, f"x-opt-{name}")
        for name in (
            "enqueue-sequence-number",
            "enqueued-time",
            "locked-until",
            "message-state",
            "scheduled-enqueue-time",
            "sequence-number",
        )
    }
    values = {
        "CorrelationId": id_text(_field(message, Section.PROPERTIES, CORRELATION_ID)),
        "DeadLetterSource": id_text(_annotation(message, DEADLETTER_SOURCE)),
        "DeliveryCount": (count if isinstance(count, int) else 0) + 1,  # includes this delivery, as in .NET
        "EnqueuedSequenceNumber": annotation["enqueue-sequence-number"] or 0,
        "EnqueuedTimeUtc": format_time(annotation["enqueued-time"]),
        "Label": id_text(_field(message, Section.PROPERTIES, SUBJECT)),
        "LockToken": str(lock_token) if lock_token is not None else None,
        "LockedUntilUtc": format_time(annotation["locked-until"]) if lock_token is not None else None,
        "MessageId": id_text(_field(message, Section.PROPERTIES, MESSAGE_ID)),
        "PartitionKey": id_text(_annotation(message, PARTITION_KEY)),
        "ReplyTo": id_text(_field(message, Section.PROPERTIES, REPLY_TO)),
        "ReplyToSessionId": id_text(_field(message, Section.PROPERTIES, REPLY_TO_GROUP_ID)),
        "ScheduledEnqueueTimeUtc": format_time(annotation["scheduled-enqueue-time"]),
        "SequenceNumber": annotation["sequence-number"],
        "SessionId": id_text(_field(message, Section.PROPERTIES, GROUP_ID)),
        "State": _MESSAGE_STATES.get(_int_or_zero(annotation["message-state"]), "Active"),
        "TimeToLive": ttl_ms / 1000 if isinstance(ttl_ms, int) else _long_ttl_s(message),
        "To": id_text(_field(message, Section.PROPERTIES, TO)),
        "ViaPartitionKey": id_text(_annotation(message, VIA_PARTITION_KEY)),
    }
    present = {name: value for name, value in values.items() if value is not None}
    return json.dumps(present, separators=(",", ":")).encode("ascii")


def content_type_of(message: Message) -> str | None:
    """Return the content type of a message, or None if it is missing or not valid in a header."""
    value = _field(message, Section.PROPERTIES, CONTENT_TYPE)
    return str(value).strip() or None if isinstance(value, str) and _CONTENT_TYPE_PATTERN.fullmatch(value) else None


def body_of(message: Message) -> bytes:
    """Return the body: binary data unchanged, text as UTF-8, anything else as encoded AMQP sections."""
    section = message.body_section
    if section is None:
        return b""
    try:
        if section is Section.DATA:
            return b"".join(message.data)
        value = message.value if section is Section.VALUE else None
    except DecodeError:
        value = None
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else message.raw(section)


def sequence_number_of(message: Message) -> int:
    """Return the sequence number of a message, or 0 if it has none."""
    return _int_or_zero(_annotation(message, SEQUENCE_NUMBER))


def format_time(when_ms: object) -> str | None:
    """Return a time in the format of RFC 1123, or None if the value is not a time or out of range."""
    if not isinstance(when_ms, int):
        return None
    try:
        return formatdate(when_ms / 1000, usegmt=True)
    except (ValueError, OverflowError, OSError):
        return None


def _field(message: Message, section: Section, index: int) -> object:
    """Return a field of a section, or None if the sender encoded the field incorrectly."""
    try:
        return message.field(section, index)
    except DecodeError:
        return None


def _annotation(message: Message, name: str) -> object:
    try:
        return message.lookup(Section.MESSAGE_ANNOTATIONS, name)
    except DecodeError:
        return None


def _int_or_zero(value: object) -> int:
    return int(value) if isinstance(value, int) else 0


def _long_ttl_s(message: Message) -> float | None:
    end, start = (_field(message, Section.PROPERTIES, index) for index in (ABSOLUTE_EXPIRY_TIME, CREATION_TIME))
    return (end - start) / 1000 if isinstance(end, int) and isinstance(start, int) and end > start else None


def _checked_content_type(text: str | None) -> str | None:
    if text is not None and not _CONTENT_TYPE_PATTERN.fullmatch(text):
        raise InvalidArgument(f"the content type is {text!r:.60}; it must have 1 to 255 printable ASCII characters")
    return text


def _parse_time(text: str) -> int:
    try:
        when = dt.datetime.fromisoformat(text) if text[:1].isdigit() else parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        raise InvalidArgument(
            f"ScheduledEnqueueTimeUtc is {text!r:.60}; write it as Thu, 01 Jan 2026 12:00:00 GMT or 2026-01-01T12:00:00"
        ) from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)
    return milliseconds_of(when)
