"""Messages as applications see them.

    message = BrokeredMessage(b"two pounds of apples", message_id="order-17", time_to_live=timedelta(hours=1))
    message.properties["priority"] = 3

Owns the properties of a message and their mapping to the sections of an AMQP message. A received message keeps its
encoded bytes and decodes them on demand. This module neither sends nor settles messages.
"""

from __future__ import annotations

import datetime as dt
import os
import uuid
from typing import TYPE_CHECKING, Final

from twinbus.amqp import message as sections
from twinbus.amqp.codec.field_numbers import CONTENT_TYPE, DELIVERY_COUNT, LARGEST_TTL_MS, MESSAGE_ID, TTL
from twinbus.amqp.codec.message_layout import data_of, layout_of
from twinbus.amqp.errors import DecodeError, EncodeError
from twinbus.amqp.message import Header, Message, Properties, Section
from twinbus.amqp.types import Timestamp
from twinbus.model.annotations import (
    DEADLETTER_SOURCE,
    ENQUEUED_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARTITION_KEY,
    SCHEDULED_TIME,
    SEQUENCE_NUMBER,
    VIA_PARTITION_KEY,
)
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import InvalidArgument
from twinbus.model.times import datetime_of, duration_ms, from_wire, milliseconds_of, timedelta_of, to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCH_FORMAT: Final = 0x80013700
"""Message format of a batch: each data section of the body is a complete message."""
PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
"""Content type of a ping: an empty message that checks whether an entity is available, and that no receiver gets."""
POSSIBLE_DUPLICATE: Final = "x-ms-possible-duplicate"
"""Application property that is true on every copy of a message if there may be several copies."""
MAX_ID_CHARACTERS: Final = 128
_ID_BYTES: Final = 16
_STATE_NAMES: Final = ("active", "deferred", "scheduled")


def is_ping(message: Message) -> bool:
    """Return whether a message has the content type of a ping and an empty body."""
    if message.field(Section.PROPERTIES, CONTENT_TYPE) != PING_CONTENT_TYPE:
        return False
    section = message.body_section
    if section is Section.DATA:
        return not any(message.data)
    return section is None or (section is Section.VALUE and message.value in (None, "", b""))


def message_id_text(message: Message) -> str | None:
    """Return the message id of an encoded message as text, or None. AMQP ids may be numbers, UUIDs or bytes."""
    try:
        return id_text(message.field(Section.PROPERTIES, MESSAGE_ID))
    except DecodeError:
        return None


def id_text(value: object) -> str | None:
    """Return a message id, session id or correlation id as text."""
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(int(value)) if isinstance(value, int) else str(value)


