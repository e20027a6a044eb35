"""Properties of every type are the same in sent, received and peeked messages."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import receive, receive_one
from twinbus.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Float,
    Int,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.client import BrokeredMessage

if TYPE_CHECKING:
    from tests.client.bus import Bus

INSTANT = dt.datetime(2026, 11, 16, 1, 2, 3, 456_000, tzinfo=dt.UTC)
NAMED: dict[str, object] = {
    "message_id": "id 7 ü",
    "correlation_id": "correlation 7",
    "label": "label",
    "content_type": "application/json",
    "to": "somebody",
    "reply_to": "an answer queue",
    "reply_to_session_id": "answer session",
    "session_id": "a session of a queue that has none",
    "partition_key": "a session of a queue that has none",
    "time_to_live": dt.timedelta(minutes=5),
}
APPLICATION_PROPERTIES: dict[str, object] = {
    "null": None,
    "yes": True,
    "no": False,
    "ubyte": UByte(255),
    "ushort": UShort(2**16 - 1),
    "uint": UInt(2**32 - 1),
    "ulong": ULong(2**64 - 1),
    "byte": Byte(-128),
    "short": Short(-(2**15)),
    "int": Int(-(2**31)),
    "long": -(2**63),
    "float": Float(2.5),
    "double": 2.1,
    "decimal32": Decimal32.from_decimal(decimal.Decimal("1.5")),
    "decimal64": Decimal64.from_decimal(decimal.Decimal("-1.5")),
    "decimal128": Decimal128.from_decimal(decimal.Decimal("1e30")),
    "char": Char("ü"),
    "timestamp": INSTANT,
    "timespan": dt.timedelta(hours=2, milliseconds=7),
    "uuid": uuid.UUID("25279ea5-2d40-446c-89d5-7403cc71ff37"),
    "binary": b"\x00\xff",
    "string": "Zürich 🚂",
    "symbol": Symbol("apples"),
}
IDS = [uuid.UUID(int=2**100), ULong(2**60), b"bytes", "text"]


async def test_received_and_peeked_messages_have_every_property_in_its_type(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send(BrokeredMessage("x", **NAMED, properties=APPLICATION_PROPERTIES))  # type: ignore[arg-type]
    peeked = await queue.peek()
    assert peeked is not None
    for message in (peeked, await receive_one(queue)):
        assert {name: getattr(message, name) for name in NAMED} == NAMED
        assert message.properties == APPLICATION_PROPERTIES
        assert {name: type(value) for name, value in message.properties.items()} == {
            name: type(value) for name, value in APPLICATION_PROPERTIES.items()
        }


async def test_unset_properties_are_none(bus: Bus) -> None:
    queue = bus.create_queue()
    sent = BrokeredMessage("x")
    await queue.send(sent)
    message = await receive_one(queue)
    set_names = {name for name in NAMED if getattr(message, name) is not None}
    assert set_names - {"time_to_live"} == {"message_id"}
    assert (message.message_id, message.properties) == (sent.message_id, {})


@pytest.mark.parametrize("identity", IDS)
async def test_an_id_keeps_its_type(bus: Bus, identity: object) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x", message_id=identity, correlation_id=identity))
    message = await receive_one(queue)
    assert (message.message_id, message.correlation_id) == (identity, identity)
    assert type(message.message_id) is type(message.correlation_id) is type(identity)


async def test_the_messages_of_a_batch_keep_their_own_properties(bus: Bus) -> None:
    queue = bus.create_queue()
    own = [(f"id {number}", f"label {number}", {"number": number}) for number in range(5)]
    await queue.send_batch([BrokeredMessage(message_id=one, label=two, properties=rest) for one, two, rest in own])
    received = await receive(queue, 5)
    assert [(message.message_id, message.label, message.properties) for message in received] == own


async def test_a_received_message_has_enqueued_time_lock_expiry_and_expiry(bus: Bus) -> None:
    queue = bus.create_queue()
    before = dt.datetime.now(dt.UTC)
    await queue.send(BrokeredMessage("x", time_to_live=dt.timedelta(minutes=10)))
    message = await receive_one(queue)
    assert abs(message.enqueued_time_utc - before) < dt.timedelta(seconds=20)
    assert abs(message.locked_until_utc - before - dt.timedelta(minutes=1)) < dt.timedelta(seconds=20)
    assert message.expires_at_utc == message.enqueued_time_utc + dt.timedelta(minutes=10)
    assert message.lock_token is not None
