"""What comes in: from the bytes a client sent to records that can be stored, or to the reason why not.

Owns: the checks on one message, and the unpacking of batches. Of a message only the header, the annotations and the ids
are read; the body never is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.fields import ABSOLUTE_EXPIRY_TIME, CREATION_TIME, GROUP_ID, MESSAGE_ID
from twinbus.amqp.message import Message, Properties, Section
from twinbus.amqp.outline import (
    annotation_pairs,
    binaries_of,
    field_offsets,
    is_text_map,
    outline_of,
    text_at,
    timestamp_at,
)
from twinbus.amqp.types import Timestamp
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.record import (
    ACTIVE_STATE,
    HAS_TTL,
    MOST_OWNER_BYTES,
    SCHEDULED_STATE,
    Envelope,
    Parts,
    expires_ms,
    make_envelope,
    make_plain_record,
    make_record,
    with_ttl,
)
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

    from twinbus.broker.ports.incoming import Terms
    from twinbus.model.limits import NamespaceLimits

DESTINATION: Final = "x-opt-twinbus-destination"
"""An annotation of messages that are sent via another entity: where they go."""
SET_BY_BROKER: Final = frozenset(
    {
        ENQUEUED_TIME,
        SEQUENCE_NUMBER,
        LOCKED_UNTIL,
        ENQUEUED_SEQUENCE_NUMBER,
        MESSAGE_STATE,
        DEADLETTER_SOURCE,
        DESTINATION,
    }
)
"""Annotations of ours: a client that sends a message that it received sends them along, and they mean nothing then."""
LONGEST_DELAY_MS: Final = FOREVER_MS
_HEADER_DEFAULT: Final = Envelope()
_NAMES_OF_IDS: Final = {MESSAGE_ID: "message-id", GROUP_ID: "session id (group-id)"}
_LIST8: Final = 0xC0
_PING: Final = PING_CONTENT_TYPE.encode()
_SCHEDULED_NAME: Final = SCHEDULED_TIME.encode()
_KEY_NAME: Final = PARTITION_KEY.encode()
_SET_BY_BROKER: Final = frozenset(name.encode() for name in SET_BY_BROKER)
_NO_PAIRS: Final[list[tuple[bytes, int, int]]] = []


class Intake:
    """Makes records of what clients send."""

    def __init__(self, limits: NamespaceLimits, make_id: Callable[[], str]) -> None:
        """`make_id` gives an id to a message that has none."""
        self._limits = limits
        self._make_id = make_id

    def add_to(self, parcel: Parcel, payload: bytes, message_format: int, enqueued_ms: int, terms: Terms) -> None:
        """Add one message, or those of a batch; the first message that is wrong is the reason why none is."""
        try:
            if message_format == BATCH_FORMAT:
                self._unpack(parcel, payload, enqueued_ms, terms)
            else:
                self._add(parcel, payload, enqueued_ms, terms)
        except DecodeError as error:
            raise MalformedMessage(f"the message is malformed: {error.description}") from None

    def _unpack(self, parcel: Parcel, payload: bytes, enqueued_ms: int, terms: Terms) -> None:
        messages = binaries_of(payload)
        if messages is None:
            messages = Message(payload).data
        if not messages:
            raise MalformedMessage("a batch without a single message: each data section of its body has to be one")
        if len(messages) > self._limits.max_batch_messages:
            most = self._limits.max_batch_messages
            raise MessageTooLarge(f"a batch of {len(messages)} messages; it can have {most}")
        unpacked = Parcel()
        for message in messages:
            self._add(unpacked, message, enqueued_ms, terms)
        parcel.take(unpacked)

    def _add(self, parcel: Parcel, payload: bytes, enqueued_ms: int, terms: Terms) -> None:
        outline = outline_of(payload)
        if outline is None:
            self._add_unusual(parcel, payload, enqueued_ms, terms)
            return
        header_end, annotations_at, annotations_end, properties_at, properties_end, body_at = outline
        if (
            # application properties must be readable if they are to be changed
            (properties_end < body_at and not is_text_map(payload, properties_end))
            or body_at - properties_at + annotations_end - annotations_at > self._limits.max_property_bytes
            or properties_end - properties_at > self._limits.max_id_characters  # a smaller section holds no longer id
            or annotations_end - annotations_at > self._limits.max_id_characters
        ):
            self._check(Message(payload))
        if (annotations_at or properties_at) > header_end:  # delivery annotations
            self._add_unusual(parcel, payload, enqueued_ms, terms)
            return
        envelope = _read_header(payload[:header_end]) if header_end else _HEADER_DEFAULT
        bare = payload[properties_at:]
        pairs = annotation_pairs(payload, annotations_at) if annotations_end else _NO_PAIRS
        if pairs is None or payload.find(_PING, properties_at, properties_end) >= 0:
            self._add_special(parcel, Message(payload), envelope, bare, enqueued_ms, terms)
        elif (
            not pairs
            and terms.is_plain
            and not envelope.flags & HAS_TTL
            and payload[properties_at + 3] == _LIST8
            and payload[properties_at + 5] <= ABSOLUTE_EXPIRY_TIME
        ):
            parcel.records.append(make_plain_record(envelope, bare, enqueued_ms))
            if terms.is_partitioned:
                parcel.keys.append(None)
        else:
            self._add_outlined(parcel, payload, pairs, envelope, bare, enqueued_ms, terms)

    def _add_outlined(
        self,
        parcel: Parcel,
        payload: bytes,
        pairs: list[tuple[bytes, int, int]],
        envelope: Envelope,
        bare: bytes,
        enqueued_ms: int,
        terms: Terms,
    ) -> None:
        """A message of which a few fields and annotations tell all."""
        fields = field_offsets(bare, 0, GROUP_ID + 1)
        message_id = text_at(bare, fields[MESSAGE_ID]) if fields is not None and terms.detects_duplicates else None
        if fields is None or (terms.detects_duplicates and message_id is None):
            self._add_special(parcel, Message(payload), envelope, bare, enqueued_ms, terms)
            return
        key = None
        if terms.is_partitioned:
            group = text_at(bare, fields[GROUP_ID]) if fields[GROUP_ID] else None
            key = partition_key(group, _key_in(payload, pairs), message_id)
            parcel.keys.append(key)
        if fields[ABSOLUTE_EXPIRY_TIME] and not envelope.flags & HAS_TTL:
            expiry_ms = timestamp_at(bare, fields[ABSOLUTE_EXPIRY_TIME])
            created_ms = timestamp_at(bare, fields[CREATION_TIME]) if fields[CREATION_TIME] else None
            envelope = _with_expiry(envelope, expiry_ms, created_ms, enqueued_ms)
        session = None
        if terms.requires_session:
            session = text_at(bare, fields[GROUP_ID]) if fields[GROUP_ID] else None
            if session is None:
                raise _no_session()
        if terms.ttl_ms < FOREVER_MS:
            envelope = with_ttl(envelope, terms.ttl_ms)
        state, alarm_ms = ACTIVE_STATE, expires_ms(envelope, enqueued_ms)
        due_ms, kept = _read_annotations(payload, pairs)
        if due_ms > enqueued_ms:
            state, alarm_ms = SCHEDULED_STATE, _checked_due(due_ms)
        if session is None and not alarm_ms and not kept:
            parcel.records.append(make_plain_record(envelope, bare, enqueued_ms))
        else:
            owner = session.encode() if session is not None else None
            annotations = b"".join(kept)
            parts = Parts(envelope, bare, enqueued_ms, alarm_ms, state, 0, owner, 2 * len(kept), annotations)
            parcel.records.append(make_record(parts))
        if message_id is not None:
            parcel.ids.append(identity_of(message_id, key))

    def _add_unusual(self, parcel: Parcel, payload: bytes, enqueued_ms: int, terms: Terms) -> None:
        message = Message(payload)
        self._check(message)
        envelope = _read_header(message.raw(Section.HEADER)) if Section.HEADER in message else _HEADER_DEFAULT
        has_id = message.has_field(Section.PROPERTIES, MESSAGE_ID)
        bare = message.bare() if has_id else self._with_message_id(message)
        self._add_special(parcel, message, envelope, bare, enqueued_ms, terms)

    def _add_special(
        self, parcel: Parcel, message: Message, envelope: Envelope, bare: bytes, enqueued_ms: int, terms: Terms
    ) -> None:
        key = _key_of(message, bare, terms) if terms.is_partitioned else None
        if is_ping(message):
            parcel.pings += 1
            parcel.ping_keys.append(key)
            return
        if terms.is_partitioned:
            parcel.keys.append(key)
        envelope = _with_all_limits(message, envelope, enqueued_ms, terms)
        state, alarm_ms = ACTIVE_STATE, expires_ms(envelope, enqueued_ms)
        due_ms = message.lookup(Section.MESSAGE_ANNOTATIONS, SCHEDULED_TIME)
        if isinstance(due_ms, Timestamp) and due_ms > enqueued_ms:
            state, alarm_ms = SCHEDULED_STATE, _checked_due(int(due_ms))
        session = _session_of(message) if terms.requires_session else None
        kept = [raw for name, raw in message.pairs(Section.MESSAGE_ANNOTATIONS) if name not in SET_BY_BROKER]
        told = [raw for name, raw in message.pairs(Section.DELIVERY_ANNOTATIONS) if name != LOCK_TOKEN]
        parcel.records.append(
            make_record(
                Parts(
                    envelope,
                    bare,
                    enqueued_ms,
                    alarm_ms,
                    state,
                    session=session,
                    annotation_count=2 * len(kept),
                    annotations=b"".join(kept),
                    delivery_annotation_count=2 * len(told),
                    delivery_annotations=b"".join(told),
                )
            )
        )
        if terms.detects_duplicates:
            parcel.ids.append(identity_of(Message(bare).field(Section.PROPERTIES, MESSAGE_ID), key))

    def _check(self, message: Message) -> None:
        limits = self._limits
        properties = message.size_of(Section.PROPERTIES)
        size = properties + message.size_of(Section.APPLICATION_PROPERTIES)
        size += message.size_of(Section.MESSAGE_ANNOTATIONS)
        to_deliver = message.size_of(Section.DELIVERY_ANNOTATIONS)
        size += to_deliver
        if size > limits.max_properties_bytes:
            raise MessageTooLarge(
                f"the message has {size} bytes of properties and annotations; it can have {limits.max_properties_bytes}"
            )
        most = MOST_OWNER_BYTES - 4 * limits.max_id_characters  # beside the longest session id, in UTF-8
        if to_deliver > most:
            raise MessageTooLarge(f"the message has {to_deliver} bytes of delivery annotations; it can have {most}")
        self._check_each_property(message)
        if max(properties, message.size_of(Section.MESSAGE_ANNOTATIONS)) > limits.max_id_characters:
            self._check_ids(message)

    def _check_each_property(self, message: Message) -> None:
        limit = self._limits.max_property_bytes
        for section in (Section.APPLICATION_PROPERTIES, Section.MESSAGE_ANNOTATIONS, Section.DELIVERY_ANNOTATIONS):
            for key, raw in message.pairs(section):  # raises where it is no map
                if not isinstance(key, str) and (section is Section.APPLICATION_PROPERTIES or not isinstance(key, int)):
                    raise MalformedMessage(f"{key!r:.60} names a property or annotation: that can be done by text only")
                if len(raw) > limit:
                    raise MessageTooLarge(f"property {key!r:.60} takes {len(raw)} bytes; it can take {limit}")

    def _check_ids(self, message: Message) -> None:
        limit = self._limits.max_id_characters
        ids = {name: message.field(Section.PROPERTIES, index) for index, name in _NAMES_OF_IDS.items()}
        ids["partition key"] = message.lookup(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
        for name, found in ids.items():
            if isinstance(found, str | bytes) and len(found) > limit:
                raise ArgumentOutOfRange(f"a {name} of {len(found)} characters; it can have {limit}")

    def _with_message_id(self, message: Message) -> bytes:
        """Some clients set none, and cannot live with none on what they receive."""
        properties = message.properties or Properties()
        properties.message_id = self._make_id()
        body = message.body_section
        pieces = [properties.encode(), message.raw(Section.APPLICATION_PROPERTIES)]
        pieces += [message.raw(body) if body is not None else b"", message.raw(Section.FOOTER)]
        return b"".join(pieces)


def _key_of(message: Message, bare: bytes, terms: Terms) -> bytes | None:
    session = message.field(Section.PROPERTIES, GROUP_ID)
    key = message.lookup(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
    message_id = Message(bare).field(Section.PROPERTIES, MESSAGE_ID) if terms.detects_duplicates else None
    return partition_key(
        str(session) if isinstance(session, str) else None, str(key) if isinstance(key, str) else None, message_id
    )


def _key_in(payload: bytes, pairs: list[tuple[bytes, int, int]]) -> str | None:
    """The partition key among annotations."""
    for name, start, _ in pairs:
        if name == _KEY_NAME:
            return text_at(payload, start + 2 + len(name))
    return None


def _read_annotations(payload: bytes, pairs: list[tuple[bytes, int, int]]) -> tuple[int, list[bytes]]:
    """When a message is due, or 0, and those annotations that are kept."""
    due_ms, kept = 0, []
    for name, start, end in pairs:
        if name == _SCHEDULED_NAME:
            due_ms = timestamp_at(payload, start + 2 + len(name)) or 0
        if name not in _SET_BY_BROKER:
            kept.append(payload[start:end])
    return due_ms, kept


def _checked_due(due_ms: int) -> int:
    if due_ms > LONGEST_DELAY_MS:
        raise ArgumentOutOfRange(f"{SCHEDULED_TIME} is {due_ms}, which is after the end of time")
    return due_ms


def _session_of(message: Message) -> bytes:
    session = message.field(Section.PROPERTIES, GROUP_ID)
    if not isinstance(session, str):
        raise _no_session()
    return session.encode()


def _no_session() -> NotAllowed:
    return NotAllowed("the queue requires sessions: set the message's session id (group-id)")


def _with_all_limits(message: Message, envelope: Envelope, enqueued_ms: int, terms: Terms) -> Envelope:
    """How long it lives: what its header says, or the time when it expires, or the queue, whichever is first.

    A header cannot say more than 49 days: a client that wants more says when, and when it was made.
    """
    if not envelope.flags & HAS_TTL:
        expiry_ms = message.field(Section.PROPERTIES, ABSOLUTE_EXPIRY_TIME)
        created_ms = message.field(Section.PROPERTIES, CREATION_TIME)
        envelope = _with_expiry(
            envelope,
            int(expiry_ms) if isinstance(expiry_ms, Timestamp) else None,
            int(created_ms) if isinstance(created_ms, Timestamp) else None,
            enqueued_ms,
        )
    return with_ttl(envelope, terms.ttl_ms) if terms.ttl_ms < FOREVER_MS else envelope


def _with_expiry(envelope: Envelope, expiry_ms: int | None, created_ms: int | None, enqueued_ms: int) -> Envelope:
    """... living until a time, counted from when it was made."""
    if expiry_ms is None:
        return envelope
    since_ms = created_ms if created_ms is not None else enqueued_ms
    return with_ttl(envelope, min(max(0, expiry_ms - since_ms), FOREVER_MS))


@lru_cache(maxsize=1024)
def _read_header(raw: bytes) -> Envelope:
    """Most messages of a sender have the same header: it is read once."""
    header = Message(raw).header
    if header is None:  # its descriptor says header, its content does not
        raise DecodeError("a header that is none")
    return make_envelope(durable=header.durable, priority=header.priority, ttl_ms=header.ttl)
