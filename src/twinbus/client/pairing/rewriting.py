"""Parked messages: what is changed in a message for the backlog, and changed back on its way to the primary.

In a backlog queue every message is alike: it belongs to no session, does not expire and is not scheduled. What it was
is kept in properties of its own (`x-ms-...`, the *aliases*), its destination among them. Everything else, the body and
the types of all properties included, stays as the application sent it, byte for byte.

Owns: both directions, and what is wrong with a message that cannot take one of them. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.amqp.encode import write
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Header, Message, Properties, Section, build, data
from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.client.pairing.errors import MessageCannotBeParked, ParkedMessageMalformed, ReservedPropertyName
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.times import TICKS_PER_MS, TIMESPAN, timespan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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

MAX_PROPERTIES_BYTES: Final = 65_536
_LARGEST_TTL_MS: Final = 2**32 - 1
_SCHEDULE_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
_ENQUEUED_TIME: Final = "x-opt-enqueued-time"
_SET_BY_BROKER: Final = frozenset(
    {
        _ENQUEUED_TIME,
        "x-opt-sequence-number",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    }
)
_MAP32: Final = 0xD1
_TTL: Final = 2
_EXPIRY: Final = 8
_CREATED: Final = 9
_GROUP_ID: Final = 10


def check_names(properties: Mapping[str, object]) -> None:
    """ReservedPropertyName if an application's property has the name of an alias (Q07)."""
    taken = ALIASES & properties.keys()
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
    header, properties = message.header, message.properties or Properties()
    added: dict[str, object] = {PATH: path}
    if is_possible_duplicate:
        added[POSSIBLE_DUPLICATE] = True
    if properties.group_id is not None:
        added[SESSION_ID] = properties.group_id
        properties.group_id = None
    ttl_ms = _ttl_of(header, properties)
    if ttl_ms is not None:
        added[TIME_TO_LIVE] = timespan(ttl_ms)
        properties.absolute_expiry_time = properties.creation_time = None
        if header is not None:
            header.ttl = None
    annotations, scheduled = [], None
    for key, raw in message.pairs(Section.MESSAGE_ANNOTATIONS):
        if key == _SCHEDULE_ANNOTATION:
            scheduled = message.lookup(Section.MESSAGE_ANNOTATIONS, _SCHEDULE_ANNOTATION)
        else:
            annotations.append(raw)
    if isinstance(scheduled, Timestamp):
        added[SCHEDULED_TIME] = scheduled
    own = [raw for key, raw in message.pairs(Section.APPLICATION_PROPERTIES) if key not in _TOLD]
    return _assemble(message, header, annotations, properties, own, added)


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
    return Message(payload).field(Section.PROPERTIES, 0)


def properties_size(payload: bytes) -> int:
    """Bytes of all properties and annotations of a message."""
    message = Message(payload)
    sections = (Section.PROPERTIES, Section.APPLICATION_PROPERTIES, Section.MESSAGE_ANNOTATIONS)
    return sum(message.size_of(section) for section in sections)


# --- and back ---------------------------------------------------------------------------------------------------------


class Restored(NamedTuple):
    """A message as it goes to its destination."""

    path: str
    session_id: str | None
    payload: bytes


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
    found: dict[str, object] = {}
    for key, raw in message.pairs(Section.APPLICATION_PROPERTIES):
        if key in ALIASES:
            assert isinstance(key, str)
            found[key] = message.lookup(Section.APPLICATION_PROPERTIES, key)
        elif key != PARKED_AT and key != PARKED_FOR:  # noqa: PLR1714  # once for every property of every message
            own.append(raw)
    path = _path_of(found)
    session_id = _session_of(found)
    ttl_ms = _alias_ttl(found)
    parked_at = message.lookup(Section.MESSAGE_ANNOTATIONS, _ENQUEUED_TIME)
    parked_ms = int(parked_at) if isinstance(parked_at, int) else now_ms
    added: dict[str, object] = {
        PARKED_AT: Timestamp(parked_ms),
        PARKED_FOR: timespan(max(0, now_ms - parked_ms)),
    }
    if ttl_ms is not None and deduct:
        left_ms = ttl_ms - max(0, now_ms - parked_ms)
        if left_ms <= 0:
            return Expired(path, now_ms - parked_ms, ttl_ms)
        ttl_ms = left_ms
    header, properties = message.header or Header(), message.properties or Properties()
    header.delivery_count = 0
    header.ttl = None if ttl_ms is None else min(ttl_ms, _LARGEST_TTL_MS)
    if ttl_ms is not None:
        properties.creation_time, properties.absolute_expiry_time = Timestamp(now_ms), Timestamp(now_ms + ttl_ms)
    properties.group_id = session_id
    annotations = [raw for key, raw in message.pairs(Section.MESSAGE_ANNOTATIONS) if key not in _SET_BY_BROKER]
    scheduled = _alias_schedule(found)
    if scheduled is not None:
        annotations.append(_pair(Symbol(_SCHEDULE_ANNOTATION), scheduled))
    return Restored(path, session_id, _assemble(message, header, annotations, properties, own, added))


