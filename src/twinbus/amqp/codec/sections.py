"""Sections of a message, and the fields of the header and properties sections (part 3.2 of the specification).

Owns the section codes and field declarations. Must not know the offsets of sections in a message.
"""

from __future__ import annotations

from enum import IntEnum

from twinbus.amqp.codec.composite import (
    BINARY,
    BOOLEAN,
    MESSAGE_ID,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
    Composite,
    composite,
    typed_field,
)


@composite(0x70, "amqp:header:list")
class Header(Composite):
    """Delivery instructions for a message."""

    durable: bool = typed_field(BOOLEAN, default=False)
    priority: int = typed_field(UBYTE, default=4)
    ttl: int | None = typed_field(UINT, default=None)
    first_acquirer: bool = typed_field(BOOLEAN, default=False)
    delivery_count: int = typed_field(UINT, default=0)


@composite(0x73, "amqp:properties:list")
class Properties(Composite):
    """Properties that the sender set on the message; intermediaries never change them."""

    message_id: object = typed_field(MESSAGE_ID, default=None)
    user_id: bytes | None = typed_field(BINARY, default=None)
    to: str | None = typed_field(STRING, default=None)
    subject: str | None = typed_field(STRING, default=None)
    reply_to: str | None = typed_field(STRING, default=None)
    correlation_id: object = typed_field(MESSAGE_ID, default=None)
    content_type: str | None = typed_field(SYMBOL, default=None)
    content_encoding: str | None = typed_field(SYMBOL, default=None)
    absolute_expiry_time: int | None = typed_field(TIMESTAMP, default=None)
    creation_time: int | None = typed_field(TIMESTAMP, default=None)
    group_id: str | None = typed_field(STRING, default=None)
    group_sequence: int | None = typed_field(UINT, default=None)
    reply_to_group_id: str | None = typed_field(STRING, default=None)


class Section(IntEnum):
    """Section descriptors of a message, in the order that the specification requires."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78
