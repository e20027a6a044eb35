"""Where a fragment's records lie in its store.

A key starts with the entity's id and the fragment's number, so that all of an entity is one range of keys, and so is
all of a fragment. Then comes which of its queues, then what kind of record, then what that kind is sorted by:

    LOG     ACTIVE, DEFERRED, SCHEDULED    sequence number                 the messages
            BODY                           number                          bare messages that several share
    INDEX   MARKS                                                          numbers and counters
            EXPIRY, DUE                    time, sequence number           what happens when
            SESSION                        session, sequence number        which messages a session has
            STATE                          session                         what a session remembers
            IDS                            generation, digest of an id     what was sent already
            ASIDE                          session, sequence number        its deferred and scheduled messages
            CHECK                          number of a body                who still needs it is to be looked at
            SEEN                           a source's prefix               how far it was forwarded here
            PURGED                                                         up to where messages were purged
            DELIVERED                                                      what exclusive receivers may have
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
SESSION_SET_ASIDE: Final = b"\x06"
BODY_CHECK: Final = b"\x07"
FORWARDED_UP_TO: Final = b"\x08"
PURGED_UP_TO: Final = b"\x09"
MAYBE_DELIVERED: Final = b"\x0a"

pack_sequence: Final = _SEQUENCE.pack
pack_time_entry: Final = _TIME_ENTRY.pack
LAST_SEQUENCE: Final = b"\xff" * 8


class Area(IntEnum):
    """Which of an entity's queues: each has its own numbers, counters and order."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER = 2
    """On their way to another entity, which its sender named."""
    TRANSFER_DEAD_LETTER = 3
    """What could not be forwarded."""


def area_prefix(entity_id: int, fragment: int, area: Area) -> bytes:
    """How all keys of an area start."""
    return _PREFIX.pack(entity_id, fragment, area)


def fragment_of_prefix(key_prefix: bytes) -> int:
    """The number of the fragment whose keys start so."""
    number: int = _FRAGMENT.unpack_from(key_prefix, _ENTITY.size)[0]
    return number


def is_forwarded_to_itself(source_prefix: bytes, destination_prefix: bytes) -> bool:
    """Whether messages or dead letters of an entity are forwarded to that entity itself; both are prefixes."""
    entity_id, _, area = _PREFIX.unpack(source_prefix)
    return bool(entity_id == _ENTITY.unpack_from(destination_prefix)[0] and area in (Area.MAIN, Area.DEAD_LETTER))


def sequence_of_key(key: bytes) -> int:
    """The sequence number at the end of a key."""
    number: int = _SEQUENCE.unpack_from(key, len(key) - 8)[0]
    return number


def time_entry_of_key(key: bytes) -> tuple[int, int]:
    """The time and the sequence number at the end of a key of EXPIRY or DUE."""
    found: tuple[int, int] = _TIME_ENTRY.unpack_from(key, len(key) - 16)
    return found


def pack_session_id(session_id: bytes) -> bytes:
    """A session's id as part of a key: no other session's starts with it."""
    return _SESSION_SIZE.pack(len(session_id)) + session_id


def session_id_of_key(key: bytes) -> bytes:
    """The session's id in a key of SESSION or STATE."""
    at = PREFIX_BYTES + KIND_BYTES
    (size,) = _SESSION_SIZE.unpack_from(key, at)
    return key[at + 2 : at + 2 + size]


def kind_end(key_prefix: bytes, kind: bytes) -> bytes:
    """The first key behind all of a kind."""
    return key_prefix + bytes((kind[0] + 1,))


def entity_key_range(entity_id: int) -> tuple[bytes, bytes]:
    """From where to where an entity's keys lie, in both tables."""
    return _ENTITY.pack(entity_id), _ENTITY.pack(entity_id + 1)