def _path_of(found: Mapping[str, object]) -> str:
    path = found.get(PATH)
    if path is None:
        raise ParkedMessageMalformed(f"it has no property {PATH}: nobody knows where it belongs")
    if type(path) is not str or not path.strip("/"):
        raise ParkedMessageMalformed(f"its property {PATH} is {path!r:.80}, not the path of an entity")
    return path


def _session_of(found: Mapping[str, object]) -> str | None:
    session_id = found.get(SESSION_ID)
    if session_id is not None and type(session_id) is not str:
        raise ParkedMessageMalformed(f"its property {SESSION_ID} is {session_id!r:.80}, not a text")
    return session_id


def _alias_ttl(found: Mapping[str, object]) -> int | None:
    """Milliseconds: .NET's duration, or a plain number of them (Q06)."""
    ttl = found.get(TIME_TO_LIVE)
    if ttl is None:
        return None
    if isinstance(ttl, Described) and ttl.descriptor == TIMESPAN and type(ttl.value) is int and ttl.value > 0:
        return max(1, ttl.value // TICKS_PER_MS)
    if type(ttl) is int and ttl > 0:
        return ttl
    raise ParkedMessageMalformed(f"its property {TIME_TO_LIVE} is {ttl!r:.80}, not a duration")


def _alias_schedule(found: Mapping[str, object]) -> Timestamp | None:
    scheduled = found.get(SCHEDULED_TIME)
    if scheduled is not None and type(scheduled) is not Timestamp:
        raise ParkedMessageMalformed(f"its property {SCHEDULED_TIME} is {scheduled!r:.80}, not a time")
    return scheduled


# --- both ways --------------------------------------------------------------------------------------------------------


def _ttl_of(header: Header | None, properties: Properties) -> int | None:
    """How long a message lives, in milliseconds: as the header says, or, beyond its 49.7 days, its end."""
    ttl = header.ttl if header is not None else None
    ends, made = properties.absolute_expiry_time, properties.creation_time
    if ends is not None and made is not None and (ttl is None or ttl == _LARGEST_TTL_MS):
        return max(1, ends - made)
    return ttl


def _assemble(
    message: Message,
    header: Header | None,
    annotations: list[bytes],
    properties: Properties,
    own: list[bytes],
    added: Mapping[str, object],
) -> bytes:
    """A message with other properties than it had, and the body it had."""
    out = bytearray()
    if header is not None:
        header.write(out)
    if annotations:
        _write_map(out, Section.MESSAGE_ANNOTATIONS, annotations)
    properties.write(out)
    _write_map(out, Section.APPLICATION_PROPERTIES, [*own, *(_pair(name, value) for name, value in added.items())])
    body = message.body_section
    if body is not None:
        out += message.raw(body)
    out += message.raw(Section.FOOTER)
    return bytes(out)


def _write_map(out: bytearray, section: Section, pairs: Iterable[bytes]) -> None:
    pairs = list(pairs)
    content = b"".join(pairs)
    out += struct.pack(">BBBBII", 0x00, 0x53, section, _MAP32, len(content) + 4, 2 * len(pairs))
    out += content


def _pair(name: str, value: object) -> bytes:
    out = bytearray()
    write(out, name)
    write(out, value)
    return bytes(out)
