"""R105: deferred, scheduled, expired and dead-lettered messages of all fragments behave as on a plain queue."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
    receive,
    send_all,
    texts,
)
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.model.errors import MessageNotFound, ServiceBusError
from twinbus.testing import in_virtual_time

NUMBERS = [f"{number}" for number in range(FRAGMENTS)]


@in_virtual_time
@pytest.mark.parametrize("mode", ReceiveMode)
async def test_r105_deferred_messages_of_several_fragments_are_received_in_one_call(mode: ReceiveMode) -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        held = await receive(orders.client, FRAGMENTS)
        for message in held:
            await orders.client.defer(message)
        assert await orders.client.receive(timeout=1) is None
        client = orders.factory.create_queue_client("orders", mode)
        numbers = [message.sequence_number for message in held]
        received = await client.receive_deferred(*numbers)
        assert sorted(texts(received)) == sorted(NUMBERS)
        for message in received if mode is ReceiveMode.PEEK_LOCK else ():
            await client.complete(message)
        assert await orders.fragments() == []


@in_virtual_time
@pytest.mark.parametrize("mode", ReceiveMode)
async def test_r105_if_one_deferred_message_is_missing_none_is_received(mode: ReceiveMode) -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        held = await receive(orders.client, FRAGMENTS)
        for message in held[1:]:
            await orders.client.defer(message)
        client = orders.factory.create_queue_client("orders", mode)
        with pytest.raises(MessageNotFound):
            await client.receive_deferred(*[message.sequence_number for message in held])
        assert orders.namespace.counts("orders").deferred_count == FRAGMENTS - 1  # type: ignore[union-attr]
        received = await client.receive_deferred(*[message.sequence_number for message in held[1:]])
        assert len(received) == FRAGMENTS - 1
        assert {message.delivery_count for message in received} == {1}, (
            "the failed attempt does not count as a delivery"
        )


@in_virtual_time
async def test_r105_scheduled_messages_become_active_in_all_fragments_when_due() -> None:
    async with partitioned_namespace() as orders:
        numbers = [
            await orders.client.schedule(message, later(orders.namespace.clock.wall_ms(), 600))
            for message in one_per_fragment()
        ]
        assert [fragment_of_message(number) for number in numbers] == list(range(FRAGMENTS))
        assert await orders.client.receive(timeout=300) is None
        await asyncio.sleep(400)
        assert sorted(texts(await receive(orders.client, FRAGMENTS))) == sorted(NUMBERS)


@in_virtual_time
async def test_r105_scheduled_messages_without_a_key_are_spread_over_all_fragments() -> None:
    async with partitioned_namespace() as orders:
        due = later(orders.namespace.clock.wall_ms(), 600)
        numbers = [await orders.client.schedule(message, due) for message in numbered_messages(FRAGMENTS)]
        assert {fragment_of_message(number) for number in numbers} == set(range(FRAGMENTS))


@in_virtual_time
async def test_r105_scheduled_messages_of_several_fragments_are_cancelled_in_one_call() -> None:
    async with partitioned_namespace() as orders:
        due = later(orders.namespace.clock.wall_ms(), 600)
        numbers = [await orders.client.schedule(message, due) for message in one_per_fragment()]
        await orders.client.cancel_scheduled(*numbers[:8])
        with pytest.raises(ServiceBusError):
            await orders.client.cancel_scheduled(*numbers[7:])
        await asyncio.sleep(700)
        assert sorted(texts(await receive(orders.client, 8))) == sorted(NUMBERS[8:]), "all of them, or none"
        assert await orders.client.receive(timeout=1) is None


@in_virtual_time
async def test_r105_messages_expire_in_all_fragments() -> None:
    async with partitioned_namespace(default_time_to_live_ms=60_000, dead_lettering_on_expiration=True) as orders:
        await send_all(orders.client, one_per_fragment())
        await send_all(orders.client, one_per_fragment(time_to_live=dt.timedelta(seconds=10)))
        await asyncio.sleep(30)
        assert len(await orders.fragments()) == FRAGMENTS
        await asyncio.sleep(60)
        assert await orders.fragments() == []
        dead = await orders.namespace.messages("orders/$DeadLetterQueue")
        assert sorted(texts(dead)) == sorted(NUMBERS + NUMBERS)
        assert {message.dead_letter_reason for message in dead} == {"TTLExpiredException"}


@in_virtual_time
async def test_r105_dead_letters_of_all_fragments_are_received_from_one_queue() -> None:
    async with partitioned_namespace(max_delivery_count=1) as orders:
        await send_all(orders.client, one_per_fragment())
        for message in await receive(orders.client, FRAGMENTS):
            if int(message.text) % 2:
                await orders.client.dead_letter(message, "why", "because")
            else:
                await orders.client.abandon(message)
        dead = orders.client.dead_letter_receiver()
        received: list[BrokeredMessage] = []
        while page := await dead.receive_batch(FRAGMENTS, timeout=1):
            received += page
            for message in page:
                await dead.complete(message)
        assert sorted(texts(received)) == sorted(NUMBERS)
        assert {(int(message.text) % 2, message.dead_letter_reason) for message in received} == {
            (1, "why"),
            (0, "MaxDeliveryCountExceeded"),
        }
        assert {fragment_of_message(message) for message in received} == set(range(FRAGMENTS))
        assert await orders.fragments("orders/$DeadLetterQueue") == []


@in_virtual_time
async def test_r105_a_batch_of_messages_is_deleted_over_all_fragments() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(100))
        assert await orders.client.receiver.delete_batch(70) == 70
        assert await orders.client.receiver.delete_batch(70) == 30
        assert await orders.client.receiver.delete_batch(70) == 0


@in_virtual_time
async def test_an_abandoned_message_keeps_its_fragment() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(3, partition_key=key_for_fragment(12)))
        for _ in range(3):
            for message in await receive(orders.client, 3):
                assert fragment_of_message(message) == 12
                await orders.client.abandon(message)


def later(now_ms: int, delay_s: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(now_ms / 1000 + delay_s, dt.UTC)
