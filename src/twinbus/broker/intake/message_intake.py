"""Conversion of messages, as clients send them, to records that can be stored.

Owns the validation of messages and the unpacking of batches. The intake reads only the header, the annotations and the
ids of a message, never its body.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.field_numbers import ABSOLUTE_EXPIRY_TIME, CREATION_TIME, GROUP_ID, MESSAGE_ID
from twinbus.amqp.codec.message_layout import (
    annotation_pairs,
    data_of,
    field_offsets,
    is_text_map,
    layout_of,
    text_at,
    timestamp_at,
)
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, Section
from twinbus.amqp.types import Timestamp
from twinbus.broker.message_record import (
    ACTIVE_STATE,
    HAS_TTL,
    MAX_EXTENSION_BYTES,
    SCHEDULED_STATE,
    MessageHeader,
    RecordFields,
    expiry_time,
    make_header,
    make_plain_record,
    make_record,
    with_ttl,
)
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.model.annotations import (
    DEADLETTER_SOURCE,
    ENQUEUED_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCK_TOKEN,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARTITION_KEY,
    SCHEDULED_TIME,
    SEQUENCE_NUMBER,
)
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import ArgumentOutOfRange, MalformedMessage, MessageTooLarge, NotAllowed
from twinbus.model.message import BATCH_FORMAT, PING_CONTENT_TYPE, is_ping
from twinbus.model.partition_key import identity_of, partition_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.incoming_batch import ValidationPolicy
    from twinbus.model.limits import NamespaceLimits

DESTINATION_ANNOTATION: Final = "x-opt-twinbus-destination"
"""Annotation that holds the destination of a message sent via another entity."""
SET_BY_BROKER: Final = frozenset(
    {
        ENQUEUED_TIME,
        SEQUENCE_NUMBER,
        LOCKED_UNTIL,
        ENQUEUED_SEQUENCE_NUMBER,
        MESSAGE_STATE,
        DEADLETTER_SOURCE,
        DESTINATION_ANNOTATION,
    }
)
"""Annotations set by the broker. The intake removes these annotations from incoming messages, because a client that
sends a received message again also sends its annotations."""
MAX_SCHEDULED_TIME_MS: Final = FOREVER_MS
_DEFAULT_HEADER: Final = MessageHeader()
_ID_NAMES: Final = {MESSAGE_ID: "message-id", GROUP_ID: "session id (group-id)"}
_LIST8: Final = 0xC0
_PING_MARKER: Final = PING_CONTENT_TYPE.encode()
_SCHEDULED_NAME: Final = SCHEDULED_TIME.encode()
_PARTITION_KEY_NAME: Final = PARTITION_KEY.encode()
_SET_BY_BROKER: Final = frozenset(name.encode() for name in SET_BY_BROKER)
_NO_PAIRS: Final[list[tuple[bytes, int, int]]] = []


class MessageIntake:
    """Validator of incoming messages and encoder of their records."""

    def __init__(self, limits: NamespaceLimits, make_message_id: Callable[[], str]) -> None:
        """Create an intake; `make_message_id` provides an id for a message that has none."""
        self._limits = limits
        self._make_message_id = make_message_id

    def add_to(
        self,
        batch: IncomingBatch,
        payload: bytes,
        message_format: int,
        enqueued_ms: int,
        validation_policy: ValidationPolicy,
    ) -> None:
        """Add one message, or all messages of a batch; if a message is invalid, raise an error and add no message."""
        try:
            if message_format == BATCH_FORMAT:
                self._add_batch(batch, payload, enqueued_ms, validation_policy)
            else:
                self._add_message(batch, payload, enqueued_ms, validation_policy)
        except DecodeError as error:
            raise MalformedMessage(f"the message is malformed: {error.description}") from None

    def _add_batch(
        self, batch: IncomingBatch, payload: bytes, enqueued_ms: int, validation_policy: ValidationPolicy
    ) -> None:
        messages = data_of(payload)
        if messages is None:
            messages = Message(payload).data
        if not messages:
            raise MalformedMessage("the batch has no messages: each data section of its body must be a message")
        if len(messages) > self._limits.max_batch_messages:
            limit = self._limits.max_batch_messages
            raise MessageTooLarge(f"the batch has {len(messages)} messages; the limit is {limit}")
        unpacked = IncomingBatch()
        for message in messages:
            self._add_message(unpacked, message, enqueued_ms, validation_policy)
        batch.extend(unpacked)

    def _add_message(
        self, batch: IncomingBatch, payload: bytes, enqueued_ms: int, validation_policy: ValidationPolicy
    ) -> None:
        layout = layout_of(payload)
        if layout is None:
            self._add_decoded(batch, payload, enqueued_ms, validation_policy)
            return
        header_end, annotations_at, annotations_end, properties_at, properties_end, body_at = layout
        if (
            # a rule's action must be able to decode application properties
            (properties_end < body_at and not is_text_map(payload, properties_end))
            or body_at - properties_at + annotations_end - annotations_at > self._limits.max_property_bytes
            # a section within this size cannot hold an id that is too long
            or properties_end - properties_at > self._limits.max_id_characters
            or annotations_end - annotations_at > self._limits.max_id_characters
        ):
            self._check_limits(Message(payload))
        if (annotations_at or properties_at) > header_end:  # the message has delivery annotations
            self._add_decoded(batch, payload, enqueued_ms, validation_policy)
            return
        header = _read_header(payload[:header_end]) if header_end else _DEFAULT_HEADER
        bare = payload[properties_at:]
        pairs = annotation_pairs(payload, annotations_at) if annotations_end else _NO_PAIRS
        if pairs is None or payload.find(_PING_MARKER, properties_at, properties_end) >= 0:
            self._add_from_message(batch, Message(payload), header, bare, enqueued_ms, validation_policy)
        elif (
            not pairs
            and validation_policy.is_unrestricted
            and not header.flags & HAS_TTL
            and payload[properties_at + 3] == _LIST8
            and payload[properties_at + 5] <= ABSOLUTE_EXPIRY_TIME
        ):
            batch.records.append(make_plain_record(header, bare, enqueued_ms))
            if validation_policy.is_partitioned:
                batch.partition_keys.append(None)
        else:
            self._add_outlined(batch, payload, pairs, header, bare, enqueued_ms, validation_policy)

    def _add_outlined(
        self,
        batch: IncomingBatch,
        payload: bytes,
        pairs: list[tuple[bytes, int, int]],
        header: MessageHeader,
        bare_message: bytes,
        enqueued_ms: int,
        validation_policy: ValidationPolicy,
    ) -> None:
        """Add a message by reading only a few fields and annotations; decode the message fully if necessary."""
        fields = field_offsets(bare_message, 0, GROUP_ID + 1)
        message_id = (
            text_at(bare_message, fields[MESSAGE_ID])
            if fields is not None and validation_policy.detects_duplicates
            else None
        )
        if fields is None or (validation_policy.detects_duplicates and message_id is None):
            self._add_from_message(batch, Message(payload), header, bare_message, enqueued_ms, validation_policy)
            return
        key = None
        if validation_policy.is_partitioned:
            group = text_at(bare_message, fields[GROUP_ID]) if fields[GROUP_ID] else None
            key = partition_key(group, _partition_key_in(payload, pairs), message_id)
            batch.partition_keys.append(key)
        if fields[ABSOLUTE_EXPIRY_TIME] and not header.flags & HAS_TTL:
            expiry_ms = timestamp_at(bare_message, fields[ABSOLUTE_EXPIRY_TIME])
            created_ms = timestamp_at(bare_message, fields[CREATION_TIME]) if fields[CREATION_TIME] else None
            header = _with_ttl_until(header, expiry_ms, created_ms, enqueued_ms)
        session = None
        if validation_policy.requires_session:
            session = text_at(bare_message, fields[GROUP_ID]) if fields[GROUP_ID] else None
            if session is None:
                raise _no_session_error()
        if validation_policy.max_ttl_ms < FOREVER_MS:
            header = with_ttl(header, validation_policy.max_ttl_ms)
        state, alarm_ms = ACTIVE_STATE, expiry_time(header, enqueued_ms)
        due_ms, kept = _read_annotations(payload, pairs)
        if due_ms > enqueued_ms:
            state, alarm_ms = SCHEDULED_STATE, _check_due(due_ms)
        if session is None and not alarm_ms and not kept:
            batch.records.append(make_plain_record(header, bare_message, enqueued_ms))
        else:
            owner = session.encode() if session is not None else None
            annotations = b"".join(kept)
            parts = RecordFields(
                header, bare_message, enqueued_ms, alarm_ms, state, 0, owner, 2 * len(kept), annotations
            )
            batch.records.append(make_record(parts))
        if message_id is not None:
            batch.duplicate_ids.append(identity_of(message_id, key))

    def _add_decoded(
        self, batch: IncomingBatch, payload: bytes, enqueued_ms: int, validation_policy: ValidationPolicy
    ) -> None:
        message = Message(payload)
        self._check_limits(message)
        header = _read_header(message.raw(Section.HEADER)) if Section.HEADER in message else _DEFAULT_HEADER
        has_id = message.has_field(Section.PROPERTIES, MESSAGE_ID)
        bare = message.bare() if has_id else self._with_message_id(message)
        self._add_from_message(batch, message, header, bare, enqueued_ms, validation_policy)

    def _add_from_message(
        self,
        batch: IncomingBatch,
        message: Message,
        header: MessageHeader,
        bare_message: bytes,
        enqueued_ms: int,
        validation_policy: ValidationPolicy,
    ) -> None:
        key = _partition_key_of(message, bare_message, validation_policy) if validation_policy.is_partitioned else None
        if is_ping(message):
            batch.ping_count += 1
            batch.ping_partition_keys.append(key)
            return
        if validation_policy.is_partitioned:
            batch.partition_keys.append(key)
        header = _with_effective_ttl(message, header, enqueued_ms, validation_policy)
        state, alarm_ms = ACTIVE_STATE, expiry_time(header, enqueued_ms)
        due_ms = message.lookup(Section.MESSAGE_ANNOTATIONS, SCHEDULED_TIME)
        if isinstance(due_ms, Timestamp) and due_ms > enqueued_ms:
            state, alarm_ms = SCHEDULED_STATE, _check_due(int(due_ms))
        session = _session_id_of(message) if validation_policy.requires_session else None
        kept = [raw for name, raw in message.pairs(Section.MESSAGE_ANNOTATIONS) if name not in SET_BY_BROKER]
        delivery_annotations = [raw for name, raw in message.pairs(Section.DELIVERY_ANNOTATIONS) if name != LOCK_TOKEN]
        batch.records.append(
            make_record(
                RecordFields(
                    header,
                    bare_message,
                    enqueued_ms,
                    alarm_ms,
                    state,
                    session_id=session,
                    annotation_count=2 * len(kept),
                    annotations=b"".join(kept),
                    delivery_annotation_count=2 * len(delivery_annotations),
                    delivery_annotations=b"".join(delivery_annotations),
                )
            )
        )
        if validation_policy.detects_duplicates:
            batch.duplicate_ids.append(identity_of(Message(bare_message).field(Section.PROPERTIES, MESSAGE_ID), key))

    def _check_limits(self, message: Message) -> None:
        limits = self._limits
        properties = message.size_of(Section.PROPERTIES)
        size = properties + message.size_of(Section.APPLICATION_PROPERTIES)
        size += message.size_of(Section.MESSAGE_ANNOTATIONS)
        delivery_bytes = message.size_of(Section.DELIVERY_ANNOTATIONS)
        size += delivery_bytes
        if size > limits.max_properties_bytes:
            raise MessageTooLarge(
                f"the message has {size} bytes of properties and annotations; "
                f"the limit is {limits.max_properties_bytes}"
            )
        # The same part of the record also holds the session id, of up to four bytes per character in UTF-8.
        delivery_limit = MAX_EXTENSION_BYTES - 4 * limits.max_id_characters
        if delivery_bytes > delivery_limit:
            raise MessageTooLarge(
                f"the message has {delivery_bytes} bytes of delivery annotations; the limit is {delivery_limit}"
            )
        self._check_each_property(message)
        if max(properties, message.size_of(Section.MESSAGE_ANNOTATIONS)) > limits.max_id_characters:
            self._check_ids(message)

    def _check_each_property(self, message: Message) -> None:
        limit = self._limits.max_property_bytes
        for section in (Section.APPLICATION_PROPERTIES, Section.MESSAGE_ANNOTATIONS, Section.DELIVERY_ANNOTATIONS):
            for key, raw in message.pairs(section):  # raises DecodeError if the section is not a map
                if not isinstance(key, str) and (section is Section.APPLICATION_PROPERTIES or not isinstance(key, int)):
                    raise MalformedMessage(f"the name of a property or annotation must be a string, not {key!r:.60}")
                if len(raw) > limit:
                    raise MessageTooLarge(f"property {key!r:.60} has {len(raw)} bytes; the limit is {limit}")

    def _check_ids(self, message: Message) -> None:
        limit = self._limits.max_id_characters
        ids = {name: message.field(Section.PROPERTIES, index) for index, name in _ID_NAMES.items()}
        ids["partition key"] = message.lookup(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
        for name, value in ids.items():
            if isinstance(value, str | bytes) and len(value) > limit:
                raise ArgumentOutOfRange(f"the {name} has {len(value)} characters; the limit is {limit}")

    def _with_message_id(self, message: Message) -> bytes:
        """Return the bare message with a new message id.

        Some clients set no message id, but require a message id on received messages.
        """
        properties = message.properties or Properties()
        properties.message_id = self._make_message_id()
        body = message.body_section
        pieces = [properties.encode(), message.raw(Section.APPLICATION_PROPERTIES)]
        pieces += [message.raw(body) if body is not None else b"", message.raw(Section.FOOTER)]
        return b"".join(pieces)


def _partition_key_of(message: Message, bare_message: bytes, validation_policy: ValidationPolicy) -> bytes | None:
    session = message.field(Section.PROPERTIES, GROUP_ID)
    key = message.lookup(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
    message_id = (
        Message(bare_message).field(Section.PROPERTIES, MESSAGE_ID) if validation_policy.detects_duplicates else None
    )
    return partition_key(
        str(session) if isinstance(session, str) else None, str(key) if isinstance(key, str) else None, message_id
    )


def _partition_key_in(payload: bytes, pairs: list[tuple[bytes, int, int]]) -> str | None:
    """Return the partition key from the annotations, or None."""
    for name, start, _ in pairs:
        if name == _PARTITION_KEY_NAME:
            return text_at(payload, start + 2 + len(name))
    return None


def _read_annotations(payload: bytes, pairs: list[tuple[bytes, int, int]]) -> tuple[int, list[bytes]]:
    """Return a message's scheduled time, or 0, and the annotations that are stored with it."""
    due_ms, kept = 0, []
    for name, start, end in pairs:
        if name == _SCHEDULED_NAME:
            due_ms = timestamp_at(payload, start + 2 + len(name)) or 0
        if name not in _SET_BY_BROKER:
            kept.append(payload[start:end])
    return due_ms, kept


