"""The keys of a fragment's records in its store.

A key starts with the entity id and the fragment number, so that all records of an entity form one range of keys, as do
all records of a fragment. The area, the kind of record and the sort key for that kind follow:

    LOG     ACTIVE, DEFERRED, SCHEDULED    sequence number                 messages
            SHARED_BODY                    body number                     bare messages shared by several records
    INDEX   COUNTERS                                                       sequence numbers and counters
            EXPIRY, DUE                    time, sequence number           when messages expire or become due
            SESSION_MESSAGES               session, sequence number        active messages of a session
            SESSION_STATE                  session                         session states
            DUPLICATE_IDS                  generation, digest of an id     message ids for duplicate detection
            SESSION_INACTIVE               session, sequence number        deferred and scheduled messages of a session
            BODY_CHECK                     body number                     shared bodies that may be unreferenced
            FORWARDED_UP_TO                key prefix of a source          last sequence number forwarded from a source
            PURGED_UP_TO                                                   last sequence number of a purge
            MAYBE_DELIVERED                                                messages that exclusive receivers may hold
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

_PREFIX: Final = Struct(">IHB")
_FRAGMENT: Final = Struct(">H")
_ENTITY: Final = Struct(">I")
_SEQUENCE: Final = Struct(">Q")
_TIME_ENTRY: Final = Struct(">QQ")
_SESSION_SIZE: Final = Struct(">H")
PREFIX_BYTES: Final = _PREFIX.size
RECORD_KEY_BYTES: Final = _PREFIX.size + 1 + _SEQUENCE.size
KIND_BYTES: Final = 1

ACTIVE: Final = b"\x00"
DEFERRED: Final = b"\x01"
SCHEDULED: Final = b"\x02"
SHARED_BODY: Final = b"\x03"

COUNTERS: Final = b"\x00"
EXPIRY: Final = b"\x01"
DUE: Final = b"\x02"
SESSION_MESSAGES: Final = b"\x03"
SESSION_STATE: Final = b"\x04"
DUPLICATE_IDS: Final = b"\x05"
SESSION_INACTIVE: Final = b"\x06"
BODY_CHECK: Final = b"\x07"
FORWARDED_UP_TO: Final = b"\x08"
PURGED_UP_TO: Final = b"\x09"
MAYBE_DELIVERED: Final = b"\x0a"

pack_sequence: Final = _SEQUENCE.pack
pack_time_entry: Final = _TIME_ENTRY.pack
LAST_SEQUENCE: Final = b"\xff" * 8


class Area(IntEnum):
    """One of the message areas of a fragment; each has its own sequence numbers, counters and order."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER = 2
    """Messages sent via the entity to another entity that the sender named."""
    TRANSFER_DEAD_LETTER = 3
    """Messages that could not be forwarded."""


def area_prefix(entity_id: int, fragment: int, area: Area) -> bytes:
    """Return the prefix of all keys of an area."""
    return _PREFIX.pack(entity_id, fragment, area)


def fragment_of_prefix(key_prefix: bytes) -> int:
    """Return the fragment number in a key prefix."""
    number: int = _FRAGMENT.unpack_from(key_prefix, _ENTITY.size)[0]
    return number


def is_forwarded_to_itself(source_prefix: bytes, destination_prefix: bytes) -> bool:
    """Return whether an entity forwards messages or dead letters to itself, given the key prefixes of both ends."""
    entity_id, _, area = _PREFIX.unpack(source_prefix)
    return bool(entity_id == _ENTITY.unpack_from(destination_prefix)[0] and area in (Area.MAIN, Area.DEAD_LETTER))


def sequence_of_key(key: bytes) -> int:
    """Return the sequence number at the end of a key."""
    number: int = _SEQUENCE.unpack_from(key, len(key) - 8)[0]
    return number


def time_entry_of_key(key: bytes) -> tuple[int, int]:
    """Return the time and the sequence number at the end of an EXPIRY or DUE key."""
    time_entry: tuple[int, int] = _TIME_ENTRY.unpack_from(key, len(key) - 16)
    return time_entry


def pack_session_id(session_id: bytes) -> bytes:
    """Return a session id as it appears in a key: with its length first, so that no id is a prefix of another."""
    return _SESSION_SIZE.pack(len(session_id)) + session_id


def session_id_of_key(key: bytes) -> bytes:
    """Return the session id in a SESSION_MESSAGES, SESSION_INACTIVE or SESSION_STATE key."""
    at = PREFIX_BYTES + KIND_BYTES
    (size,) = _SESSION_SIZE.unpack_from(key, at)
    return key[at + 2 : at + 2 + size]


def kind_end(key_prefix: bytes, kind: bytes) -> bytes:
    """Return the first key after all records of a kind."""
    return key_prefix + bytes((kind[0] + 1,))


def entity_key_range(entity_id: int) -> tuple[bytes, bytes]:
    """Return the start and the end (exclusive) of an entity's keys, in both tables."""
    return _ENTITY.pack(entity_id), _ENTITY.pack(entity_id + 1)
