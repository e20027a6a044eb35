"""A malformed or too large message is rejected with a reason, and the next message on the link is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import connect_raw
from tests.support.server_process import run_server
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.message import Header, Properties, build, data, value
from twinbus.amqp.outcomes import Modified, Rejected
from twinbus.amqp.types import Described, UInt

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

DECODE_ERROR = "amqp:decode-error"
TOO_LARGE = "amqp:link:message-size-exceeded"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
BATCH = 0x80013700
PROPERTIES = bytes.fromhex("005373")
MALFORMED = {
    "garbage": b"\xff\xfe\xfd not AMQP at all",
    "text": b"hello",
    "a section cut short": data(b"some bytes")[:-3],
    "a length beyond the end": bytes.fromhex("005375b07fffffff") + b"x",
    "an unknown section": bytes.fromhex("005399a00178"),
    "two kinds of body": data(b"x") + value("y"),
    "two values": value("x") + value("y"),
    "properties twice": Properties(message_id="1").encode() * 2 + data(b"x"),
    "a header that is no list": bytes.fromhex("00537040") + data(b"x"),
    "a header of text": bytes.fromhex("005370a10178") + data(b"x"),
    "properties that are a map": PROPERTIES + bytes.fromhex("c10100") + data(b"x"),
    "annotations that are a number": bytes.fromhex("0053725201") + data(b"x"),
    "a ttl of text": bytes.fromhex("005370c006034040a10178") + data(b"x"),
}
"""Payloads by their defect."""


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_message_is_rejected_and_the_next_one_is_not(
    server: ServerProcess, queue: str, name: str
) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, MALFORMED[name]) == DECODE_ERROR
        assert await client.send(link, data(b"all is well")) is None
    assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_batch_with_a_malformed_message_is_rejected_whole(server: ServerProcess, queue: str, name: str) -> None:
    batch = data(data(b"good"), MALFORMED[name], data(b"good"))
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, batch, message_format=BATCH) == DECODE_ERROR
        assert await client.send(link, data(data(b"a"), data(b"b")), message_format=BATCH) is None
    assert server.message_counts(queue) == (2, 0)


@pytest.mark.parametrize(
    "batch", [b"", value("x"), build(properties=Properties(message_id="1"))], ids=["empty", "value", "no body"]
)
async def test_a_batch_without_messages_is_rejected(server: ServerProcess, queue: str, batch: bytes) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, batch, message_format=BATCH) == DECODE_ERROR
        assert await client.send(link, data(b"all is well")) is None
    assert server.message_counts(queue) == (1, 0)


UNREADABLE_PROPERTIES = {
    "a list": bytes.fromhex("00537445"),
    "a number": bytes.fromhex("0053745201"),
    "half a pair": bytes.fromhex("005374c10401a10178"),
    "a pair cut short": bytes.fromhex("005374c10202a1"),
}
SETTLEMENTS = {
    "rejected": Rejected(error=Error(condition="com.microsoft:dead-letter", info={"DeadLetterReason": "unreadable"})),
    "abandoned with a note": Modified(delivery_failed=True, message_annotations={"why": "x"}),
    "abandoned for the last time": Modified(delivery_failed=True),
}


@pytest.mark.parametrize("settlement", SETTLEMENTS)
@pytest.mark.parametrize("name", UNREADABLE_PROPERTIES)
async def test_a_message_with_unreadable_properties_is_refused_or_can_be_settled(
    server: ServerProcess, name: str, settlement: str
) -> None:
    """The broker adds application properties when it dead-letters a message, and must not fail only then."""
    queue = server.create_queue(MaxDeliveryCount="1" if "last" in settlement else "10")
    payload = Properties(message_id="1").encode() + UNREADABLE_PROPERTIES[name] + data(b"x")
    async with connect_raw(server) as client:
        if await client.send(await client.attach_sender(queue), payload) == DECODE_ERROR:
            return
        receiver = await client.attach_receiver(queue)
        [delivery] = await client.receive(receiver)
        assert await client.settle(receiver, delivery, SETTLEMENTS[settlement]) is None
        assert server.message_counts(queue) == ((1, 0) if "note" in settlement else (0, 1))


async def test_size_limits_apply_to_single_messages_and_to_messages_of_a_batch(
    server: ServerProcess, queue: str
) -> None:
    many = {f"property {number:03}": "x" * 600 for number in range(120)}
    invalid = {
        build(application_properties=many, body=data(b"x")): TOO_LARGE,
        build(application_properties={"one": "x" * 33_000}, body=data(b"x")): TOO_LARGE,
        build(message_annotations={"x-opt-one": "x" * 33_000}, body=data(b"x")): TOO_LARGE,
        build(properties=Properties(message_id="ü" * 129), body=data(b"x")): OUT_OF_RANGE,
        build(properties=Properties(group_id="ü" * 129), body=data(b"x")): OUT_OF_RANGE,
        build(message_annotations={"x-opt-partition-key": "ü" * 129}, body=data(b"x")): OUT_OF_RANGE,
    }
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        for payload, condition in invalid.items():
            assert await client.send(link, payload) == condition
            assert await client.send(link, data(data(b"good"), payload), message_format=BATCH) == condition
        good = build(properties=Properties(message_id="ü" * 128, group_id="ü" * 128), body=data(b"x"))
        assert await client.send(link, good) is None
    assert server.message_counts(queue) == (1, 0)


async def test_a_message_above_the_size_limit_is_rejected_alone_and_in_a_batch(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        for size in (262_144, 300_000, 1_000_000, 5_000_000):
            assert await client.send(link, data(bytes(size))) == TOO_LARGE
        assert (
            await client.send(link, data(data(bytes(150_000)), data(bytes(150_000))), message_format=BATCH) == TOO_LARGE
        )
        assert await client.send(link, data(bytes(262_144 - 8))) is None
    assert server.message_counts(queue) == (1, 0)


async def test_a_queue_can_have_its_own_size_limit(tmp_path: Path) -> None:
    sizes = (1, 1_024)
    config = tmp_path / "twinbus.toml"
    config.write_text("".join(f'[[queues]]\nname = "queue-{size}"\nmax_message_kb = {size}\n' for size in sizes))
    with run_server(tmp_path, f"--config={config}") as server:
        for kilobytes in sizes:
            queue = f"queue-{kilobytes}"
            async with connect_raw(server) as client:
                link = await client.attach_sender(queue)
                assert link.remote_attach is not None
                assert link.remote_attach.max_message_size == kilobytes * 1_024
                assert await client.send(link, data(bytes(kilobytes * 1_024))) == TOO_LARGE
                assert await client.send(link, data(bytes(kilobytes * 1_024 - 8))) is None
                [delivery] = await client.receive(await client.attach_receiver(queue))
                assert delivery.payload.endswith(data(bytes(kilobytes * 1_024 - 8)))
            assert server.message_counts(queue) == (1, 0)


async def test_a_body_is_delivered_byte_for_byte(server: ServerProcess, queue: str) -> None:
    described = value(Described("x:unknown", [UInt(7), "text"]))
    async with connect_raw(server) as client:
        link, receiver = await client.attach_sender(queue), await client.attach_receiver(queue)
        properties = Properties(message_id="1")
        for body in (described, data(b"a", b"", b"c" * 500), value({"a": [1, None]})):
            sent = build(properties=properties, application_properties={"a": UInt(1)}, body=body)
            assert await client.send(link, build(header=Header(durable=True)) + sent) is None
            [delivery] = await client.receive(receiver)
            assert delivery.payload.endswith(sent)
