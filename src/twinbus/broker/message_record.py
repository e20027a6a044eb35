"""A message as it is stored, and as it is delivered.

A record is a fixed head (counts, times), the id of its session if its queue has sessions, the sender's delivery
annotations (few messages have some) and message annotations as encoded pairs, and the bare message, whose bytes are
never touched. A delivery is the head written as AMQP sections in front of the same bytes: two copies and a few
`Struct.pack`, no encoder.

The bare message of a record that has copies in other subscriptions may lie elsewhere, once for all of them (`bodies`):
then the record says where, and is stored without it. In memory it is always whole.

Owns: both layouts. Knows nothing of where records lie or who gets them.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.amqp.decode import decode
from twinbus.amqp.encode import write
from twinbus.amqp.message import Message, Section
from twinbus.amqp.message_layout import field_offsets, text_at
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
"""Of a record with delivery annotations: they follow the session's id, before their count and size."""
_DURABLE: Final = 1
HAS_TTL: Final = 2
HAS_DUE_TIME: Final = 4
HAS_SESSION: Final = 8
HAS_SHARED_BODY: Final = 16
_HOPS_SHIFT: Final = 5
"""The bits above tell how often a message was forwarded: seven times, at most."""
HAS_EXTRA_ROWS: Final = HAS_DUE_TIME | HAS_SESSION | HAS_SHARED_BODY
"""A record of which more is written than itself."""
NEVER_MS: Final = 0
_MAX_HEADER_TTL_MS: Final = 0xFFFF_FFFF
_HEAD: Final = Struct(">BBBBIQQQHIH")
"""Version, flags, priority, state, delivery count, time to live, enqueued at, alarm, elements and bytes of the
annotations, bytes of the session's id and of the reference behind it. The alarm is when a scheduled message is due, or
when any other expires."""
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
"""The number of a bare message that is shared, and its length."""
_DELIVERY_ANNOTATIONS: Final = Struct(">HH")
"""Elements and bytes of the delivery annotations."""
MAX_EXTENSION_BYTES: Final = 65_535 - _BODY_REFERENCE.size - _DELIVERY_ANNOTATIONS.size
"""Of a session's id and delivery annotations: a record has room for so many."""

_GROUP_ID: Final = 10
ACTIVE_STATE: Final = 0
DEFERRED_STATE: Final = 1
SCHEDULED_STATE: Final = 2


class MessageHeader(NamedTuple):
    """What the sender said in its header."""

    flags: int = 0
    priority: int = 4
    ttl_ms: int = 0


def make_header(*, durable: bool, priority: int, ttl_ms: int | None) -> MessageHeader:
    """From the fields of a header."""
    flags = (_DURABLE if durable else 0) | (HAS_TTL if ttl_ms is not None else 0)
    return MessageHeader(flags, priority, ttl_ms or 0)


def with_ttl(header: MessageHeader, ttl_ms: int) -> MessageHeader:
    """The same, living no longer than this."""
    if header.flags & HAS_TTL and header.ttl_ms <= ttl_ms:
        return header
    return MessageHeader(header.flags | HAS_TTL, header.priority, ttl_ms)


def hop_count_of(header: MessageHeader) -> int:
    """How often a message was forwarded."""
    return header.flags >> _HOPS_SHIFT


def with_hop_count(header: MessageHeader, hop_count: int) -> MessageHeader:
    """The same, forwarded so often."""
    others = header.flags & ((1 << _HOPS_SHIFT) - 1)
    return MessageHeader(others | hop_count << _HOPS_SHIFT, header.priority, header.ttl_ms)


def expiry_time(header: MessageHeader, enqueued_ms: int) -> int:
    """When a message that is enqueued then expires; NEVER_MS if it does not."""
    return enqueued_ms + header.ttl_ms if header.flags & HAS_TTL else NEVER_MS


class RecordFields(NamedTuple):
    """A record taken apart."""

    header: MessageHeader
    bare_message: bytes
    enqueued_ms: int
    due_ms: int = NEVER_MS
    state: int = ACTIVE_STATE
    delivery_count: int = 0
    session_id: bytes | None = None
    """The id of the session it belongs to, which may be empty."""
    annotation_count: int = 0
    annotations: bytes = b""
    """Encoded keys and values, `annotation_count` of them."""
    shared_body: int = 0
    """The number under which `bare` is kept for several; 0 where it is this record's alone."""
    delivery_annotation_count: int = 0
    delivery_annotations: bytes = b""
    """Encoded keys and values, as the message annotations."""


