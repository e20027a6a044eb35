"""The layout of a message as it is stored, and as it is delivered.

A record is a fixed head (counts, times), the session id if the queue has sessions, the sender's delivery annotations
(rare) and message annotations as encoded pairs, and the bare message, whose bytes never change. To deliver a message,
the head is written as AMQP sections in front of the same bytes. This takes two copies and a few calls of `Struct.pack`,
but no AMQP encoder.

If several subscriptions have copies of a message, the bare message may be stored once for all of them
(`shared_bodies`): the record then refers to the shared body, and is stored without a bare message. In memory, every
record contains its bare message.

Owns: both layouts. This module must not know where records are stored, or who receives them.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.amqp.codec.decode import decode
from twinbus.amqp.codec.encode import write
from twinbus.amqp.codec.message_layout import field_offsets, text_at
from twinbus.amqp.message import Message, Section
from twinbus.amqp.types import Int, Symbol
from twinbus.model.annotations import (
    ENQUEUED_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCK_TOKEN,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    SEQUENCE_NUMBER,
)
from twinbus.model.message import POSSIBLE_DUPLICATE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_VERSION: Final = 2
_DELIVERY_ANNOTATED_VERSION: Final = 3
"""The version of a record with delivery annotations, which follow the session id; their count and size come last."""
_DURABLE: Final = 1
HAS_TTL: Final = 2
HAS_DUE_TIME: Final = 4
HAS_SESSION: Final = 8
HAS_SHARED_BODY: Final = 16
_HOPS_SHIFT: Final = 5
"""The position of the hop count in the flags. The hop count (0 to 7) says how often a message was forwarded."""
HAS_EXTRA_ROWS: Final = HAS_DUE_TIME | HAS_SESSION | HAS_SHARED_BODY
"""The flags of a record that has further rows in the store."""
NEVER_MS: Final = 0
_MAX_HEADER_TTL_MS: Final = 0xFFFF_FFFF
_HEAD: Final = Struct(">BBBBIQQQHIH")
"""Version, flags, priority, state, delivery count, time to live, enqueued time, due time, elements and bytes of the
annotations, bytes of the extension (session id, delivery annotations, reference to a shared body). The due time of a
scheduled message is when it becomes active; the due time of any other message is when it expires."""
HEAD_BYTES: Final = _HEAD.size
_pack_head: Final = _HEAD.pack
_unpack_head: Final = _HEAD.unpack_from
_TIME: Final = Struct(">Q")
_STATE_AT: Final = 3
_DEFERRED_BYTE: Final = bytes((1,))
_DELIVERY_COUNT_AT: Final = 4
_DELIVERY_COUNT_END: Final = 8
_ZERO_DELIVERIES: Final = b"\x00\x00\x00\x00"
_ONE_DELIVERY: Final = b"\x00\x00\x00\x01"
_ENQUEUED_AT: Final = 16
_DUE_TIME_AT: Final = 24
_EXTENSION_SIZE: Final = Struct(">H")
_EXTENSION_SIZE_AT: Final = HEAD_BYTES - 2
_SIZES: Final = Struct(">IH")
_SIZES_AT: Final = HEAD_BYTES - 6
_BODY_REFERENCE: Final = Struct(">QI")
"""The number of a shared body, and its length."""
_DELIVERY_ANNOTATIONS: Final = Struct(">HH")
"""The number of elements and of bytes in the delivery annotations."""
MAX_EXTENSION_BYTES: Final = 65_535 - _BODY_REFERENCE.size - _DELIVERY_ANNOTATIONS.size
"""The maximum size of session id and delivery annotations together in a record."""

_GROUP_ID: Final = 10
ACTIVE_STATE: Final = 0
DEFERRED_STATE: Final = 1
SCHEDULED_STATE: Final = 2


class MessageHeader(NamedTuple):
    """The fields of the AMQP header that the sender set."""

    flags: int = 0
    priority: int = 4
    ttl_ms: int = 0


def make_header(*, durable: bool, priority: int, ttl_ms: int | None) -> MessageHeader:
    """Return a header with the given fields."""
    flags = (_DURABLE if durable else 0) | (HAS_TTL if ttl_ms is not None else 0)
    return MessageHeader(flags, priority, ttl_ms or 0)


def with_ttl(header: MessageHeader, ttl_ms: int) -> MessageHeader:
    """Return the header with a time to live of at most `ttl_ms`."""
    if header.flags & HAS_TTL and header.ttl_ms <= ttl_ms:
        return header
    return MessageHeader(header.flags | HAS_TTL, header.priority, ttl_ms)


def hop_count_of(header: MessageHeader) -> int:
    """Return how often a message was forwarded."""
    return header.flags >> _HOPS_SHIFT


def with_hop_count(header: MessageHeader, hop_count: int) -> MessageHeader:
    """Return the header with the given hop count."""
    others = header.flags & ((1 << _HOPS_SHIFT) - 1)
    return MessageHeader(others | hop_count << _HOPS_SHIFT, header.priority, header.ttl_ms)


def expiry_time(header: MessageHeader, enqueued_ms: int) -> int:
    """Return when a message enqueued at `enqueued_ms` expires, or NEVER_MS."""
    return enqueued_ms + header.ttl_ms if header.flags & HAS_TTL else NEVER_MS


class RecordFields(NamedTuple):
    """The fields of a record."""

    header: MessageHeader
    bare_message: bytes
    enqueued_ms: int
    due_ms: int = NEVER_MS
    state: int = ACTIVE_STATE
    delivery_count: int = 0
    session_id: bytes | None = None
    """The session id of the message, which may be empty; None if the entity does not use sessions."""
    annotation_count: int = 0
    annotations: bytes = b""
    """Encoded keys and values, `annotation_count` elements in all."""
    shared_body: int = 0
    """The number of the shared body that holds `bare_message`; 0 if the record itself holds it."""
    delivery_annotation_count: int = 0
    delivery_annotations: bytes = b""
    """Encoded keys and values, like `annotations`."""


def make_record(fields: RecordFields) -> bytes:
    """Return the record of a message."""
    flags, priority, ttl_ms = fields.header
    extension = fields.session_id or b""
    flags = flags & ~HAS_EXTRA_ROWS | (HAS_DUE_TIME if fields.due_ms else 0)
    flags |= HAS_SESSION if fields.session_id is not None else 0
    version = _VERSION
    if fields.delivery_annotation_count:
        version = _DELIVERY_ANNOTATED_VERSION
        sizes = _DELIVERY_ANNOTATIONS.pack(fields.delivery_annotation_count, len(fields.delivery_annotations))
        extension += fields.delivery_annotations + sizes
    if fields.shared_body:
        flags |= HAS_SHARED_BODY
        extension += _BODY_REFERENCE.pack(fields.shared_body, len(fields.bare_message))
    head = _pack_head(
        version,
        flags,
        priority,
        fields.state,
        fields.delivery_count,
        ttl_ms,
        fields.enqueued_ms,
        fields.due_ms,
        fields.annotation_count,
        len(fields.annotations),
        len(extension),
    )
    return head + extension + fields.annotations + fields.bare_message


def make_plain_record(header: MessageHeader, bare_message: bytes, enqueued_ms: int) -> bytes:
    """Return the record of a new message that has no annotations and no session and never expires (the usual case)."""
    return _pack_head(_VERSION, header[0], header[1], 0, 0, header[2], enqueued_ms, 0, 0, 0, 0) + bare_message


# --- reading and changing ---------------------------------------------------------------------------------------------


def parse_record(record: bytes) -> RecordFields:
    """Return the fields of a record."""
    version, flags, priority, state, delivery_count, ttl_ms, enqueued_ms, due_ms, count, size, extension_size = (
        _unpack_head(record)
    )
    assert version in (_VERSION, _DELIVERY_ANNOTATED_VERSION)
    delivery_annotation_count, delivery_annotations = (0, b"")
    if version == _DELIVERY_ANNOTATED_VERSION:
        delivery_annotation_count, delivery_annotations = _delivery_annotations(record)
    annotations_at = HEAD_BYTES + extension_size
    bare_at = annotations_at + size
    return RecordFields(
        MessageHeader(flags & ~HAS_EXTRA_ROWS, priority, ttl_ms),
        record[bare_at:],
        enqueued_ms,
        due_ms,
        state,
        delivery_count,
        session_id_of(record),
        count,
        record[annotations_at:bare_at],
        shared_body_of(record),
        delivery_annotation_count,
        delivery_annotations,
    )


def _delivery_annotations(record: bytes) -> tuple[int, bytes]:
    """Return the number of elements in the delivery annotations, and the encoded elements."""
    end = _extension_end(record)
    count, size = _DELIVERY_ANNOTATIONS.unpack_from(record, end - _DELIVERY_ANNOTATIONS.size)
    start = end - _DELIVERY_ANNOTATIONS.size - int(size)
    return int(count), record[start : start + int(size)]


def _extension_end(record: bytes) -> int:
    """Return the offset at which session id and delivery annotations end."""
    size: int = _EXTENSION_SIZE.unpack_from(record, _EXTENSION_SIZE_AT)[0]
    return HEAD_BYTES + size - (_BODY_REFERENCE.size if record[1] & HAS_SHARED_BODY else 0)


def offsets_of(record: bytes) -> tuple[int, int, int]:
    """Return the offset of the annotations, their number of elements, and the offset of the bare message."""
    _, _, _, _, _, _, _, _, count, size, extension_size = _unpack_head(record)
    annotations_at = HEAD_BYTES + extension_size
    return annotations_at, count, annotations_at + size


def due_time_of(record: bytes) -> int:
    """Return when a message is due (if it is scheduled) or expires, or NEVER_MS."""
    due_ms: int = _TIME.unpack_from(record, _DUE_TIME_AT)[0]
    return due_ms


def enqueued_time_of(record: bytes) -> int:
    """Return when a message was enqueued."""
    enqueued_ms: int = _TIME.unpack_from(record, _ENQUEUED_AT)[0]
    return enqueued_ms


def with_enqueued_time(record: bytes, enqueued_ms: int) -> bytes:
    """Return the record with another enqueued time."""
    return record[:_ENQUEUED_AT] + _TIME.pack(enqueued_ms) + record[_DUE_TIME_AT:]


def with_one_delivery(record: bytes) -> bytes:
    """Return the record with a delivery count of at least 1."""
    if record[_DELIVERY_COUNT_AT:_DELIVERY_COUNT_END] != _ZERO_DELIVERIES:
        return record
    return record[:_DELIVERY_COUNT_AT] + _ONE_DELIVERY + record[_DELIVERY_COUNT_END:]


def session_id_of(record: bytes) -> bytes | None:
    """Return the session id of a record, or None."""
    if not record[1] & HAS_SESSION:
        return None
    end = _extension_end(record)
    if record[0] == _DELIVERY_ANNOTATED_VERSION:
        end -= _DELIVERY_ANNOTATIONS.size + len(_delivery_annotations(record)[1])
    return record[HEAD_BYTES:end]


def shared_body_of(record: bytes) -> int:
    """Return the number of the shared body of a record; 0 if the record holds its own body."""
    if not record[1] & HAS_SHARED_BODY:
        return 0
    size: int = _EXTENSION_SIZE.unpack_from(record, _EXTENSION_SIZE_AT)[0]
    number: int = _BODY_REFERENCE.unpack_from(record, HEAD_BYTES + size - _BODY_REFERENCE.size)[0]
    return number


def without_body(record: bytes) -> bytes:
    """Return a record without its bare message, as it is stored if the body is shared."""
    size, extension_size = _SIZES.unpack_from(record, _SIZES_AT)
    return record[: HEAD_BYTES + extension_size + size]


def full_size_of(record: bytes) -> int:
    """Return the size of a record including its bare message, even if the record is stored without it."""
    if not record[1] & HAS_SHARED_BODY:
        return len(record)
    size, extension_size = _SIZES.unpack_from(record, _SIZES_AT)
    (_, length) = _BODY_REFERENCE.unpack_from(record, HEAD_BYTES + extension_size - _BODY_REFERENCE.size)
    return HEAD_BYTES + int(extension_size) + int(size) + int(length)


def with_own_body(record: bytes) -> bytes:
    """Return the record with its own body instead of a shared body."""
    return make_record(parse_record(record)._replace(shared_body=0)) if record[1] & HAS_SHARED_BODY else record


def session_id_in(bare_message: bytes) -> bytes | None:
    """Return the session id (`group-id`) in a bare message, or None."""
    fields = field_offsets(bare_message, 0, _GROUP_ID + 1)
    if fields is not None:
        session = text_at(bare_message, fields[_GROUP_ID]) if fields[_GROUP_ID] else None
    else:
        group_id = Message(bare_message).field(Section.PROPERTIES, _GROUP_ID)
        session = group_id if isinstance(group_id, str) else None
    return session.encode() if session is not None else None


def annotation_pairs_of(fields: RecordFields) -> list[tuple[object, object, bytes]]:
    """Return the name, the value and the encoded pair of each annotation of a record."""
    pairs: list[tuple[object, object, bytes]] = []
    at = 0
    for _ in range(fields.annotation_count // 2):
        key, value_at = decode(fields.annotations, at)
        value, end = decode(fields.annotations, value_at)
        pairs.append((key, value, fields.annotations[at:end]))
        at = end
    return pairs


def with_original_sequence(fields: RecordFields, sequence: int) -> RecordFields:
    """Return the fields with `sequence` as the enqueued sequence number, unless this number is already set."""
    if any(key == ENQUEUED_SEQUENCE_NUMBER for key, _, _ in annotation_pairs_of(fields)):
        return fields
    annotation = encode_annotations({ENQUEUED_SEQUENCE_NUMBER: sequence})
    return fields._replace(annotations=fields.annotations + annotation, annotation_count=fields.annotation_count + 2)


def without_annotations(fields: RecordFields, names: Collection[str]) -> RecordFields:
    """Return the fields without the named annotations."""
    kept = [raw for key, _, raw in annotation_pairs_of(fields) if key not in names]
    return fields._replace(annotations=b"".join(kept), annotation_count=2 * len(kept))


def change_record(
    record: bytes,
    *,
    delivery_count: int | None = None,
    annotations: Mapping[str, object] | None = None,
    properties: Mapping[str, object] | None = None,
) -> bytes:
    """Return a record with another delivery count, and with annotations or application properties set."""
    fields = parse_record(record)
    if annotations:
        pairs = fields.annotations + _encode_pairs(annotations, as_symbols=True)
        fields = fields._replace(annotations=pairs, annotation_count=fields.annotation_count + 2 * len(annotations))
    if properties:
        fields = fields._replace(bare_message=with_properties(fields.bare_message, properties), shared_body=0)
    if delivery_count is not None:
        fields = fields._replace(delivery_count=delivery_count)
    return make_record(fields)


def mark_possible_duplicate(record: bytes) -> bytes:
    """Return a record marked as a possible duplicate: a store that failed during a write may hold the message too."""
    return change_record(record, properties=_POSSIBLE_DUPLICATE_MARK)


_POSSIBLE_DUPLICATE_MARK: Final[dict[str, object]] = {POSSIBLE_DUPLICATE: True}


def with_properties(bare_message: bytes, changes: Mapping[str, object]) -> bytes:
    """Return a bare message with application properties set; the bytes of its other properties do not change."""
    return _with_pairs(bare_message, changes, without=changes)


def without_properties(bare_message: bytes, names: Collection[str]) -> bytes:
    """Return a bare message without the named application properties."""
    return _with_pairs(bare_message, {}, without=names)


def _with_pairs(bare_message: bytes, changes: Mapping[str, object], *, without: Collection[str]) -> bytes:
    message = Message(bare_message)
    kept = [raw for key, raw in message.pairs(Section.APPLICATION_PROPERTIES) if key not in without]
    content = b"".join([*kept, _encode_pairs(changes, as_symbols=False)])
    count = 2 * (len(kept) + len(changes))
    section = _PROPERTIES_HEAD.pack(b"\x00\x53\x74\xd1", len(content) + 4, count) + content
    body = message.body_section
    pieces = [message.raw(Section.PROPERTIES), section, message.raw(body) if body is not None else b""]
    return b"".join([*pieces, message.raw(Section.FOOTER)])


_PROPERTIES_HEAD: Final = Struct(">4sII")


def encode_annotations(pairs: Mapping[str, object]) -> bytes:
    """Return annotations encoded as in a record."""
    return _encode_pairs(pairs, as_symbols=True)


def _encode_pairs(pairs: Mapping[str, object], *, as_symbols: bool) -> bytes:
    out = bytearray()
    for key, value in pairs.items():
        write(out, Symbol(key) if as_symbols else key)
        write(out, value)
    return bytes(out)


# --- delivering -------------------------------------------------------------------------------------------------------

_TRUE: Final = 0x41
_FALSE: Final = 0x42
_HEADER: Final = Struct(">6sBBB3sI")
"""The header section without a ttl: durable, priority, null, first-acquirer, delivery-count."""
_HEADER_WITH_TTL: Final = Struct(">6sBBBBI2sI")


def _encode_symbol(name: str) -> bytes:
    return bytes((0xA3, len(name))) + name.encode()


_LOCK_TOKEN_NAME: Final = _encode_symbol(LOCK_TOKEN) + b"\x98"
_LOCK_TOKEN: Final = b"\x00\x53\x71\xc1\x24\x02" + _LOCK_TOKEN_NAME
_NO_LOCK_TOKEN: Final = b"\x00\x53\x71\xc1\x01\x00"
"""An empty section of delivery annotations, because some clients expect the section."""
_DELIVERY_HEAD: Final = Struct(">4sII")
_ANNOTATIONS: Final = b"\x00\x53\x72\xd1"
_ENQUEUED_TIME: Final = _encode_symbol(ENQUEUED_TIME) + b"\x83"
_SEQUENCE_NUMBER: Final = _encode_symbol(SEQUENCE_NUMBER) + b"\x81"
_LOCKED_UNTIL: Final = _encode_symbol(LOCKED_UNTIL) + b"\x83"
_UNLOCKED_LAYOUT: Final = f"4sII{len(_ENQUEUED_TIME)}sq{len(_SEQUENCE_NUMBER)}sq"
_UNLOCKED: Final = Struct(f">{len(_NO_LOCK_TOKEN)}s{_UNLOCKED_LAYOUT}")
_LOCKED: Final = Struct(f">{len(_LOCK_TOKEN)}s16s{_UNLOCKED_LAYOUT}{len(_LOCKED_UNTIL)}sq")
_pack_locked: Final = _LOCKED.pack
_pack_header: Final = _HEADER.pack
_UNLOCKED_SIZE: Final = _UNLOCKED.size - len(_NO_LOCK_TOKEN) - 8
"""The size field of the annotations map: the bytes after the field, without the sender's annotations."""
_LOCKED_SIZE: Final = _UNLOCKED_SIZE + len(_LOCKED_UNTIL) + 8
_DEFERRED_ANNOTATION: Final = encode_annotations({MESSAGE_STATE: Int(DEFERRED_STATE)})