def _check_due(due_ms: int) -> int:
    if due_ms > MAX_SCHEDULED_TIME_MS:
        raise ArgumentOutOfRange(f"{SCHEDULED_TIME} is {due_ms}; the latest possible time is {MAX_SCHEDULED_TIME_MS}")
    return due_ms


def _session_id_of(message: Message) -> bytes:
    session = message.field(Section.PROPERTIES, GROUP_ID)
    if not isinstance(session, str):
        raise _no_session_error()
    return session.encode()


def _no_session_error() -> NotAllowed:
    return NotAllowed("the queue requires sessions: set the message's session id (group-id)")


def _with_effective_ttl(
    message: Message, header: MessageHeader, enqueued_ms: int, validation_policy: ValidationPolicy
) -> MessageHeader:
    """Return the header with the message's own time to live, limited by the entity's time to live.

    The ttl field of a header cannot exceed 49 days. For a longer time to live, clients set the message's absolute
    expiry time and creation time instead.
    """
    if not header.flags & HAS_TTL:
        expiry_ms = message.field(Section.PROPERTIES, ABSOLUTE_EXPIRY_TIME)
        created_ms = message.field(Section.PROPERTIES, CREATION_TIME)
        header = _with_ttl_until(
            header,
            int(expiry_ms) if isinstance(expiry_ms, Timestamp) else None,
            int(created_ms) if isinstance(created_ms, Timestamp) else None,
            enqueued_ms,
        )
    return with_ttl(header, validation_policy.max_ttl_ms) if validation_policy.max_ttl_ms < FOREVER_MS else header


def _with_ttl_until(
    header: MessageHeader, expiry_ms: int | None, created_ms: int | None, enqueued_ms: int
) -> MessageHeader:
    """Return the header with a time to live that ends at `expiry_ms`; if `expiry_ms` is None, the unchanged header.

    The time to live begins at `created_ms` or, if that is None, at `enqueued_ms`.
    """
    if expiry_ms is None:
        return header
    since_ms = created_ms if created_ms is not None else enqueued_ms
    return with_ttl(header, min(max(0, expiry_ms - since_ms), FOREVER_MS))


@lru_cache(maxsize=1024)
def _read_header(raw: bytes) -> MessageHeader:
    """Decode a header; cached, because most messages from a sender have the same header."""
    header = Message(raw).header
    if header is None:  # the descriptor is a header's, but the content is not
        raise DecodeError("the content of the header section is not a header")
    return make_header(durable=header.durable, priority=header.priority, ttl_ms=header.ttl)
