"""Messages, as an application has them.

    message = BrokeredMessage(b"two pounds of apples", message_id="order-17", time_to_live=timedelta(hours=1))
    message.properties["priority"] = 3

Owns: what a message is made of, and how that lies in the sections of an AMQP message. A received one keeps the bytes it
came as, and its body is read when it is asked for. Sending and settling are a sender's and a receiver's.
"""

from __future__ import annotations

import datetime as dt
import os
import uuid
from typing import TYPE_CHECKING, Final, Self

from twinbus.amqp import message as sections
from twinbus.amqp.errors import EncodeError
from twinbus.amqp.message import Header, Message, Properties, Section
from twinbus.amqp.types import Timestamp
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import InvalidArgument
from twinbus.model.times import duration_ms, duration_of, from_wire, milliseconds_of, moment_of, to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCH_FORMAT: Final = 0x80013700
"""The message format of a batch: each data section of the body is a whole message."""
PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
"""An empty message of this type asks whether an entity is there, and nobody receives it."""
MAX_ID_CHARACTERS: Final = 128
_ID_BYTES: Final = 16
_LARGEST_TTL_MS: Final = 2**32 - 1
"""What the header can say; a longer life is told by the time it ends."""
_PARTITION_KEY: Final = "x-opt-partition-key"
_VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"
_SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
_STATES: Final = ("active", "deferred", "scheduled")