def make_record(fields: RecordFields) -> bytes:
    """A message to be stored."""
    flags, priority, ttl_ms = fields.header
    owner = fields.session_id or b""
    flags = flags & ~HAS_EXTRA_ROWS | (HAS_DUE_TIME if fields.due_ms else 0)
    flags |= HAS_SESSION if fields.session_id is not None else 0
    version = _VERSION
    if fields.delivery_annotation_count:
        version = _DELIVERY_ANNOTATED_VERSION
        sizes = _DELIVERY_ANNOTATIONS.pack(fields.delivery_annotation_count, len(fields.delivery_annotations))
        owner += fields.delivery_annotations + sizes
    if fields.shared_body:
        flags |= HAS_SHARED_BODY
        owner += _BODY_REFERENCE.pack(fields.shared_body, len(fields.bare_message))
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
        len(owner),
    )
    return head + owner + fields.annotations + fields.bare_message


def make_plain_record(header: MessageHeader, bare_message: bytes, enqueued_ms: int) -> bytes:
    """The same for a new message that has nothing beside its header and never expires, as most."""
    return _pack_head(_VERSION, header[0], header[1], 0, 0, header[2], enqueued_ms, 0, 0, 0, 0) + bare_message


# --- reading and changing ---------------------------------------------------------------------------------------------


