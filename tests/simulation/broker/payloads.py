"""Messages of a simulation: minimal real messages whose last bytes identify them in every record and delivery."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from twinbus.amqp.message import Properties, build, data
from twinbus.broker.message_record import HEAD_BYTES

_IDENTITY_STRUCT = Struct(">Q")
_COUNT_STRUCT = Struct(">I")
_COUNT_IN_RECORD = 4
_COUNT_IN_DELIVERY = 12
"""Offset of the delivery count. These messages have no time to live, so the header has always the same length."""
_SEQUENCE_NUMBER = b"\xa3\x15x-opt-sequence-number\x81"
_LOCKED_UNTIL = b"\xa3\x12x-opt-locked-until\x83"
_HEAD = build(properties=Properties(message_id="m"))


class DeliveryFields(NamedTuple):
    """Fields read from a delivery."""

    identity: int
    sequence: int
    delivered: int
    """Delivery count."""


def make_payload(identity: int, padding: int, *, session: str | None = None) -> bytes:
    """Build a message as a client sends it; its last eight bytes are its identity."""
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
    """Return the wall-clock time until which a delivery is locked."""
    locked_until_ms: int = _IDENTITY_STRUCT.unpack_from(payload, payload.index(_LOCKED_UNTIL) + len(_LOCKED_UNTIL))[0]
    return locked_until_ms


def read_record_fields(record: bytes) -> tuple[int, int]:
    """Return the identity and the delivery count of the message in a record."""
    identity: int = _IDENTITY_STRUCT.unpack_from(record, len(record) - 8)[0]
    count: int = _COUNT_STRUCT.unpack_from(record, _COUNT_IN_RECORD)[0]
    return identity, count


def matches_record(payload: bytes, record: bytes) -> bool:
    """Whether a delivery contains the message bytes of a record."""
    return payload.endswith(record[HEAD_BYTES:])