def render_locked(record: bytes, sequence: int, token: bytes, locked_until_ms: int) -> bytes:
    """Return a message as a peek-lock receiver gets it; `token` is a UUID in network order."""
    return _render_locked(record, sequence, token, locked_until_ms, b"")


def render_deferred(record: bytes, sequence: int, token: bytes, locked_until_ms: int) -> bytes:
    """Return a deferred message as a peek-lock receiver gets it: with an annotation for its state."""
    return _render_locked(record, sequence, token, locked_until_ms, _DEFERRED_ANNOTATION)


def _render_locked(record: bytes, sequence: int, token: bytes, locked_until_ms: int, state_annotation: bytes) -> bytes:
    version, flags, priority, _, delivery_count, ttl_ms, enqueued_ms, _, count, size, extension_size = _unpack_head(
        record
    )
    durable = _TRUE if flags & _DURABLE else _FALSE
    if flags & HAS_TTL and ttl_ms <= _MAX_HEADER_TTL_MS:
        header = _header_with_ttl(durable, priority, ttl_ms, delivery_count)
    else:
        header = _pack_header(b"\x00\x53\x70\xc0\x0b\x05", durable, 0x50, priority, b"\x40\x42\x70", delivery_count)
    annotations = _pack_locked(
        _LOCK_TOKEN,
        token,
        _ANNOTATIONS,
        _LOCKED_SIZE + size + len(state_annotation),
        count + (8 if state_annotation else 6),
        _ENQUEUED_TIME,
        enqueued_ms,
        _SEQUENCE_NUMBER,
        sequence,
        _LOCKED_UNTIL,
        locked_until_ms,
    )
    if version == _DELIVERY_ANNOTATED_VERSION:
        delivery_annotations = _sender_delivery_annotations(record, _LOCK_TOKEN_NAME + token)
        annotations = delivery_annotations + annotations[len(_LOCK_TOKEN) + len(token) :]
    return header + annotations + state_annotation + record[HEAD_BYTES + extension_size :]


