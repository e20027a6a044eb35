"""A message as it is stored, and as it is delivered.

A record is a fixed head (counts, times), the sender's message annotations as encoded pairs, and the bare message, whose
bytes are never touched. A delivery is the head written as AMQP sections in front of the same bytes: two copies and a
few `Struct.pack`, no encoder.

Owns: both layouts. Knows nothing of where records lie or who gets them.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.amqp.encode import write
from twinbus.amqp.message import Message, Section
from twinbus.amqp.types import Symbol

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION: Final = 1
_DURABLE: Final = 1
_HAS_TTL: Final = 2
_HEAD: Final = Struct(">BBBxIIQHI")
"""Version, flags, priority, delivery count, time to live, enqueued at, elements and bytes of the annotations."""
HEAD_BYTES: Final = _HEAD.size
_pack_head: Final = _HEAD.pack
_unpack_head: Final = _HEAD.unpack_from


class Envelope(NamedTuple):
    """What the sender said in its header."""

    flags: int = 0
    priority: int = 4
    ttl_ms: int = 0


def make_envelope(*, durable: bool, priority: int, ttl_ms: int | None) -> Envelope:
    """From the fields of a header."""
    flags = (_DURABLE if durable else 0) | (_HAS_TTL if ttl_ms is not None else 0)
    return Envelope(flags, priority, ttl_ms or 0)


def make_record(
    envelope: Envelope,
    bare: bytes,
    enqueued_ms: int,
    *,
    annotations: bytes = b"",
    annotation_count: int = 0,
    delivery_count: int = 0,
) -> bytes:
    """A message to be stored. `annotations` are encoded keys and values, `annotation_count` of them."""
    flags, priority, ttl_ms = envelope
    size = len(annotations)
    head = _pack_head(_VERSION, flags, priority, delivery_count, ttl_ms, enqueued_ms, annotation_count, size)
    return head + annotations + bare


def make_plain_record(envelope: Envelope, bare: bytes, enqueued_ms: int) -> bytes:
    """The same for a new message without annotations, which most are."""
    return _pack_head(_VERSION, envelope[0], envelope[1], 0, envelope[2], enqueued_ms, 0, 0) + bare


# --- reading and changing ---------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A record taken apart."""

    envelope: Envelope
    delivery_count: int
    enqueued_ms: int
    annotation_count: int
    annotations: bytes
    bare: bytes


def take_apart(record: bytes) -> Parts:
    """What a record holds."""
    version, flags, priority, delivery_count, ttl_ms, enqueued_ms, count, size = _unpack_head(record)
    assert version == _VERSION
    envelope = Envelope(flags, priority, ttl_ms)
    bare_at = HEAD_BYTES + size
    return Parts(envelope, delivery_count, enqueued_ms, count, record[HEAD_BYTES:bare_at], record[bare_at:])


def change_record(
    record: bytes,
    *,
    delivery_count: int | None = None,
    enqueued_ms: int | None = None,
    annotations: Mapping[str, object] | None = None,
    properties: Mapping[str, object] | None = None,
) -> bytes:
    """The same message with another count or time, and with annotations or application properties set."""
    parts = take_apart(record)
    pairs, pair_count = parts.annotations, parts.annotation_count
    if annotations:
        pairs, pair_count = pairs + _encode_pairs(annotations, as_symbols=True), pair_count + 2 * len(annotations)
    return make_record(
        parts.envelope,
        with_properties(parts.bare, properties) if properties else parts.bare,
        parts.enqueued_ms if enqueued_ms is None else enqueued_ms,
        annotations=pairs,
        annotation_count=pair_count,
        delivery_count=parts.delivery_count if delivery_count is None else delivery_count,
    )


def with_properties(bare: bytes, changes: Mapping[str, object]) -> bytes:
    """A bare message with some application properties set; the bytes of the others stay as they are."""
    message = Message(bare)
    kept = [raw for key, raw in message.pairs(Section.APPLICATION_PROPERTIES) if key not in changes]
    content = b"".join([*kept, _encode_pairs(changes, as_symbols=False)])
    count = 2 * (len(kept) + len(changes))
    section = _PROPERTIES_HEAD.pack(b"\x00\x53\x74\xd1", len(content) + 4, count) + content
    body = message.body_section
    pieces = [message.raw(Section.PROPERTIES), section, message.raw(body) if body is not None else b""]
    return b"".join([*pieces, message.raw(Section.FOOTER)])


