"""Parked messages: what is changed in a message for the backlog, and changed back on its way to the primary.

In a backlog queue every message is alike: it belongs to no session, does not expire and is not scheduled. What it was
is kept in properties of its own (`x-ms-...`, the *aliases*), its destination among them. Everything else, the body and
the types of all properties included, stays as the application sent it, byte for byte.

Owns: both directions, and what is wrong with a message that cannot take one of them. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.amqp.decode import decode
from twinbus.amqp.encode import write
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Properties, Section, build, data
from twinbus.amqp.types import Described, Symbol, Timestamp, UInt
from twinbus.client.pairing.errors import MessageCannotBeParked, ParkedMessageMalformed, ReservedPropertyName
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.times import TICKS_PER_MS, TIMESPAN, timespan

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
ALIASES: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME})
"""Names that no property of an application can have: it would be taken for what was parked."""
POSSIBLE_DUPLICATE: Final = "x-ms-possible-duplicate"
PARKED_AT: Final = "x-ms-parked-at"
PARKED_FOR: Final = "x-ms-parked-for"
_TOLD: Final = frozenset({POSSIBLE_DUPLICATE, PARKED_AT, PARKED_FOR})
"""What a message tells of its way; it keeps them at its destination. Parked again, it gets new ones."""

_HEADER: Final = Section.HEADER
_ANNOTATIONS: Final = Section.MESSAGE_ANNOTATIONS
_PROPERTIES: Final = Section.PROPERTIES
_OWN: Final = Section.APPLICATION_PROPERTIES
_FOOTER: Final = Section.FOOTER

MAX_PROPERTIES_BYTES: Final = 65_536
_LARGEST_TTL_MS: Final = 2**32 - 1
_SCHEDULE_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
_ENQUEUED_TIME: Final = "x-opt-enqueued-time"
_SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
_SET_BY_BROKER: Final = frozenset(
    {
        _ENQUEUED_TIME,
        _SEQUENCE_NUMBER,
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    }
)
_TOLD_AT_LAST: Final = frozenset({PARKED_AT, PARKED_FOR})
_COMPOUND: Final = struct.Struct(">BBBBII")
_TIMESTAMP: Final = struct.Struct(">Bq")
_LIST32: Final = 0xD0
_MAP32: Final = 0xD1
NULL: Final = b"\x40"
_TTL: Final = 2
_DELIVERY_COUNT: Final = 4
_EXPIRY: Final = 8
_CREATED: Final = 9
_GROUP_ID: Final = 10


def check_names(properties: Mapping[str, object]) -> None:
    """ReservedPropertyName if an application's property has the name of an alias (Q07)."""
    taken = [name for name in properties if name in ALIASES]
    if taken:
        raise ReservedPropertyName(
            f"a property is named {min(taken)!r}: that name is kept for parked messages; call it something else"
        )


# --- there ------------------------------------------------------------------------------------------------------------


def park(payload: bytes, message_format: int, path: str, *, is_possible_duplicate: bool) -> bytes:
    """What goes to a backlog queue instead of a message, or of a batch, for `path`."""
    if message_format != BATCH_FORMAT:
        return _park(payload, path, is_possible_duplicate=is_possible_duplicate)
    batch = Message(payload)
    properties = batch.properties or Properties()
    parked = [_park(one, path, is_possible_duplicate=is_possible_duplicate) for one in batch.data]
    return build(properties=Properties(message_id=properties.message_id), body=data(*parked))


def _park(payload: bytes, path: str, *, is_possible_duplicate: bool) -> bytes:
    message = Message(payload)
    header, properties = message.fields(_HEADER), message.fields(_PROPERTIES)
    added = [_PATH + encoded(path)]
    if is_possible_duplicate:
        added.append(_POSSIBLE_DUPLICATE)
    session_id = field_of(properties, _GROUP_ID)
    if session_id != NULL:
        added.append(_SESSION_ID + session_id)
        properties[_GROUP_ID] = NULL
    ttl_ms = _ttl_of(header, properties)
    if ttl_ms is not None:
        added.append(_TIME_TO_LIVE + encoded(timespan(ttl_ms)))
        clear(header, _TTL)
        clear(properties, _EXPIRY)
        clear(properties, _CREATED)
    annotations = []
    for key, value_at, raw in message.entries(_ANNOTATIONS):
        if key != _SCHEDULE_ANNOTATION:
            annotations.append(raw)
        elif type(decode(raw, value_at)[0]) is Timestamp:
            added.append(_SCHEDULED_TIME + raw[value_at:])
    own = [raw for key, _, raw in message.entries(_OWN) if key not in _TOLD]
    section = _compound(_PROPERTIES, _LIST32, properties, len(properties))
    return _assemble(message, header, annotations, section, own + added)