def render_unlocked(record: bytes, sequence: int) -> bytes:
    """Return a message without a lock, as a peek returns it and as a receive-and-delete receiver gets it."""
    version, flags, priority, state, delivery_count, ttl_ms, enqueued_ms, _, count, size, extension_size = _unpack_head(
        record
    )
    if state != ACTIVE_STATE:
        return render_unlocked(with_state_annotation(record), sequence)
    durable = _TRUE if flags & _DURABLE else _FALSE
    if flags & HAS_TTL and ttl_ms <= _MAX_HEADER_TTL_MS:
        header = _header_with_ttl(durable, priority, ttl_ms, delivery_count)
    else:
        header = _pack_header(b"\x00\x53\x70\xc0\x0b\x05", durable, 0x50, priority, b"\x40\x42\x70", delivery_count)
    annotations = _UNLOCKED.pack(
        _NO_LOCK_TOKEN,
        _ANNOTATIONS,
        _UNLOCKED_SIZE + size,
        count + 4,
        _ENQUEUED_TIME,
        enqueued_ms,
        _SEQUENCE_NUMBER,
        sequence,
    )
    if version == _DELIVERY_ANNOTATED_VERSION:
        delivery_annotations = _sender_delivery_annotations(record, b"")
        return (
            header + delivery_annotations + annotations[len(_NO_LOCK_TOKEN) :] + record[HEAD_BYTES + extension_size :]
        )
    return header + annotations + record[HEAD_BYTES + extension_size :]