_PROPERTIES_HEAD: Final = Struct(">4sII")


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


def _symbol(name: str) -> bytes:
    return bytes((0xA3, len(name))) + name.encode()


_LOCK_TOKEN: Final = b"\x00\x53\x71\xc1\x24\x02" + _symbol("x-opt-lock-token") + b"\x98"
_ANNOTATIONS: Final = b"\x00\x53\x72\xd1"
_ENQUEUED_TIME: Final = _symbol("x-opt-enqueued-time") + b"\x83"
_SEQUENCE_NUMBER: Final = _symbol("x-opt-sequence-number") + b"\x81"
_LOCKED_UNTIL: Final = _symbol("x-opt-locked-until") + b"\x83"
_OPEN_LAYOUT: Final = f"4sII{len(_ENQUEUED_TIME)}sq{len(_SEQUENCE_NUMBER)}sq"
_OPEN: Final = Struct(f">{_OPEN_LAYOUT}")
_LOCKED: Final = Struct(f">{len(_LOCK_TOKEN)}s16s{_OPEN_LAYOUT}{len(_LOCKED_UNTIL)}sq")
_pack_locked: Final = _LOCKED.pack
_pack_header: Final = _HEADER.pack
_OPEN_SIZE: Final = _OPEN.size - 8
"""What the map's size counts: all behind it."""
_LOCKED_SIZE: Final = _OPEN_SIZE + len(_LOCKED_UNTIL) + 8


def render_locked(record: bytes, sequence: int, token: bytes, locked_until_ms: int) -> bytes:
    """A message as a receiver gets it under a lock. `token` is a uuid in network order."""
    _, flags, priority, delivery_count, ttl_ms, enqueued_ms, count, size = _unpack_head(record)
    durable = _TRUE if flags & _DURABLE else _FALSE
    if flags & _HAS_TTL:
        header = _header_with_ttl(durable, priority, ttl_ms, delivery_count)
    else:
        header = _pack_header(b"\x00\x53\x70\xc0\x0b\x05", durable, 0x50, priority, b"\x40\x42\x70", delivery_count)
    annotations = _pack_locked(
        _LOCK_TOKEN,
        token,
        _ANNOTATIONS,
        _LOCKED_SIZE + size,
        count + 6,
        _ENQUEUED_TIME,
        enqueued_ms,
        _SEQUENCE_NUMBER,
        sequence,
        _LOCKED_UNTIL,
        locked_until_ms,
    )
    return header + annotations + record[HEAD_BYTES:]


def render_open(record: bytes, sequence: int) -> bytes:
    """A message as it is peeked, or received and deleted: without a lock."""
    _, flags, priority, delivery_count, ttl_ms, enqueued_ms, count, size = _unpack_head(record)
    durable = _TRUE if flags & _DURABLE else _FALSE
    if flags & _HAS_TTL:
        header = _header_with_ttl(durable, priority, ttl_ms, delivery_count)
    else:
        header = _pack_header(b"\x00\x53\x70\xc0\x0b\x05", durable, 0x50, priority, b"\x40\x42\x70", delivery_count)
    annotations = _OPEN.pack(
        _ANNOTATIONS, _OPEN_SIZE + size, count + 4, _ENQUEUED_TIME, enqueued_ms, _SEQUENCE_NUMBER, sequence
    )
    return header + annotations + record[HEAD_BYTES:]


def _header_with_ttl(durable: int, priority: int, ttl_ms: int, delivery_count: int) -> bytes:
    lead = b"\x00\x53\x70\xc0\x0f\x05"
    return _HEADER_WITH_TTL.pack(lead, durable, 0x50, priority, 0x70, ttl_ms, b"\x42\x70", delivery_count)
