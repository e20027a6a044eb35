"""Parked messages: how a message is rewritten for a backlog queue, and restored on its way to the primary.

In a backlog queue all messages are alike: they have no session, do not expire and are not scheduled. The original
values, and the destination, are kept in application properties (`x-ms-...`, the *aliases*). Everything else, including
the body and the types of all properties, stays as the application sent it, byte for byte.

Owns: both directions, and the errors of messages that cannot be parked or restored. All functions are pure: bytes in,
bytes out.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.amqp.codec.decode import decode, open_list, open_map, skip
from twinbus.amqp.codec.encode import write
from twinbus.amqp.codec.field_numbers import (
    ABSOLUTE_EXPIRY_TIME,
    CREATION_TIME,
    DELIVERY_COUNT,
    GROUP_ID,
    LARGEST_TTL_MS,
    TTL,
)
from twinbus.amqp.codec.message_layout import layout_of, long_at, text_at, timestamp_at
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, Section, build, data
from twinbus.amqp.types import Described, Symbol, Timestamp, UInt
from twinbus.client.pairing.errors import MessageCannotBeParked, ParkedMessageMalformed, ReservedPropertyName
from twinbus.model.annotations import (
    DEADLETTER_SOURCE,
    DEFERRED_STATE,
    ENQUEUED_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARKED_AT,
    PARKED_FOR,
    PARKED_FOR_MS,
    PARTITION_ID,
    PATH,
    SCHEDULED_TIME,
    SCHEDULED_TIME_ALIAS,
    SEQUENCE_NUMBER,
    SESSION_ID,
    TIME_TO_LIVE,
)
from twinbus.model.message import BATCH_FORMAT, POSSIBLE_DUPLICATE
from twinbus.model.times import TICKS_PER_MS, TIMESPAN, timespan

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIASES: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME_ALIAS})
"""Property names that applications may not use, because they hold the original values of a parked message."""
_TRACE_PROPERTIES: Final = frozenset({POSSIBLE_DUPLICATE, PARKED_AT, PARKED_FOR, PARKED_FOR_MS})
"""Properties that record how a message was parked; the message keeps them at its destination. A message that is parked
again gets new times and keeps its possible-duplicate mark."""

_HEADER: Final = Section.HEADER
_ANNOTATIONS: Final = Section.MESSAGE_ANNOTATIONS
_PROPERTIES: Final = Section.PROPERTIES
_APPLICATION_PROPERTIES: Final = Section.APPLICATION_PROPERTIES
_FOOTER: Final = Section.FOOTER
_SECTIONS_BEFORE_APPLICATION_PROPERTIES: Final = (_HEADER, Section.DELIVERY_ANNOTATIONS, _ANNOTATIONS, _PROPERTIES)

MAX_PROPERTIES_BYTES: Final = 65_536
DEFAULT_LOCK_MS: Final = 60_000
"""The lock duration of a backlog queue that twinbus creates."""
_SET_BY_BROKER: Final = frozenset(
    {
        ENQUEUED_TIME,
        SEQUENCE_NUMBER,
        LOCKED_UNTIL,
        ENQUEUED_SEQUENCE_NUMBER,
        MESSAGE_STATE,
        DEADLETTER_SOURCE,
        PARTITION_ID,
    }
)
_TIME_PROPERTIES: Final = frozenset({PARKED_AT, PARKED_FOR, PARKED_FOR_MS})
_DEAD_LETTER_REASONS: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
_REMOVED_FROM_DEAD_LETTERS: Final = _TIME_PROPERTIES | _DEAD_LETTER_REASONS
_COMPOUND: Final = struct.Struct(">BBBBII")
_TIMESTAMP: Final = struct.Struct(">Bq")
_LONG: Final = struct.Struct(">Bq")
_LIST32: Final = 0xD0
_MAP32: Final = 0xD1
NULL: Final = b"\x40"
_CACHE_SIZE: Final = 1_024
"""The number of headers, paths and times to live that are cached, because many messages share them."""


def check_property_names(properties: Mapping[str, object]) -> None:
    """Raise ReservedPropertyName if an application property has the name of an alias."""
    reserved = [name for name in properties if name in ALIASES]
    if reserved:
        raise ReservedPropertyName(
            f"a property is named {min(reserved)!r}: that name is reserved for parked messages; use another name"
        )


# --- parking ----------------------------------------------------------------------------------------------------------


def park(payload: bytes, message_format: int, path: str, *, is_possible_duplicate: bool) -> bytes:
    """Return the parked form of a message, or of a batch, for `path`."""
    if message_format != BATCH_FORMAT:
        return _park(payload, path, is_possible_duplicate=is_possible_duplicate)
    batch = Message(payload)
    properties = batch.properties or Properties()
    parked = [
        _park(encoded_message, path, is_possible_duplicate=is_possible_duplicate) for encoded_message in batch.data
    ]
    return build(properties=Properties(message_id=properties.message_id), body=data(*parked))


def _park(payload: bytes, path: str, *, is_possible_duplicate: bool) -> bytes:
    message = Message(payload)
    header, properties = message.fields(_HEADER), message.fields(_PROPERTIES)
    added = [_PATH_KEY + encoded(path)]
    if is_possible_duplicate:
        added.append(_POSSIBLE_DUPLICATE_ENTRY)
    session_id = field_of(properties, GROUP_ID)
    if session_id != NULL:
        added.append(_SESSION_ID_KEY + session_id)
        properties[GROUP_ID] = NULL
    ttl_ms = _ttl_of(header, properties)
    if ttl_ms is not None:
        added.append(_TIME_TO_LIVE_KEY + encoded(timespan(ttl_ms)))
        clear_field(header, TTL)
        clear_field(properties, ABSOLUTE_EXPIRY_TIME)
        clear_field(properties, CREATION_TIME)
    annotations = []
    for key, value_at, raw in message.entries(_ANNOTATIONS):
        if key != SCHEDULED_TIME:
            annotations.append(raw)
        elif type(decode(raw, value_at)[0]) is Timestamp:
            added.append(_SCHEDULED_TIME_KEY + raw[value_at:])
    replaced = _TRACE_PROPERTIES if is_possible_duplicate else _TIME_PROPERTIES
    kept = [raw for key, _, raw in message.entries(_APPLICATION_PROPERTIES) if key not in replaced]
    section = _compound(_PROPERTIES, _LIST32, properties, len(properties))
    return _assemble(message, header, annotations, section, kept + added)


def mark_possible_duplicate(payload: bytes, message_format: int = 0) -> bytes:
    """Mark a message, or each message of a batch, as a possible duplicate.

    Other properties and the body are not changed. A message that is marked already keeps its bytes.
    """
    message = Message(payload)
    if message_format != BATCH_FORMAT:
        return _mark_message(message)
    messages = message.data
    marked = [_mark_message(Message(encoded_message)) for encoded_message in messages]
    return payload if marked == messages else _reassemble(message, message.raw(_APPLICATION_PROPERTIES), data(*marked))


def _mark_message(message: Message) -> bytes:
    entries: list[bytes] = []
    for key, value_at, raw in message.entries(_APPLICATION_PROPERTIES):
        if key != POSSIBLE_DUPLICATE:
            entries.append(raw)
        elif decode(raw, value_at)[0] is True:
            return message.payload
    entries.append(_POSSIBLE_DUPLICATE_ENTRY)
    body = message.body_section
    return _reassemble(
        message,
        _compound(_APPLICATION_PROPERTIES, _MAP32, entries, 2 * len(entries)),
        message.raw(body) if body is not None else b"",
    )


def _reassemble(message: Message, application_properties: bytes, body: bytes) -> bytes:
    """Build a message with other application properties or another body; all other sections stay as they are."""
    pieces = [message.raw(section) for section in _SECTIONS_BEFORE_APPLICATION_PROPERTIES]
    pieces += (application_properties, body, message.raw(_FOOTER))
    return b"".join(pieces)


def check_parked_size(parked: bytes, max_bytes: int, message_format: int = 0) -> None:
    """Raise MessageCannotBeParked if a message is too large for a backlog queue, or later for its destination.

    When a parked message is restored, the aliases are removed and properties with the parked time are added. The check
    counts both, and may therefore refuse a message that is up to a few hundred bytes below the limit.
    """
    is_batch = message_format == BATCH_FORMAT
    if is_batch:
        _check_size(len(parked), max_bytes)
    for encoded_message in Message(parked).data if is_batch else [parked]:
        _check_size(len(encoded_message) + _TRACE_BYTES, max_bytes)
        size = properties_size(encoded_message) + _TRACE_BYTES
        if size > MAX_PROPERTIES_BYTES:
            raise MessageCannotBeParked(
                f"the message would have {size:,} bytes of properties when parked, {size - MAX_PROPERTIES_BYTES:,} more"
                f" than the limit ({MAX_PROPERTIES_BYTES:,}): use fewer or shorter properties"
            )


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise MessageCannotBeParked(
            f"the message would have {size:,} bytes when parked, {size - max_bytes:,} more than a backlog queue accepts"
            f" ({max_bytes:,}): make it smaller, or send it when the primary is back"
        )


def message_id_of(payload: bytes) -> object:
    """Return the message id of an encoded message."""
    return Message(payload).field(_PROPERTIES, 0)


def properties_size(payload: bytes) -> int:
    """Return the size in bytes of all properties and annotations of a message."""
    message = Message(payload)
    sections = (_PROPERTIES, _APPLICATION_PROPERTIES, _ANNOTATIONS)
    return sum(message.size_of(section) for section in sections)


# --- restoring --------------------------------------------------------------------------------------------------------


class RestoredMessage:
    """A parked message, restored for its destination."""

    __slots__ = ("is_marked", "path", "payload", "sequence_number", "session_id")

    def __init__(
        self, path: str, session_id: str | None, payload: bytes, sequence_number: int, *, is_marked: bool = False
    ) -> None:
        """Create a restored message. Called by `restore`."""
        self.path = path
        self.session_id = session_id
        self.payload = payload
        self.sequence_number = sequence_number
        """The sequence number in the backlog queue; 0 if unknown."""
        self.is_marked = is_marked
        """Whether `restore` added the possible-duplicate mark, which the message in the backlog queue does not have
        yet."""


class ExpiredMessage(NamedTuple):
    """A message whose time to live expired while it was parked; it is not delivered."""

    path: str
    parked_for_ms: int
    time_to_live_ms: int

    @property
    def description(self) -> str:
        """The dead-letter description of the message."""
        return (
            f"it was parked for {self.parked_for_ms / 1000:g} s; its time to live was {self.time_to_live_ms / 1000:g} s"
        )


def restore(
    payload: bytes,
    now_ms: int,
    *,
    deduct_parked_time: bool = False,
    lock_ms: int = DEFAULT_LOCK_MS,
    is_possible_duplicate: bool = False,
    is_dead_letter: bool = False,
) -> RestoredMessage | ExpiredMessage:
    """Restore a parked message to its original form. Raise ParkedMessageMalformed if that is not possible.

    A message leaves the backlog when the pump locks it, that is, `lock_ms` (the lock duration of the backlog queue)
    before the lock expires. The parked time is therefore the difference between two times on the secondary's clock, and
    the clocks of this machine and of the primary do not matter. `deduct_parked_time`: subtract the parked time from the
    time to live. A peeked message has no lock: `now_ms` is then the time at which the message left the backlog, and
    nothing is subtracted from the time to live.

    `is_possible_duplicate`: mark the message as a possible duplicate; an existing mark is always kept.
    `is_dead_letter`: the message comes from the dead-letter queue of a backlog queue, and its dead-letter reason is
    removed.
    """
    try:
        return _restore(
            payload,
            now_ms,
            deduct_parked_time=deduct_parked_time,
            lock_ms=lock_ms,
            is_possible_duplicate=is_possible_duplicate,
            is_dead_letter=is_dead_letter,
        )
    except DecodeError as error:
        raise ParkedMessageMalformed(f"it cannot be read: {error.description}") from error


def _restore(
    payload: bytes,
    now_ms: int,
    *,
    deduct_parked_time: bool,
    lock_ms: int,
    is_possible_duplicate: bool,
    is_dead_letter: bool,
) -> RestoredMessage | ExpiredMessage:
    header, annotations, properties, encoded_properties, body_and_footer = _sections_of(payload)
    kept, parked_ms, locked_until_ms, sequence_number = _read_annotations(annotations)
    application_properties, aliases, mark = _read_properties(
        encoded_properties, _REMOVED_FROM_DEAD_LETTERS if is_dead_letter else _TIME_PROPERTIES
    )
    path, session_id = _path_of(aliases.get(PATH, NULL)), _session_of(aliases.get(SESSION_ID, NULL))
    ttl_ms = _alias_ttl(aliases[TIME_TO_LIVE]) if TIME_TO_LIVE in aliases else None
    scheduled_ms = _alias_schedule(aliases[SCHEDULED_TIME_ALIAS]) if SCHEDULED_TIME_ALIAS in aliases else None
    left_backlog_ms = now_ms if locked_until_ms is None else locked_until_ms - lock_ms
    if parked_ms is None:
        parked_ms = left_backlog_ms
    parked_for_ms = max(0, left_backlog_ms - parked_ms)
    if ttl_ms is not None and deduct_parked_time and locked_until_ms is not None:
        lived_ms = left_backlog_ms - (parked_ms if scheduled_ms is None else max(parked_ms, scheduled_ms))
        if ttl_ms <= lived_ms:
            return ExpiredMessage(path, lived_ms, ttl_ms)
        ttl_ms -= max(0, lived_ms)
    if scheduled_ms is not None:
        kept.append(_SCHEDULED_TIME_ANNOTATION_KEY + aliases[SCHEDULED_TIME_ALIAS])
    application_properties.append(_PARKED_AT_KEY + _timestamp(parked_ms))
    application_properties.append(_PARKED_FOR_KEY + _TIMESPAN.pack(_TIMESPAN_PREFIX, parked_for_ms * TICKS_PER_MS))
    application_properties.append(_PARKED_FOR_MS_KEY + _LONG.pack(0x81, parked_for_ms))
    restored_header, was_delivered = _restored_header(header, ttl_ms)
    is_marked = False
    if is_possible_duplicate or was_delivered:
        is_marked = mark != _POSSIBLE_DUPLICATE_ENTRY
        application_properties.append(_POSSIBLE_DUPLICATE_ENTRY)
    elif mark:
        application_properties.append(mark)
    pieces = [restored_header]
    if kept:
        _add_compound(pieces, _ANNOTATIONS, _MAP32, kept, 2 * len(kept))
    if session_id is not None or ttl_ms is not None:
        session = aliases[SESSION_ID] if session_id is not None else NULL
        _add_restored_properties(pieces, properties, session, ttl_ms, left_backlog_ms)
    elif properties:
        pieces += (_PROPERTIES_PREFIX, properties)
    _add_compound(pieces, _APPLICATION_PROPERTIES, _MAP32, application_properties, 2 * len(application_properties))
    pieces.append(body_and_footer)
    return RestoredMessage(path, session_id, b"".join(pieces), sequence_number, is_marked=is_marked)


class ParkedSummary(NamedTuple):
    """The destination, session and state of a message that stays parked."""

    path: str
    session_id: str | None
    sequence_number: int
    is_deferred: bool


def summarize_parked(payload: bytes) -> ParkedSummary:
    """Read a parked message's destination without restoring it. Raise ParkedMessageMalformed if that fails."""
    try:
        _, annotations, _, encoded_properties, _ = _sections_of(payload)
        sequence_number, is_deferred = 0, False
        count, at = open_map(annotations, 0) if annotations else (0, 0)
        for _ in range(count // 2):
            item_at = skip(annotations, at)
            name = _NAME_BY_ENCODING.get(annotations[at:item_at])
            if name == SEQUENCE_NUMBER:
                sequence_number = long_at(annotations, item_at) or 0
            elif name == MESSAGE_STATE:
                is_deferred = decode(annotations, item_at)[0] == DEFERRED_STATE
            at = skip(annotations, item_at)
        _, aliases, _ = _read_properties(encoded_properties, _TIME_PROPERTIES)
    except DecodeError as error:
        raise ParkedMessageMalformed(f"it cannot be read: {error.description}") from error
    path, session_id = _path_of(aliases.get(PATH, NULL)), _session_of(aliases.get(SESSION_ID, NULL))
    return ParkedSummary(path, session_id, sequence_number, is_deferred)


def _sections_of(payload: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return header, annotations, properties and application properties without descriptors, and the remaining bytes.

    The remaining bytes are body and footer, unchanged. A missing section is empty.
    """
    layout = layout_of(payload)
    if layout is None:
        message = Message(payload)
        body = message.body_section
        body_and_footer = (message.raw(body) if body is not None else b"") + message.raw(_FOOTER)
        header, annotations = message.content(_HEADER), message.content(_ANNOTATIONS)
        return (
            header,
            annotations,
            message.content(_PROPERTIES),
            message.content(_APPLICATION_PROPERTIES),
            body_and_footer,
        )
    header_end, annotations_at, annotations_end, properties_at, properties_end, body_at = layout
    # In compiled code a slice that ends before it begins raises an error, so a missing section is not sliced.
    return (
        payload[3:header_end] if header_end else b"",
        payload[annotations_at + 3 : annotations_end] if annotations_end else b"",
        payload[properties_at + 3 : properties_end],
        payload[properties_end + 3 : body_at] if body_at > properties_end else b"",
        payload[body_at:],
    )


def _read_annotations(section: bytes) -> tuple[list[bytes], int | None, int | None, int]:
    """Return the application's annotations, the time of parking, the lock's expiry time, and the sequence number.

    Both times are according to the secondary's clock; a missing time is None.
    """
    kept: list[bytes] = []
    parked_ms: int | None = None
    locked_until_ms: int | None = None
    sequence_number = 0
    count, at = open_map(section, 0) if section else (0, 0)
    for _ in range(count // 2):
        item_at = skip(section, at)
        end = skip(section, item_at)
        name = _known_name_of(section[at:item_at])
        if name not in _SET_BY_BROKER:
            kept.append(section[at:end])
        elif name == ENQUEUED_TIME:
            parked_ms = timestamp_at(section, item_at)
        elif name == LOCKED_UNTIL:
            locked_until_ms = timestamp_at(section, item_at)
        elif name == SEQUENCE_NUMBER:
            sequence_number = long_at(section, item_at) or 0
        at = end
    return kept, parked_ms, locked_until_ms, sequence_number


def _read_properties(section: bytes, removed_names: frozenset[str]) -> tuple[list[bytes], dict[object, bytes], bytes]:
    """Return the properties to keep, the values of the aliases, and the possible-duplicate mark, all encoded.

    Properties in `removed_names` are dropped; all other properties are kept.
    """
    kept: list[bytes] = []
    aliases: dict[object, bytes] = {}
    mark = b""
    count, at = open_map(section, 0) if section else (0, 0)
    for _ in range(count // 2):
        item_at = skip(section, at)
        end = skip(section, item_at)
        name = _known_name_of(section[at:item_at])
        if name is None:  # most properties
            kept.append(section[at:end])
        elif name in ALIASES:
            aliases[name] = section[item_at:end]
        elif name == POSSIBLE_DUPLICATE:
            mark = section[at:end]
        elif name not in removed_names:
            kept.append(section[at:end])
        at = end
    return kept, aliases, mark


@lru_cache(maxsize=_CACHE_SIZE)
def _restored_header(section: bytes, ttl_ms: int | None) -> tuple[bytes, bool]:
    """Return the header without the backlog queue's delivery count, and whether that count was above 0.

    Most messages have the same header, so the result is cached.
    """
    fields = _fields_of(section, 0)[1] if section else []
    was_delivered = bool(decode(field_of(fields, DELIVERY_COUNT), 0)[0])
    clear_field(fields, DELIVERY_COUNT)
    if ttl_ms is not None:
        set_field(fields, TTL, encoded(UInt(min(ttl_ms, LARGEST_TTL_MS))))
    return _compound(_HEADER, _LIST32, fields, len(fields)) if fields else b"", was_delivered


def was_delivered(payload: bytes) -> bool:
    """Return whether a parked message has a delivery count above 0. A pump may have sent such a message already."""
    return bool(Message(payload).field(_HEADER, DELIVERY_COUNT))


def _add_restored_properties(
    pieces: list[bytes], section: bytes, session: bytes, ttl_ms: int | None, left_backlog_ms: int
) -> None:
    """Add the properties section with the message's original session and its expiry time."""
    expiry = ABSOLUTE_EXPIRY_TIME
    before, fields = _fields_of(section, expiry) if section else (expiry * NULL, [])
    if ttl_ms is not None:
        expires, created = _expiry_and_creation(left_backlog_ms, ttl_ms)
        set_field(fields, CREATION_TIME - expiry, created)
        set_field(fields, 0, expires)
    if session != NULL:
        set_field(fields, GROUP_ID - expiry, session)
    count = expiry + len(fields)
    fields.insert(0, before)
    _add_compound(pieces, _PROPERTIES, _LIST32, fields, count)


@lru_cache(maxsize=_CACHE_SIZE)
def _expiry_and_creation(left_backlog_ms: int, ttl_ms: int) -> tuple[bytes, bytes]:
    """Return the absolute expiry time and the creation time, cached for messages that leave the backlog together.

    Only the difference between the two times matters: it expresses a time to live that exceeds the maximum of a header
    (49.7 days), and no broker compares either time with its own clock. Both times therefore come from the secondary's
    clock, and the creation time is when the message left the backlog.
    """
    return _timestamp(left_backlog_ms + ttl_ms), _timestamp(left_backlog_ms)


def _fields_of(section: bytes, first: int) -> tuple[bytes, list[bytes]]:
    """Return the fields of a list section: fields before index `first` in one piece, later fields one by one."""
    count, at = open_list(section, 0)
    start = at
    for _ in range(min(count, first)):
        at = skip(section, at)
    before = section[start:at] + max(0, first - count) * NULL
    fields: list[bytes] = []
    for _ in range(first, count):
        start, at = at, skip(section, at)
        fields.append(section[start:at])
    return before, fields


@lru_cache(maxsize=_CACHE_SIZE)
def _path_of(item: bytes) -> str:
    path = decode(item, 0)[0]
    if path is None:
        raise ParkedMessageMalformed(f"it has no property {PATH}: its destination is unknown")
    if type(path) is not str or not path.strip("/"):
        raise ParkedMessageMalformed(f"its property {PATH} is {path!r:.80}, not the path of an entity")
    return path


def _session_of(item: bytes) -> str | None:
    if item == NULL:
        return None
    session_id = text_at(item, 0)
    if session_id is None:
        raise ParkedMessageMalformed(f"its property {SESSION_ID} is {decode(item, 0)[0]!r:.80}, not a string")
    return session_id


@lru_cache(maxsize=_CACHE_SIZE)
def _alias_ttl(item: bytes) -> int | None:
    """Return a time to live in milliseconds, from a .NET TimeSpan or a plain number of milliseconds."""
    ttl = decode(item, 0)[0]
    if ttl is None:
        return None
    if isinstance(ttl, Described) and ttl.descriptor == TIMESPAN and type(ttl.value) is int and ttl.value > 0:
        return max(1, ttl.value // TICKS_PER_MS)
    if type(ttl) is int and ttl > 0:
        return ttl
    raise ParkedMessageMalformed(f"its property {TIME_TO_LIVE} is {ttl!r:.80}, not a duration")


def _alias_schedule(item: bytes) -> int | None:
    """Return the scheduled time in milliseconds since 1970, or None."""
    scheduled = decode(item, 0)[0]
    if scheduled is not None and type(scheduled) is not Timestamp:
        raise ParkedMessageMalformed(f"its property {SCHEDULED_TIME_ALIAS} is {scheduled!r:.80}, not a time")
    return None if scheduled is None else int(scheduled)


# --- shared -----------------------------------------------------------------------------------------------------------


def _ttl_of(header: list[bytes], properties: list[bytes]) -> int | None:
    """Return a message's time to live in milliseconds, or None.

    The header holds up to 49.7 days. A longer time to live is the difference between expiry and creation time.
    """
    ttl = decode(field_of(header, TTL), 0)[0]
    expires = decode(field_of(properties, ABSOLUTE_EXPIRY_TIME), 0)[0]
    created = decode(field_of(properties, CREATION_TIME), 0)[0]
    if isinstance(expires, int) and isinstance(created, int) and (ttl is None or ttl == LARGEST_TTL_MS):
        return max(1, expires - created)
    return ttl if isinstance(ttl, int) else None


def _assemble(
    message: Message,
    header: list[bytes],
    annotations: list[bytes],
    properties: bytes,
    application_properties: list[bytes],
) -> bytes:
    """Build a message with new sections and its original body."""
    pieces = []
    if header:
        pieces.append(_compound(_HEADER, _LIST32, header, len(header)))
    if annotations:
        pieces.append(_compound(_ANNOTATIONS, _MAP32, annotations, 2 * len(annotations)))
    pieces.append(properties)
    pieces.append(_compound(_APPLICATION_PROPERTIES, _MAP32, application_properties, 2 * len(application_properties)))
    body = message.body_section
    if body is not None:
        pieces.append(message.raw(body))
    pieces.append(message.raw(_FOOTER))
    return b"".join(pieces)


def _compound(section: int, constructor: int, elements: list[bytes], count: int) -> bytes:
    pieces: list[bytes] = []
    _add_compound(pieces, section, constructor, elements, count)
    return b"".join(pieces)


def _add_compound(pieces: list[bytes], section: int, constructor: int, elements: list[bytes], count: int) -> None:
    """Append a list or map section to `pieces`, so that the whole message is joined only once."""
    size = 4
    for element in elements:
        size += len(element)
    pieces.append(_section_prefix(section, constructor, size, count))
    pieces += elements


@lru_cache(maxsize=_CACHE_SIZE)
def _section_prefix(section: int, constructor: int, size: int, count: int) -> bytes:
    """Return the first bytes of a section."""
    return _COMPOUND.pack(0x00, 0x53, section, constructor, size, count)


def field_of(fields: list[bytes], index: int) -> bytes:
    """Return an encoded field of a list section; null if the list is shorter."""
    return fields[index] if index < len(fields) else NULL


def set_field(fields: list[bytes], index: int, item: bytes) -> None:
    """Set a field of a list section, padding with nulls if the list is shorter."""
    if index >= len(fields):
        fields += [NULL] * (index + 1 - len(fields))
    fields[index] = item


def clear_field(fields: list[bytes], index: int) -> None:
    """Set a field of a list section to null, if the list has that field."""
    if index < len(fields):
        fields[index] = NULL


def encoded(item: object) -> bytes:
    """Return the AMQP encoding of a value."""
    out = bytearray()
    write(out, item)
    return bytes(out)


def _timestamp(at_ms: int) -> bytes:
    return _TIMESTAMP.pack(0x83, at_ms)


def _known_name_of(key: bytes) -> object:
    """Return the name of a key that this module handles. Short strings and symbols are looked up by their bytes."""
    name = _NAME_BY_ENCODING.get(key)
    return decode(key, 0)[0] if name is None and key[0] not in _SHORT_STRING_CONSTRUCTORS else name


_PATH_KEY: Final = encoded(PATH)
_SESSION_ID_KEY: Final = encoded(SESSION_ID)
_TIME_TO_LIVE_KEY: Final = encoded(TIME_TO_LIVE)
_SCHEDULED_TIME_KEY: Final = encoded(SCHEDULED_TIME_ALIAS)
_POSSIBLE_DUPLICATE_ENTRY: Final = encoded(POSSIBLE_DUPLICATE) + encoded(True)  # noqa: FBT003  # a value, not a switch
_PARKED_AT_KEY: Final = encoded(PARKED_AT)
_PARKED_FOR_KEY: Final = encoded(PARKED_FOR)
_PARKED_FOR_MS_KEY: Final = encoded(PARKED_FOR_MS)
_SCHEDULED_TIME_ANNOTATION_KEY: Final = encoded(Symbol(SCHEDULED_TIME))
_TIMESPAN_PREFIX: Final = b"\x00" + encoded(TIMESPAN) + b"\x81"
_TIMESPAN: Final = struct.Struct(f">{len(_TIMESPAN_PREFIX)}sq")
_TRACE_KEYS: Final = _POSSIBLE_DUPLICATE_ENTRY + _PARKED_AT_KEY + _PARKED_FOR_KEY + _PARKED_FOR_MS_KEY
_TRACE_BYTES: Final = len(_TRACE_KEYS) + _TIMESTAMP.size + _TIMESPAN.size + _LONG.size
"""The bytes that restoring adds to a message."""
_PROPERTIES_PREFIX: Final = bytes((0x00, 0x53, _PROPERTIES))
_KNOWN_NAMES: Final = (*ALIASES, *_TRACE_PROPERTIES, *_DEAD_LETTER_REASONS, *_SET_BY_BROKER, SCHEDULED_TIME)
_NAME_BY_ENCODING: Final[dict[bytes, object]] = {
    **{encoded(name): name for name in _KNOWN_NAMES},
    **{encoded(Symbol(name)): name for name in _KNOWN_NAMES},
}
_SHORT_STRING_CONSTRUCTORS: Final = frozenset((0xA1, 0xA3))