def _sender_delivery_annotations(record: bytes, lock_annotation: bytes) -> bytes:
    """Return the section with the sender's delivery annotations and, if not empty, the lock annotation."""
    count, pairs = _delivery_annotations(record)
    head = _DELIVERY_HEAD.pack(
        b"\x00\x53\x71\xd1", 4 + len(lock_annotation) + len(pairs), count + (2 if lock_annotation else 0)
    )
    return head + lock_annotation + pairs


def as_deferred(record: bytes) -> bytes:
    """Return the record of a deferred message, with its own body instead of a shared body."""
    if record[1] & HAS_SHARED_BODY:
        return make_record(parse_record(record)._replace(state=DEFERRED_STATE, shared_body=0))
    return record[:_STATE_AT] + _DEFERRED_BYTE + record[_DELIVERY_COUNT_AT:]


def with_state_annotation(record: bytes) -> bytes:
    """Return an active record with the state of `record` (deferred or scheduled) as an annotation."""
    marked = parse_record(change_record(record, annotations={MESSAGE_STATE: Int(parse_record(record).state)}))
    return make_record(marked._replace(state=ACTIVE_STATE))


def _header_with_ttl(durable: int, priority: int, ttl_ms: int, delivery_count: int) -> bytes:
    lead = b"\x00\x53\x70\xc0\x0f\x05"
    return _HEADER_WITH_TTL.pack(lead, durable, 0x50, priority, 0x70, ttl_ms, b"\x42\x70", delivery_count)
