"""Messages of the queue simulation: small real messages whose last bytes identify them."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from twinbus.amqp.message import Header, Message, Properties, build, data
from twinbus.amqp.types import Timestamp
from twinbus.broker.message_record import parse_record
from twinbus.model.annotations import SCHEDULED_TIME
from twinbus.model.message import PING_CONTENT_TYPE

_NUMBER = Struct(">Q")
_COUNT = Struct(">I")
_HEADER_AT = 5
_SEQUENCE_NUMBER = b"\xa3\x15x-opt-sequence-number\x81"
_LOCKED_UNTIL = b"\xa3\x12x-opt-locked-until\x83"
PING = build(properties=Properties(message_id="ping", content_type=PING_CONTENT_TYPE))


class SentMessage(NamedTuple):
    """A message as its sender knows it."""

    identity: int
    message_id: str
    session: str | None = None
    ttl_ms: int | None = None
    due_ms: int | None = None

    def encode(self, padding: int = 0) -> bytes:
        """Return the encoded message; its last eight bytes are its identity."""
        return build(
            header=Header(ttl=self.ttl_ms) if self.ttl_ms is not None else None,
            message_annotations={SCHEDULED_TIME: Timestamp(self.due_ms)} if self.due_ms is not None else None,
            properties=Properties(message_id=self.message_id, group_id=self.session),
            body=data(bytes(padding) + _NUMBER.pack(self.identity)),
        )


class DeliveryFields(NamedTuple):
    """Fields read from a delivery."""

    identity: int
    number: int
    delivered: int
    """Delivery count."""
    until_ms: int
    """When its lock ends; 0 without a lock."""


def read_delivery(payload: bytes) -> DeliveryFields:
    """Read the fields of a delivery, which begins with a header section."""
    count_at = _HEADER_AT + payload[_HEADER_AT - 1] - _COUNT.size
    at = payload.index(_SEQUENCE_NUMBER) + len(_SEQUENCE_NUMBER)
    until_at = payload.find(_LOCKED_UNTIL)
    until_ms = _NUMBER.unpack_from(payload, until_at + len(_LOCKED_UNTIL))[0] if until_at >= 0 else 0
    return DeliveryFields(
        identity_of(payload), _NUMBER.unpack_from(payload, at)[0], _COUNT.unpack_from(payload, count_at)[0], until_ms
    )


def identity_of(record_or_payload: bytes) -> int:
    """Return the identity of the message in a record or payload."""
    identity: int = _NUMBER.unpack_from(record_or_payload, len(record_or_payload) - 8)[0]
    return identity


def properties_of_record(record: bytes) -> dict[str, object]:
    """Return the application properties of a record."""
    properties = Message(parse_record(record).bare_message).application_properties
    assert isinstance(properties, dict)
    return {str(key): value for key, value in properties.items()}
