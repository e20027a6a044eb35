"""What is sent in a simulation: the smallest real messages, which can be told apart from any copy of their bytes."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from twinbus.amqp.message import Properties, build, data
from twinbus.broker.message_record import HEAD_BYTES

_IDENTITY_STRUCT = Struct(">Q")
_COUNT_STRUCT = Struct(">I")
_COUNT_IN_RECORD = 4
_COUNT_IN_DELIVERY = 12
"""These messages have no time to live, so the header in front of a delivery is always the same."""
_SEQUENCE_NUMBER = b"\xa3\x15x-opt-sequence-number\x81"
_LOCKED_UNTIL = b"\xa3\x12x-opt-locked-until\x83"
_HEAD = build(properties=Properties(message_id="m"))


class DeliveryFields(NamedTuple):
    """What a delivery says."""

    identity: int
    sequence: int
    delivered: int
    """How often before."""


def make_payload(identity: int, padding: int, *, session: str | None = None) -> bytes:
    """A message as a client sends it; its last eight bytes say which it is."""
    head = _HEAD if session is None else build(properties=Properties(message_id="m", group_id=session))
    return head + data(bytes(padding) + _IDENTITY_STRUCT.pack(identity))


def make_batch(payloads: list[bytes]) -> bytes:
    return data(*payloads)


def read_delivery(payload: bytes) -> DeliveryFields:
    at = payload.index(_SEQUENCE_NUMBER) + len(_SEQUENCE_NUMBER)
    return DeliveryFields(
        _IDENTITY_STRUCT.unpack_from(payload, len(payload) - 8)[0],
        _IDENTITY_STRUCT.unpack_from(payload, at)[0],
        _COUNT_STRUCT.unpack_from(payload, _COUNT_IN_DELIVERY)[0],
    )


def read_locked_until(payload: bytes) -> int:
    """Until when a delivery is locked, on the wall clock."""
    found: int = _IDENTITY_STRUCT.unpack_from(payload, payload.index(_LOCKED_UNTIL) + len(_LOCKED_UNTIL))[0]
    return found


def read_record_fields(record: bytes) -> tuple[int, int]:
    """Which message a record is of, and its delivery count."""
    identity: int = _IDENTITY_STRUCT.unpack_from(record, len(record) - 8)[0]
    count: int = _COUNT_STRUCT.unpack_from(record, _COUNT_IN_RECORD)[0]
    return identity, count


def matches_record(payload: bytes, record: bytes) -> bool:
    """A delivery has all the bytes of its record, as they are on disk."""
    return payload.endswith(record[HEAD_BYTES:])
