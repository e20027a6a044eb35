"""Where a fragment's records lie in its store.

A key starts with the entity's id and the fragment's number, so that all of an entity is one range of keys, and so is
all of a fragment. Then comes the area, and in the LOG the sequence number.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

_PREFIX: Final = Struct(">IHB")
_ENTITY: Final = Struct(">I")
_SEQUENCE: Final = Struct(">Q")
PREFIX_BYTES: Final = _PREFIX.size

pack_sequence: Final = _SEQUENCE.pack


class Area(IntEnum):
    """Which of an entity's queues: each has its own numbers, counters and order."""

    MAIN = 0
    DEAD_LETTER = 1


def area_prefix(entity_id: int, fragment: int, area: Area) -> bytes:
    """How all keys of an area start; in the INDEX, the key of its marks."""
    return _PREFIX.pack(entity_id, fragment, area)


def sequence_of(key: bytes) -> int:
    """The sequence number in a key of the LOG."""
    number: int = _SEQUENCE.unpack_from(key, PREFIX_BYTES)[0]
    return number


def entity_range(entity_id: int) -> tuple[bytes, bytes]:
    """From where to where an entity's keys lie, in both tables."""
    return _ENTITY.pack(entity_id), _ENTITY.pack(entity_id + 1)