class BrokeredMessage:
    """Message to be sent, or received message."""

    __slots__ = (
        "_amqp_message",
        "_body",
        "_received",
        "content_type",
        "correlation_id",
        "label",
        "message_id",
        "partition_key",
        "properties",
        "reply_to",
        "reply_to_session_id",
        "scheduled_enqueue_time_utc",
        "session_id",
        "time_to_live",
        "to",
        "via_partition_key",
    )

    def __init__(  # noqa: PLR0913  # one per property of a message
        self,
        body: object = b"",
        *,
        message_id: object = None,
        session_id: str | None = None,
        partition_key: str | None = None,
        via_partition_key: str | None = None,
        correlation_id: object = None,
        content_type: str | None = None,
        label: str | None = None,
        to: str | None = None,
        reply_to: str | None = None,
        reply_to_session_id: str | None = None,
        time_to_live: dt.timedelta | None = None,
        scheduled_enqueue_time_utc: dt.datetime | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        """Create a message, with a random id if `message_id` is None.

        A `body` of type bytes or str is sent as a data section, any other body is sent as an AMQP value.
        """
        self._body = body
        self._amqp_message: Message | None = None
        """Decoded sections of a received message, or of the message that this message was cloned from."""
        self._received: Received | None = None
        self.message_id = os.urandom(_ID_BYTES).hex() if message_id is None else message_id
        """Id for duplicate detection: text, a number, bytes or a UUID."""
        self.session_id = session_id
        self.partition_key = partition_key
        self.via_partition_key = via_partition_key
        self.correlation_id = correlation_id
        self.content_type = content_type
        self.label = label
        """Label of the message, called subject by other clients."""
        self.to = to
        self.reply_to = reply_to
        self.reply_to_session_id = reply_to_session_id
        self.time_to_live = time_to_live
        """Time to live, or None for the entity's default."""
        self.scheduled_enqueue_time_utc = scheduled_enqueue_time_utc
        self.properties: dict[str, object] = dict(properties) if properties is not None else {}
        """Application properties."""

    def __repr__(self) -> str:
        number = f" number {self._received.sequence_number}" if self._received is not None else ""
        return f"<BrokeredMessage {self.message_id!r}{number}>"

    # --- body ---------------------------------------------------------------------------------------------------------

    @property
    def body(self) -> object:
        """Body: bytes for data sections, a list of lists for sequences, or the AMQP value."""
        message = self._amqp_message
        if message is None:
            if self._received is None:
                return self._body.encode() if isinstance(self._body, str) else self._body
            binaries = data_of(self._received.payload)
            if binaries is not None:
                return b"".join(binaries)
            message = self._received.sections
        if message.body_section is Section.VALUE:
            return from_wire(message.value)
        if message.body_section is Section.SEQUENCE:
            return message.sequences
        return b"".join(message.data)

    @property
    def text(self) -> str:
        """Body as text, if it is a string or UTF-8 bytes; otherwise raises TypeError or UnicodeDecodeError."""
        body = self.body
        if isinstance(body, bytes):
            return body.decode()
        if isinstance(body, str):
            return body
        raise TypeError(f"the body is {type(body).__name__}, not text")

    # --- encoding -----------------------------------------------------------------------------------------------------

    def encode(self, now_ms: int) -> bytes:
        """Return the encoded message, or raise InvalidArgument if a value is invalid."""
        self.check()
        ttl_ms = None if self.time_to_live is None else duration_ms(self.time_to_live)
        if ttl_ms is not None and ttl_ms >= FOREVER_MS:
            ttl_ms = None
        annotations, application_properties = self._annotations(), self.properties
        expires = ttl_ms is not None
        try:
            properties = sections.section_of(
                Properties,
                (
                    self.message_id,
                    None,
                    self.to,
                    self.label,
                    self.reply_to,
                    self.correlation_id,
                    self.content_type,
                    None,
                    None if ttl_ms is None else now_ms + ttl_ms,
                    now_ms if expires else None,
                    self.session_id,
                    None,
                    self.reply_to_session_id,
                ),
            )
            body = self._encode_body()
            if annotations is None and not application_properties and not expires:
                return properties + body
            head = sections.build(
                header=None if ttl_ms is None else Header(ttl=min(ttl_ms, LARGEST_TTL_MS)),
                message_annotations=annotations,
            )
            wire = (
                {name: to_wire(value) for name, value in application_properties.items()}
                if application_properties
                else None
            )
            return head + properties + sections.build(application_properties=wire, body=body)
        except EncodeError as error:
            raise InvalidArgument(f"message {self.message_id!r:.80} cannot be sent: {error}") from error

    def check(self) -> None:
        """Raise InvalidArgument if a value is invalid for any entity."""
        key, session_id = self.partition_key, self.session_id
        _check_length("message_id", self.message_id)
        if not (key is session_id is self.via_partition_key is None):
            _check_length("session_id", session_id)
            _check_length("partition_key", key)
            _check_length("via_partition_key", self.via_partition_key)
            if key is not None and session_id is not None and key != session_id:
                both = f"partition_key {key!r:.80} is not session_id {session_id!r:.80}"
                raise InvalidArgument(f"{both}: if both are set, they must be equal")
        if self.time_to_live is not None and self.time_to_live <= dt.timedelta(0):
            raise InvalidArgument(f"time_to_live is {self.time_to_live}; it must be greater than zero")

    def _annotations(self) -> dict[str, object] | None:
        if self.partition_key is self.via_partition_key is None and self.scheduled_enqueue_time_utc is None:
            return None
        annotations: dict[str, object] = {}
        if self.partition_key is not None:
            annotations[PARTITION_KEY] = self.partition_key
        if self.via_partition_key is not None:
            annotations[VIA_PARTITION_KEY] = self.via_partition_key
        if self.scheduled_enqueue_time_utc is not None:
            annotations[SCHEDULED_TIME] = Timestamp(milliseconds_of(self.scheduled_enqueue_time_utc))
        return annotations

    def _encode_body(self) -> bytes:
        if self._amqp_message is not None or self._received is not None:
            message = self._sections
            assert message is not None
            section = message.body_section
            return b"" if section is None else message.raw(section)
        body = self._body
        if isinstance(body, bytes):
            return sections.data(body)
        if isinstance(body, str):
            return sections.data(body.encode())
        if body is None:
            return b""
        return sections.value(to_wire(body))

    def clone(self) -> BrokeredMessage:
        """Return a copy to send: same ids, properties and body, without the broker's additions on delivery."""
        clone = BrokeredMessage(
            self._body,
            message_id=self.message_id,
            session_id=self.session_id,
            partition_key=self.partition_key,
            via_partition_key=self.via_partition_key,
            correlation_id=self.correlation_id,
            content_type=self.content_type,
            label=self.label,
            to=self.to,
            reply_to=self.reply_to,
            reply_to_session_id=self.reply_to_session_id,
            time_to_live=self.time_to_live,
            scheduled_enqueue_time_utc=self.scheduled_enqueue_time_utc,
            properties=self.properties,
        )
        clone._amqp_message = self._sections
        return clone

    # --- received messages --------------------------------------------------------------------------------------------

    @staticmethod
    def decode(payload: bytes, *, lock: bytes | None = None, is_peeked: bool = False) -> BrokeredMessage:
        """Return a received message, with or without a lock, or raise DecodeError if the bytes are invalid.

        Sections are decoded when first accessed, which raises DecodeError if a section is invalid.
        """
        return _ReceivedMessage(Received(payload, lock, is_peeked=is_peeked))

    @property
    def _sections(self) -> Message | None:
        """Sections of a message that was received or cloned from a received message, or None."""
        if self._amqp_message is None and self._received is not None:
            self._amqp_message = self._received.sections
        return self._amqp_message

    @property
    def received(self) -> Received:
        """Delivery information from the broker; raises ValueError if the message was not received."""
        if self._received is None:
            raise ValueError(
                f"{self!r} was not received: only received messages have a sequence number, times and a lock"
            )
        return self._received

    @property
    def payload(self) -> bytes:
        """Encoded bytes of a received message."""
        assert self._received is not None, "the message was not received"
        return self._received.payload

    @property
    def sequence_number(self) -> int:
        """Sequence number in the entity."""
        return self.received.sequence_number

    @property
    def enqueued_sequence_number(self) -> int:
        """Sequence number in the entity to which a forwarded message was first sent."""
        return self.received.integer(ENQUEUED_SEQUENCE_NUMBER)

    @property
    def enqueued_time_utc(self) -> dt.datetime:
        """Time when the entity accepted the message."""
        return datetime_of(self.received.integer(ENQUEUED_TIME))

    @property
    def delivery_count(self) -> int:
        """Number of deliveries so far, including the current one. A peek is not a delivery."""
        return self.received.delivery_count

    @property
    def lock_token(self) -> uuid.UUID | None:
        """Token of the lock, or None if the message is not locked."""
        lock = self.received.lock
        return uuid.UUID(bytes_le=lock) if lock is not None else None

    @property
    def locked_until_utc(self) -> dt.datetime:
        """Time when the lock expires unless it is renewed."""
        return datetime_of(self.received.locked_until_ms)

    @property
    def expires_at_utc(self) -> dt.datetime:
        """Time when the message expires; `datetime.max` if the message never expires."""
        enqueued = self.enqueued_time_utc
        try:
            return enqueued + (self.time_to_live or dt.timedelta.max)
        except OverflowError:
            return dt.datetime.max.replace(tzinfo=dt.UTC)

    @property
    def state(self) -> str:
        """State of the message: active, deferred or scheduled."""
        state = self.received.annotations.get(MESSAGE_STATE, 0)
        return _STATE_NAMES[state] if isinstance(state, int) and 0 <= state < len(_STATE_NAMES) else f"state {state}"

    @property
    def dead_letter_source(self) -> str | None:
        """Entity from whose dead-letter queue the message was forwarded."""
        return _text_or_none(self.received.annotations.get(DEADLETTER_SOURCE))

    @property
    def dead_letter_reason(self) -> str | None:
        """Reason why the message was dead-lettered."""
        return _text_or_none(self.properties.get("DeadLetterReason"))

    @property
    def dead_letter_error_description(self) -> str | None:
        """Detailed description of why the message was dead-lettered."""
        return _text_or_none(self.properties.get("DeadLetterErrorDescription"))

    @property
    def size(self) -> int:
        """Encoded size of a received message in bytes."""
        return len(self.received.payload)


class _ReceivedMessage(BrokeredMessage):
    """Received message whose properties are decoded on first access.

    This is a separate class because a `__getattr__` in BrokeredMessage would slow down messages that are not received:
    in a measurement, encoding took a third longer.
    """

    __slots__ = ("_property_values",)

    def __init__(self, received: Received) -> None:  # no super().__init__(): the properties are not decoded yet
        """Create a message from a delivery; used by `decode`."""
        self._body = b""
        self._received = received
        self._amqp_message = received.sections if layout_of(received.payload) is None else None
        self._property_values: dict[str, object] | None = None

    @property
    def property_values(self) -> dict[str, object]:
        """Values of the properties by name, as decoded or set since."""
        if self._property_values is None:
            self._property_values = self._read()
        return self._property_values

    def _read(self) -> dict[str, object]:
        message, annotations = self._sections, self.received.annotations
        assert message is not None
        message_id, _, to, label, reply_to, correlation_id, content_type, _, expiry_ms, creation_ms, *group_fields = (
            message.checked(Section.PROPERTIES, Properties)
        )
        application_properties = message.application_properties if Section.APPLICATION_PROPERTIES in message else {}
        ttl_ms, scheduled = message.checked(Section.HEADER, Header)[TTL], annotations.get(SCHEDULED_TIME)
        return {
            "message_id": message_id,
            "session_id": group_fields[0],
            "partition_key": _text_or_none(annotations.get(PARTITION_KEY)),
            "via_partition_key": _text_or_none(annotations.get(VIA_PARTITION_KEY)),
            "correlation_id": correlation_id,
            "content_type": content_type,
            "label": label,
            "to": to,
            "reply_to": reply_to,
            "reply_to_session_id": group_fields[2],
            "time_to_live": _time_to_live(ttl_ms, expiry_ms, creation_ms),
            "scheduled_enqueue_time_utc": datetime_of(scheduled) if isinstance(scheduled, Timestamp) else None,
            "properties": {str(name): from_wire(value) for name, value in dict(application_properties).items()},
        }


class _LazyProperty:
    """Descriptor for a property of `_ReceivedMessage` that is decoded on first access."""

    __slots__ = ("_property_name",)

    def __init__(self, name: str) -> None:
        self._property_name = name

    def __get__(self, message: _ReceivedMessage | None, owner: type) -> object:
        return self if message is None else message.property_values[self._property_name]

    def __set__(self, message: _ReceivedMessage, value: object) -> None:
        message.property_values[self._property_name] = value


for _name in BrokeredMessage.__slots__:
    if not _name.startswith("_"):
        setattr(_ReceivedMessage, _name, _LazyProperty(_name))


class Received:
    """Delivery information from the broker for one message, decoded on demand."""

    __slots__ = ("_annotations", "_is_peeked", "_locked_until_ms", "_sections", "handle", "lock", "payload")

    def __init__(self, payload: bytes, lock: bytes | None, *, is_peeked: bool) -> None:
        """Create the delivery information for an encoded message."""
        self.payload = payload
        self.lock = lock
        """Lock token in its wire format."""
        self.handle: object = None
        """Settlement handle, set and used by the receiver."""
        self._is_peeked = is_peeked
        self._sections: Message | None = None
        self._annotations: Mapping[object, object] | None = None
        self._locked_until_ms: int | None = None

    @property
    def sections(self) -> Message:
        """Sections of the message."""
        if self._sections is None:
            self._sections = Message(self.payload)
        return self._sections

    @property
    def sequence_number(self) -> int:
        """Sequence number in the entity."""
        return self.integer(SEQUENCE_NUMBER)

    @property
    def annotations(self) -> Mapping[object, object]:
        """Message annotations from the broker and the sender."""
        if self._annotations is None:
            self._annotations = dict(self.sections.message_annotations)
        return self._annotations

    @property
    def delivery_count(self) -> int:
        """Number of deliveries so far, including the current one. A peek is not a delivery."""
        earlier: int = self.sections.checked(Section.HEADER, Header)[DELIVERY_COUNT]
        return earlier + (not self._is_peeked)

    @property
    def locked_until_ms(self) -> int:
        """Time when the lock expires unless it is renewed."""
        return self.integer(LOCKED_UNTIL) if self._locked_until_ms is None else self._locked_until_ms

    @locked_until_ms.setter
    def locked_until_ms(self, until_ms: int) -> None:
        self._locked_until_ms = until_ms

    def integer(self, name: str) -> int:
        """Return the integer annotation `name`, or 0 if it is absent or not an integer."""
        value = self.annotations.get(name)
        return int(value) if isinstance(value, int) else 0


def encode_batch(payloads: Sequence[bytes], first: BrokeredMessage) -> bytes:
    """Return encoded messages as one atomic batch transfer. The batch takes its ids and partition key from `first`."""
    annotations = {PARTITION_KEY: first.partition_key} if first.partition_key is not None else None
    label = Properties(message_id=first.message_id, group_id=first.session_id)
    return sections.build(message_annotations=annotations, properties=label) + sections.data(*payloads)


def _time_to_live(header_ms: int | None, expiry_ms: int | None, creation_ms: int | None) -> dt.timedelta | None:
    """Return the time to live: the header's value or, if that is the maximum, the time from creation to expiry."""
    if header_ms is None:
        return None
    if header_ms == LARGEST_TTL_MS and expiry_ms is not None and creation_ms is not None:
        return timedelta_of(expiry_ms - creation_ms)
    return timedelta_of(header_ms)


def _check_length(name: str, value: object) -> None:
    if isinstance(value, str) and len(value) > MAX_ID_CHARACTERS:
        raise InvalidArgument(f"{name} has {len(value)} characters; it can have {MAX_ID_CHARACTERS}")


def _text_or_none(value: object) -> str | None:
    return str(value) if isinstance(value, str) else None