def check_parked_size(parked: bytes, most: int, message_format: int = 0) -> None:
    """MessageCannotBeParked, naming the excess, if no backlog queue can take it (Q08)."""
    if len(parked) > most:
        raise MessageCannotBeParked(
            f"parked, the message has {len(parked):,} bytes, {len(parked) - most:,} more than a backlog queue takes"
            f" ({most:,}): it was not sent; make it smaller by as much, or send it when the primary is back"
        )
    messages = Message(parked).data if message_format == BATCH_FORMAT else [parked]
    for one in messages:
        size = properties_size(one)
        if size > MAX_PROPERTIES_BYTES:
            raise MessageCannotBeParked(
                f"parked, the message has {size:,} bytes of properties, {size - MAX_PROPERTIES_BYTES:,} more than there"
                f" can be ({MAX_PROPERTIES_BYTES:,}): it was not sent"
            )


def message_id_of(payload: bytes) -> object:
    """The id of a message."""
    return Message(payload).field(_PROPERTIES, 0)


def properties_size(payload: bytes) -> int:
    """Bytes of all properties and annotations of a message."""
    message = Message(payload)
    sections = (_PROPERTIES, _OWN, _ANNOTATIONS)
    return sum(message.size_of(section) for section in sections)


# --- and back ---------------------------------------------------------------------------------------------------------


class Restored(NamedTuple):
    """A message as it goes to its destination."""

    path: str
    session_id: str | None
    payload: bytes
    sequence_number: int
    """In its backlog queue; 0 where that did not say."""


class Expired(NamedTuple):
    """A message whose time to live was over while it was parked: it goes nowhere any more."""

    path: str
    parked_for_ms: int
    time_to_live_ms: int

    @property
    def text(self) -> str:
        """What its dead letter says."""
        return f"it was parked for {self.parked_for_ms / 1000:g} s and could live {self.time_to_live_ms / 1000:g} s"


def restore(payload: bytes, now_ms: int, *, deduct: bool = False) -> Restored | Expired:
    """What a parked message was. ParkedMessageMalformed says why it cannot be told.

    `deduct`: the time for which it was parked is taken off its time to live.
    """
    try:
        return _restore(Message(payload), now_ms, deduct=deduct)
    except DecodeError as error:
        raise ParkedMessageMalformed(f"it cannot be read: {error.description}") from error


def _restore(message: Message, now_ms: int, *, deduct: bool) -> Restored | Expired:
    own: list[bytes] = []
    found: dict[object, object] = {}
    for key, item in message.encoded_pairs(_OWN):
        name = _name_of(key)
        if name in ALIASES:
            found[name] = decode(item, 0)[0]
        elif name not in _TOLD_AT_LAST:
            own.append(key + item)
    annotations, parked_ms, sequence_number = _read_annotations(message, now_ms)
    path, session_id, ttl_ms = _path_of(found), _session_of(found), _alias_ttl(found)
    parked_for_ms = max(0, now_ms - parked_ms)
    if ttl_ms is not None and deduct:
        if ttl_ms <= parked_for_ms:
            return Expired(path, parked_for_ms, ttl_ms)
        ttl_ms -= parked_for_ms
    header = message.fields(_HEADER)
    clear(header, _DELIVERY_COUNT)
    if ttl_ms is not None:
        set_field(header, _TTL, encoded(UInt(min(ttl_ms, _LARGEST_TTL_MS))))
    properties = _restored_properties(message, session_id, ttl_ms, now_ms)
    scheduled = _alias_schedule(found)
    if scheduled is not None:
        annotations.append(_SCHEDULE_NAME + encoded(scheduled))
    own.append(_PARKED_AT + _timestamp(parked_ms))
    own.append(_PARKED_FOR + encoded(timespan(parked_for_ms)))
    return Restored(path, session_id, _assemble(message, header, annotations, properties, own), sequence_number)


def _restored_properties(message: Message, session_id: str | None, ttl_ms: int | None, now_ms: int) -> bytes:
    """The section as it came, if it had neither session nor end; else with these."""
    if session_id is None and ttl_ms is None:
        return message.raw(_PROPERTIES)
    properties = message.fields(_PROPERTIES)
    if ttl_ms is not None:
        set_field(properties, _CREATED, _timestamp(now_ms))
        set_field(properties, _EXPIRY, _timestamp(now_ms + ttl_ms))
    if session_id is not None:
        set_field(properties, _GROUP_ID, encoded(session_id))
    return _compound(_PROPERTIES, _LIST32, properties, len(properties))


def _read_annotations(message: Message, now_ms: int) -> tuple[list[bytes], int, int]:
    """Those that the application set; when the message was parked; its number in the backlog queue."""
    kept, parked_ms, sequence_number = [], now_ms, 0
    for key, item in message.encoded_pairs(_ANNOTATIONS):
        name = _name_of(key)
        if name not in _SET_BY_BROKER:
            kept.append(key + item)
        elif name == _ENQUEUED_TIME:
            enqueued = decode(item, 0)[0]
            parked_ms = int(enqueued) if isinstance(enqueued, int) else now_ms
        elif name == _SEQUENCE_NUMBER:
            number = decode(item, 0)[0]
            sequence_number = int(number) if isinstance(number, int) else 0
    return kept, parked_ms, sequence_number


