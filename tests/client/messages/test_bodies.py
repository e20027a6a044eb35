"""Bodies: bytes and text are sent as data, other values as AMQP values; sequences are received."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import receive_one
from twinbus.amqp.message import Properties, build, sequence
from twinbus.amqp.types import UInt
from twinbus.client import BrokeredMessage

if TYPE_CHECKING:
    from tests.client.bus import Bus

VALUES = [
    7,
    UInt(7),
    2.5,
    True,
    uuid.UUID(int=7),
    [1, "two", None, b"three"],
    {"apples": 2, "more": {"pears": [1, 2]}},
    dt.datetime(2026, 11, 16, 1, 2, 3, tzinfo=dt.UTC),
]


@pytest.mark.parametrize("body", [b"", b"bytes \x00\xff", "text", "Zürich 🚂", "x" * 100_000])
async def test_bytes_and_text_come_back_as_bytes(bus: Bus, body: bytes | str) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage(body))
    message = await receive_one(queue)
    assert message.body == (body.encode() if isinstance(body, str) else body)
    if isinstance(body, str):
        assert message.text == body


async def test_values_come_back_in_their_types(bus: Bus) -> None:
    queue = bus.create_queue()
    for value in VALUES:
        await queue.send(BrokeredMessage(value))
        body = (await receive_one(queue)).body
        assert body == value
        assert type(body) is type(value)


async def test_sequences_come_back(bus: Bus) -> None:
    queue = bus.create_queue()
    payload = build(properties=Properties(message_id="1"), body=sequence([1, "two"], [None]))
    await queue.sender.deliver(payload)
    message = await receive_one(queue)
    assert message.body == [[1, "two"], [None]]
    with pytest.raises(TypeError, match="not text"):
        _ = message.text


async def test_a_message_without_a_body_comes_back(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage(None))
    assert (await receive_one(queue)).body == b""