class BrokeredMessage:
    """A message to be sent, or one that was received."""

    __slots__ = (
        "_body",
        "_received",
        "_sections",
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

    def __init__(  # noqa: PLR0913  # as many as a message has properties
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
        """`body`: bytes or text go as data, anything else as an AMQP value. A message without an id is given one."""
        self._body = body
        self._sections: Message | None = None
        self._received: Received | None = None
        self.message_id = os.urandom(_ID_BYTES).hex() if message_id is None else message_id
        """What duplicates are known by: text, a number, bytes or a UUID."""
        self.session_id = session_id
        self.partition_key = partition_key
        self.via_partition_key = via_partition_key
        self.correlation_id = correlation_id
        self.content_type = content_type
        self.label = label
        """What other clients call the subject."""
        self.to = to
        self.reply_to = reply_to
        self.reply_to_session_id = reply_to_session_id
        self.time_to_live = time_to_live
        """How long it is good for; None: as the entity says."""
        self.scheduled_enqueue_time_utc = scheduled_enqueue_time_utc
        self.properties: dict[str, object] = dict(properties) if properties is not None else {}
        """The application's own."""

    def __repr__(self) -> str:
        number = f" number {self._received.sequence_number}" if self._received is not None else ""
        return f"<BrokeredMessage {self.message_id!r}{number}>"

    # --- the body -----------------------------------------------------------------------------------------------------

    @property
    def body(self) -> object:
        """Data as bytes; a value as it is; sequences as a list of lists."""
        message = self._sections
        if message is None:
            return self._body.encode() if isinstance(self._body, str) else self._body
        if message.body_section is Section.VALUE:
            return from_wire(message.value)
        if message.body_section is Section.SEQUENCE:
            return message.sequences
        return b"".join(message.data)

    @property
    def text(self) -> str:
        """The body as text, if it is bytes in UTF-8 or a text."""
        body = self.body
        if isinstance(body, bytes):
            return body.decode()
        if isinstance(body, str):
            return body
        raise TypeError(f"the body is {type(body).__name__}, not text")

    # --- out ----------------------------------------------------------------------------------------------------------

    def encode(self, now_ms: int) -> bytes:
        """The message as it is sent; InvalidArgument where something in it cannot be."""
        self.check()
        ttl_ms = None if self.time_to_live is None else duration_ms(self.time_to_live)
        if ttl_ms is not None and ttl_ms >= FOREVER_MS:
            ttl_ms = None
        annotations, own = self._annotations(), self.properties
        is_mortal = ttl_ms is not None
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
                    now_ms if is_mortal else None,
                    self.session_id,
                    None,
                    self.reply_to_session_id,
                ),
            )
            body = self._encode_body()
            if annotations is None and not own and not is_mortal:
                return properties + body
            head = sections.build(
                header=None if ttl_ms is None else Header(ttl=min(ttl_ms, _LARGEST_TTL_MS)),
                message_annotations=annotations,
            )
            wire = {name: to_wire(value) for name, value in own.items()} if own else None
            return head + properties + sections.build(application_properties=wire, body=body)
        except EncodeError as error:
            raise InvalidArgument(f"message {self.message_id!r:.80} cannot be sent: {error}") from error

    def check(self) -> None:
        """InvalidArgument where it can be no message, whoever takes it."""
        key, session_id = self.partition_key, self.session_id
        _check_length("message_id", self.message_id)
        if key is not None or session_id is not None or self.via_partition_key is not None:
            _check_length("session_id", session_id)
            _check_length("partition_key", key)
            _check_length("via_partition_key", self.via_partition_key)
        if key is not None and session_id is not None and key != session_id:
            raise InvalidArgument(
                f"partition_key {key!r:.80} is not session_id {session_id!r:.80}: where both are given, they are equal"
            )
        if self.time_to_live is not None and self.time_to_live <= dt.timedelta(0):
            raise InvalidArgument(f"time_to_live is {self.time_to_live}; it must be more than nothing")

    def _annotations(self) -> dict[str, object] | None:
        found: dict[str, object] = {}
        if self.partition_key is not None:
            found[_PARTITION_KEY] = self.partition_key
        if self.via_partition_key is not None:
            found[_VIA_PARTITION_KEY] = self.via_partition_key
        if self.scheduled_enqueue_time_utc is not None:
            found[_SCHEDULED_TIME] = Timestamp(milliseconds_of(self.scheduled_enqueue_time_utc))
        return found or None

    def _encode_body(self) -> bytes:
        if self._sections is not None:
            section = self._sections.body_section
            return b"" if section is None else self._sections.raw(section)
        body = self._body
        if isinstance(body, bytes):
            return sections.data(body)
        if isinstance(body, str):
            return sections.data(body.encode())
        if body is None:
            return b""
        return sections.value(to_wire(body))

    def clone(self) -> BrokeredMessage:
        """The same message to be sent (again): same ids, properties and body; nothing of how this one was received."""
        twin = BrokeredMessage(
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
        twin._sections = self._sections
        return twin

    # --- in -----------------------------------------------------------------------------------------------------------

    @classmethod
    def decode(cls, payload: bytes, *, lock: bytes | None = None, is_peeked: bool = False) -> Self:
        """A message that was received, under a lock or not; DecodeError where its bytes do not add up."""
        message = Message(payload)
        _, _, header_ttl, _, delivery_count = message.checked(Section.HEADER, Header)
        message_id, _, to, label, reply_to, correlation_id, content_type, _, ends_ms, made_ms, *others = (
            message.checked(Section.PROPERTIES, Properties)
        )
        named = dict(message.message_annotations)
        decoded = cls.__new__(cls)
        decoded._body, decoded._sections = b"", message  # noqa: SLF001  # its own
        decoded._received = Received(  # noqa: SLF001
            named, lock, delivery_count=delivery_count + (not is_peeked), size=len(payload)
        )
        decoded.message_id = message_id
        decoded.session_id, _, decoded.reply_to_session_id = others
        decoded.partition_key = _text(named.get(_PARTITION_KEY))
        decoded.via_partition_key = _text(named.get(_VIA_PARTITION_KEY))
        decoded.correlation_id = correlation_id
        decoded.content_type = content_type
        decoded.label = label
        decoded.to = to
        decoded.reply_to = reply_to
        decoded.time_to_live = _ttl_of(header_ttl, ends_ms, made_ms)
        scheduled = named.get(_SCHEDULED_TIME)
        decoded.scheduled_enqueue_time_utc = moment_of(scheduled) if isinstance(scheduled, Timestamp) else None
        own = message.application_properties if Section.APPLICATION_PROPERTIES in message else {}
        decoded.properties = {str(name): from_wire(value) for name, value in dict(own).items()}
        return decoded

    @property
    def received(self) -> Received:
        """What the broker said of it; ValueError where it was not received."""
        if self._received is None:
            raise ValueError(f"{self!r} was not received: only the broker gives it a number, a time and a lock")
        return self._received

    @property
    def payload(self) -> bytes:
        """The bytes it came as."""
        assert self._sections is not None, "the message was not received"
        return self._sections.payload

    @property
    def sequence_number(self) -> int:
        """Its number in the entity."""
        return self.received.sequence_number

    @property
    def enqueued_sequence_number(self) -> int:
        """Its number in the entity it was first sent to, if it was forwarded."""
        return self.received.integer("x-opt-enqueue-sequence-number")

    @property
    def enqueued_time_utc(self) -> dt.datetime:
        """When the entity took it."""
        return moment_of(self.received.integer("x-opt-enqueued-time"))

    @property
    def delivery_count(self) -> int:
        """How often it was handed out, this time included."""
        return self.received.delivery_count

    @property
    def lock_token(self) -> uuid.UUID | None:
        """What its lock is known by; None if it is under none."""
        lock = self.received.lock
        return uuid.UUID(bytes_le=lock) if lock is not None else None

    @property
    def locked_until_utc(self) -> dt.datetime:
        """When its lock ends, unless it is renewed."""
        return moment_of(self.received.locked_until_ms)

    @property
    def expires_at_utc(self) -> dt.datetime:
        """When its life is over; the last moment that Python knows if it has no end."""
        enqueued = self.enqueued_time_utc
        try:
            return enqueued + (self.time_to_live or dt.timedelta.max)
        except OverflowError:
            return dt.datetime.max.replace(tzinfo=dt.UTC)

    @property
    def state(self) -> str:
        """active, deferred or scheduled."""
        found = self.received.annotations.get("x-opt-message-state", 0)
        return _STATES[found] if isinstance(found, int) and 0 <= found < len(_STATES) else f"state {found}"

    @property
    def dead_letter_source(self) -> str | None:
        """The entity whose dead-letter queue it was forwarded from."""
        return _text(self.received.annotations.get("x-opt-deadletter-source"))

    @property
    def dead_letter_reason(self) -> str | None:
        """Why it is in a dead-letter queue."""
        return _text(self.properties.get("DeadLetterReason"))

    @property
    def dead_letter_error_description(self) -> str | None:
        """The same, at length."""
        return _text(self.properties.get("DeadLetterErrorDescription"))

    @property
    def size(self) -> int:
        """Bytes it came as."""
        return self.received.size


class Received:
    """What a broker says of a message that it hands out."""

    __slots__ = ("annotations", "delivery_count", "handle", "lock", "locked_until_ms", "sequence_number", "size")

    def __init__(
        self,
        annotations: Mapping[object, object],
        lock: bytes | None,
        *,
        delivery_count: int,
        size: int,
    ) -> None:
        """`annotations` are the message's."""
        self.annotations = annotations
        self.lock = lock
        """The lock's token, as the wire has it."""
        self.handle: object = None
        """For the receiver: how it settles the message."""
        self.size = size
        self.delivery_count = delivery_count
        self.sequence_number = self.integer("x-opt-sequence-number")
        self.locked_until_ms = self.integer("x-opt-locked-until")

    def integer(self, name: str) -> int:
        """One of its annotations; 0 where it is none."""
        found = self.annotations.get(name)
        return int(found) if isinstance(found, int) else 0


def encode_batch(payloads: Sequence[bytes], first: BrokeredMessage) -> bytes:
    """Encoded messages as one transfer in the format of a batch: all or none of them. The first is its label."""
    annotations = {_PARTITION_KEY: first.partition_key} if first.partition_key is not None else None
    return sections.build(
        message_annotations=annotations,
        properties=Properties(message_id=first.message_id, group_id=first.session_id),
        body=sections.data(*payloads),
    )


def _ttl_of(header_ms: int | None, ends_ms: int | None, made_ms: int | None) -> dt.timedelta | None:
    """The header's, unless it is too short for it: then the time between creation and end says it."""
    if header_ms is None:
        return None
    if header_ms == _LARGEST_TTL_MS and ends_ms is not None and made_ms is not None:
        return duration_of(ends_ms - made_ms)
    return duration_of(header_ms)


def _check_length(name: str, value: object) -> None:
    if isinstance(value, str) and len(value) > MAX_ID_CHARACTERS:
        raise InvalidArgument(f"{name} has {len(value)} characters; it can have {MAX_ID_CHARACTERS}")


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str) else None