def _path_of(found: Mapping[object, object]) -> str:
    path = found.get(PATH)
    if path is None:
        raise ParkedMessageMalformed(f"it has no property {PATH}: nobody knows where it belongs")
    if type(path) is not str or not path.strip("/"):
        raise ParkedMessageMalformed(f"its property {PATH} is {path!r:.80}, not the path of an entity")
    return path


def _session_of(found: Mapping[object, object]) -> str | None:
    session_id = found.get(SESSION_ID)
    if session_id is not None and type(session_id) is not str:
        raise ParkedMessageMalformed(f"its property {SESSION_ID} is {session_id!r:.80}, not a text")
    return session_id


def _alias_ttl(found: Mapping[object, object]) -> int | None:
    """Milliseconds: .NET's duration, or a plain number of them (Q06)."""
    ttl = found.get(TIME_TO_LIVE)
    if ttl is None:
        return None
    if isinstance(ttl, Described) and ttl.descriptor == TIMESPAN and type(ttl.value) is int and ttl.value > 0:
        return max(1, ttl.value // TICKS_PER_MS)
    if type(ttl) is int and ttl > 0:
        return ttl
    raise ParkedMessageMalformed(f"its property {TIME_TO_LIVE} is {ttl!r:.80}, not a duration")


def _alias_schedule(found: Mapping[object, object]) -> Timestamp | None:
    scheduled = found.get(SCHEDULED_TIME)
    if scheduled is not None and type(scheduled) is not Timestamp:
        raise ParkedMessageMalformed(f"its property {SCHEDULED_TIME} is {scheduled!r:.80}, not a time")
    return scheduled


# --- both ways --------------------------------------------------------------------------------------------------------


def _ttl_of(header: list[bytes], properties: list[bytes]) -> int | None:
    """How long a message lives, in milliseconds: as the header says, or, beyond its 49.7 days, its end."""
    ttl = decode(field_of(header, _TTL), 0)[0]
    ends, made = decode(field_of(properties, _EXPIRY), 0)[0], decode(field_of(properties, _CREATED), 0)[0]
    if isinstance(ends, int) and isinstance(made, int) and (ttl is None or ttl == _LARGEST_TTL_MS):
        return max(1, ends - made)
    return ttl if isinstance(ttl, int) else None


def _assemble(
    message: Message,
    header: list[bytes],
    annotations: list[bytes],
    properties: bytes,
    own: list[bytes],
) -> bytes:
    """A message with other properties than it had, and the body it had."""
    pieces = []
    if header:
        pieces.append(_compound(_HEADER, _LIST32, header, len(header)))
    if annotations:
        pieces.append(_compound(_ANNOTATIONS, _MAP32, annotations, 2 * len(annotations)))
    pieces.append(properties)
    pieces.append(_compound(_OWN, _MAP32, own, 2 * len(own)))
    body = message.body_section
    if body is not None:
        pieces.append(message.raw(body))
    pieces.append(message.raw(_FOOTER))
    return b"".join(pieces)


def _compound(section: int, constructor: int, elements: list[bytes], count: int) -> bytes:
    content = b"".join(elements)
    return _COMPOUND.pack(0x00, 0x53, section, constructor, len(content) + 4, count) + content


def field_of(fields: list[bytes], index: int) -> bytes:
    """One field of a section that is a list, encoded; null where there is none."""
    return fields[index] if index < len(fields) else NULL


def set_field(fields: list[bytes], index: int, item: bytes) -> None:
    """Set one, with nulls before it where the list is shorter."""
    fields += [NULL] * (index + 1 - len(fields))
    fields[index] = item


def clear(fields: list[bytes], index: int) -> None:
    """Have none."""
    if index < len(fields):
        fields[index] = NULL


def encoded(item: object) -> bytes:
    """A value as AMQP writes it."""
    out = bytearray()
    write(out, item)
    return bytes(out)


def _timestamp(at_ms: int) -> bytes:
    return _TIMESTAMP.pack(0x83, at_ms)


def _name_of(key: bytes) -> object:
    """What a key says. Those that we look for are known by their bytes, as everybody writes them."""
    known = _NAMES.get(key)
    return decode(key, 0)[0] if known is None else known


_PATH: Final = encoded(PATH)
_SESSION_ID: Final = encoded(SESSION_ID)
_TIME_TO_LIVE: Final = encoded(TIME_TO_LIVE)
_SCHEDULED_TIME: Final = encoded(SCHEDULED_TIME)
_POSSIBLE_DUPLICATE: Final = encoded(POSSIBLE_DUPLICATE) + encoded(True)  # noqa: FBT003  # a value, not a switch
_PARKED_AT: Final = encoded(PARKED_AT)
_PARKED_FOR: Final = encoded(PARKED_FOR)
_SCHEDULE_NAME: Final = encoded(Symbol(_SCHEDULE_ANNOTATION))
_NAMES: Final = {
    **{encoded(name): name for name in (*ALIASES, *_TOLD)},
    **{encoded(Symbol(name)): name for name in (*_SET_BY_BROKER, _SCHEDULE_ANNOTATION)},
}