def parse_record(record: bytes) -> RecordFields:
    """What a record holds."""
    version, flags, priority, state, delivery_count, ttl_ms, enqueued_ms, alarm_ms, count, size, session_size = (
        _unpack_head(record)
    )
    assert version in (_VERSION, _DELIVERY_ANNOTATED_VERSION)
    delivery_annotation_count, delivery_annotations = (0, b"")
    if version == _DELIVERY_ANNOTATED_VERSION:
        delivery_annotation_count, delivery_annotations = _delivery_annotations(record)
    annotations_at = HEAD_BYTES + session_size
    bare_at = annotations_at + size
    return RecordFields(
        MessageHeader(flags & ~HAS_EXTRA_ROWS, priority, ttl_ms),
        record[bare_at:],
        enqueued_ms,
        alarm_ms,
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
    """How many keys and values the delivery annotations are, and both as they are encoded."""
    end = _extension_end(record)
    count, size = _DELIVERY_ANNOTATIONS.unpack_from(record, end - _DELIVERY_ANNOTATIONS.size)
    start = end - _DELIVERY_ANNOTATIONS.size - int(size)
    return int(count), record[start : start + int(size)]


def _extension_end(record: bytes) -> int:
    """Where the session's id and the delivery annotations end."""
    size: int = _EXTENSION_SIZE.unpack_from(record, _EXTENSION_SIZE_AT)[0]
    return HEAD_BYTES + size - (_BODY_REFERENCE.size if record[1] & HAS_SHARED_BODY else 0)


def offsets_of(record: bytes) -> tuple[int, int, int]:
    """Where the annotations begin, how many keys and values they are, and where the bare message begins."""
    _, _, _, _, _, _, _, _, count, size, session_size = _unpack_head(record)
    annotations_at = HEAD_BYTES + session_size
    return annotations_at, count, annotations_at + size


def due_time_of(record: bytes) -> int:
    """When it is due, or expires; NEVER_MS if it has no such time."""
    found: int = _TIME.unpack_from(record, _DUE_TIME_AT)[0]
    return found


def enqueued_time_of(record: bytes) -> int:
    """When it was enqueued."""
    found: int = _TIME.unpack_from(record, _ENQUEUED_AT)[0]
    return found


def with_enqueued_time(record: bytes, enqueued_ms: int) -> bytes:
    """The same, enqueued at another time."""
    return record[:_ENQUEUED_AT] + _TIME.pack(enqueued_ms) + record[_DUE_TIME_AT:]


def with_one_delivery(record: bytes) -> bytes:
    """The same, delivered at least once."""
    if record[_DELIVERY_COUNT_AT:_DELIVERY_COUNT_END] != _ZERO_DELIVERIES:
        return record
    return record[:_DELIVERY_COUNT_AT] + _ONE_DELIVERY + record[_DELIVERY_COUNT_END:]


def session_id_of(record: bytes) -> bytes | None:
    """The id of the session it belongs to."""
    if not record[1] & HAS_SESSION:
        return None
    end = _extension_end(record)
    if record[0] == _DELIVERY_ANNOTATED_VERSION:
        end -= _DELIVERY_ANNOTATIONS.size + len(_delivery_annotations(record)[1])
    return record[HEAD_BYTES:end]


def shared_body_of(record: bytes) -> int:
    """The number under which its bare message is kept for several; 0 where it is its own."""
    if not record[1] & HAS_SHARED_BODY:
        return 0
    size: int = _EXTENSION_SIZE.unpack_from(record, _EXTENSION_SIZE_AT)[0]
    number: int = _BODY_REFERENCE.unpack_from(record, HEAD_BYTES + size - _BODY_REFERENCE.size)[0]
    return number


def without_body(record: bytes) -> bytes:
    """A record as it is stored whose bare message is kept for several: without it."""
    size, owner_size = _SIZES.unpack_from(record, _SIZES_AT)
    return record[: HEAD_BYTES + owner_size + size]


def full_size_of(record: bytes) -> int:
    """How many bytes a record has with its bare message, though it may be stored without."""
    if not record[1] & HAS_SHARED_BODY:
        return len(record)
    size, owner_size = _SIZES.unpack_from(record, _SIZES_AT)
    (_, length) = _BODY_REFERENCE.unpack_from(record, HEAD_BYTES + owner_size - _BODY_REFERENCE.size)
    return HEAD_BYTES + int(owner_size) + int(size) + int(length)


def with_own_body(record: bytes) -> bytes:
    """The same message, whose bare message is its own."""
    return make_record(parse_record(record)._replace(shared_body=0)) if record[1] & HAS_SHARED_BODY else record


def session_id_in(bare_message: bytes) -> bytes | None:
    """The session that a bare message names."""
    fields = field_offsets(bare_message, 0, _GROUP_ID + 1)
    if fields is not None:
        session = text_at(bare_message, fields[_GROUP_ID]) if fields[_GROUP_ID] else None
    else:
        found = Message(bare_message).field(Section.PROPERTIES, _GROUP_ID)
        session = found if isinstance(found, str) else None
    return session.encode() if session is not None else None


def annotation_pairs_of(fields: RecordFields) -> list[tuple[object, object, bytes]]:
    """The annotations of a record: of each the name, the value, and both as they are encoded."""
    found: list[tuple[object, object, bytes]] = []
    at = 0
    for _ in range(fields.annotation_count // 2):
        key, value_at = decode(fields.annotations, at)
        value, end = decode(fields.annotations, value_at)
        found.append((key, value, fields.annotations[at:end]))
        at = end
    return found


def with_original_sequence(fields: RecordFields, sequence: int) -> RecordFields:
    """A message says under which number it was there first; one that comes from elsewhere says that already."""
    if any(key == ENQUEUED_SEQUENCE_NUMBER for key, _, _ in annotation_pairs_of(fields)):
        return fields
    annotation = encode_annotations({ENQUEUED_SEQUENCE_NUMBER: sequence})
    return fields._replace(annotations=fields.annotations + annotation, annotation_count=fields.annotation_count + 2)


def without_annotations(fields: RecordFields, names: Collection[str]) -> RecordFields:
    """The same message without some annotations."""
    kept = [raw for key, _, raw in annotation_pairs_of(fields) if key not in names]
    return fields._replace(annotations=b"".join(kept), annotation_count=2 * len(kept))


def change_record(
    record: bytes,
    *,
    delivery_count: int | None = None,
    annotations: Mapping[str, object] | None = None,
    properties: Mapping[str, object] | None = None,
) -> bytes:
    """The same message with another count, and with annotations or application properties set."""
    parts = parse_record(record)
    if annotations:
        pairs = parts.annotations + _encode_pairs(annotations, as_symbols=True)
        parts = parts._replace(annotations=pairs, annotation_count=parts.annotation_count + 2 * len(annotations))
    if properties:
        parts = parts._replace(bare_message=with_properties(parts.bare_message, properties), shared_body=0)
    if delivery_count is not None:
        parts = parts._replace(delivery_count=delivery_count)
    return make_record(parts)


def mark_possible_duplicate(record: bytes) -> bytes:
    """The same message, marked as a possible duplicate: a store that failed with it may have kept it."""
    return change_record(record, properties=_POSSIBLE_DUPLICATE_MARK)


_POSSIBLE_DUPLICATE_MARK: Final[dict[str, object]] = {POSSIBLE_DUPLICATE: True}


def with_properties(bare_message: bytes, changes: Mapping[str, object]) -> bytes:
    """A bare message with some application properties set; the bytes of the others stay as they are."""
    return _with_pairs(bare_message, changes, without=changes)


def without_properties(bare_message: bytes, names: Collection[str]) -> bytes:
    """... with some taken away."""
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
    """Annotations as a record has them."""
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
"""durable, priority, no ttl, first-acquirer, delivery-count."""
_HEADER_WITH_TTL: Final = Struct(">6sBBBBI2sI")


def _encode_symbol(name: str) -> bytes:
    return bytes((0xA3, len(name))) + name.encode()


_LOCK_TOKEN_NAME: Final = _encode_symbol(LOCK_TOKEN) + b"\x98"
_LOCK_TOKEN: Final = b"\x00\x53\x71\xc1\x24\x02" + _LOCK_TOKEN_NAME
_NO_LOCK_TOKEN: Final = b"\x00\x53\x71\xc1\x01\x00"
"""Delivery annotations without any: some clients look for the section."""
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
"""What the map's size counts: all behind it."""
_LOCKED_SIZE: Final = _UNLOCKED_SIZE + len(_LOCKED_UNTIL) + 8
_DEFERRED_ANNOTATION: Final = encode_annotations({MESSAGE_STATE: Int(DEFERRED_STATE)})


def render_locked(record: bytes, sequence: int, token: bytes, locked_until_ms: int) -> bytes:
    """A message as a receiver gets it under a lock. `token` is a uuid in network order."""
    return _render_locked(record, sequence, token, locked_until_ms, b"")


def render_deferred(record: bytes, sequence: int, token: bytes, locked_until_ms: int) -> bytes:
    """The same of a deferred message, which says that it is."""
    return _render_locked(record, sequence, token, locked_until_ms, _DEFERRED_ANNOTATION)


def _render_locked(record: bytes, sequence: int, token: bytes, locked_until_ms: int, state_annotation: bytes) -> bytes:
    version, flags, priority, _, delivery_count, ttl_ms, enqueued_ms, _, count, size, session_size = _unpack_head(
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
        own = _sender_delivery_annotations(record, _LOCK_TOKEN_NAME + token)
        annotations = own + annotations[len(_LOCK_TOKEN) + len(token) :]
    return header + annotations + state_annotation + record[HEAD_BYTES + session_size :]


def render_unlocked(record: bytes, sequence: int) -> bytes:
    """A message as it is peeked, or received and deleted: without a lock."""
    version, flags, priority, state, delivery_count, ttl_ms, enqueued_ms, _, count, size, session_size = _unpack_head(
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
        own = _sender_delivery_annotations(record, b"")
        return header + own + annotations[len(_NO_LOCK_TOKEN) :] + record[HEAD_BYTES + session_size :]
    return header + annotations + record[HEAD_BYTES + session_size :]


def _sender_delivery_annotations(record: bytes, lock_annotation: bytes) -> bytes:
    """The section with what the sender said in it, and a lock token or nothing."""
    count, pairs = _delivery_annotations(record)
    head = _DELIVERY_HEAD.pack(
        b"\x00\x53\x71\xd1", 4 + len(lock_annotation) + len(pairs), count + (2 if lock_annotation else 0)
    )
    return head + lock_annotation + pairs


def as_deferred(record: bytes) -> bytes:
    """A message as it is stored while it is deferred: with a bare message of its own."""
    if record[1] & HAS_SHARED_BODY:
        return make_record(parse_record(record)._replace(state=DEFERRED_STATE, shared_body=0))
    return record[:_STATE_AT] + _DEFERRED_BYTE + record[_DELIVERY_COUNT_AT:]


def with_state_annotation(record: bytes) -> bytes:
    """A message that is not active says so in an annotation, for as long as it is not."""
    marked = parse_record(change_record(record, annotations={MESSAGE_STATE: Int(parse_record(record).state)}))
    return make_record(marked._replace(state=ACTIVE_STATE))


def _header_with_ttl(durable: int, priority: int, ttl_ms: int, delivery_count: int) -> bytes:
    lead = b"\x00\x53\x70\xc0\x0f\x05"
    return _HEADER_WITH_TTL.pack(lead, durable, 0x50, priority, 0x70, ttl_ms, b"\x42\x70", delivery_count)
