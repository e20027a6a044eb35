"""Lost connections: clients reconnect, and locked messages are settled by their lock tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import cut_connection, numbered_messages, receive, receive_one, texts, wait_until
from twinbus.client import BrokeredMessage, ReceiveMode, RetryPolicy
from twinbus.model.errors import MessageNotFound

if TYPE_CHECKING:
    from tests.client.bus import Bus

PATIENT = RetryPolicy(max_retries=20, first_pause_s=0.01, factor=1.5)


@pytest.mark.parametrize("operation", ["complete", "abandon", "defer", "dead_letter"])
async def test_a_message_is_settled_by_its_lock_after_the_connection_was_lost(bus: Bus, operation: str) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    message = await receive_one(queue)
    await cut_connection(bus.shared_factory)
    await getattr(queue, operation)(message)
    assert message.lock_token is None
    assert bus.message_counts(queue)[1] == (operation == "dead_letter")
    if operation == "defer":
        assert len(await queue.receive_deferred(message.sequence_number)) == 1
    else:
        with pytest.raises(MessageNotFound):
            await queue.receive_deferred(message.sequence_number)
    assert (await queue.receive(0.3) is None) is (operation != "abandon")


async def test_locks_are_renewed_over_a_lost_connection(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    message = await receive_one(queue)
    await cut_connection(bus.shared_factory)
    assert await queue.renew_lock(message) == message.locked_until_utc
    await queue.complete(message)
    assert bus.message_counts(queue) == (0, 0)


async def test_a_receive_keeps_waiting_over_lost_connections(every_bus: Bus) -> None:
    factory = every_bus.factory(retry_policy=PATIENT)
    queue = every_bus.create_queue()
    waiting = asyncio.ensure_future(queue.receive(20))
    await wait_until(lambda: factory.is_connected)
    await asyncio.sleep(0.1)
    for _ in range(2):
        await cut_connection(factory)
        await wait_until(lambda: factory.is_connected)
    await queue.send(BrokeredMessage("x"))
    message = await waiting
    assert message is not None
    assert message.text == "x"


async def test_sends_under_way_are_repeated_after_a_lost_connection(bus: Bus) -> None:
    factory = bus.factory(retry_policy=PATIENT)
    queue = bus.create_queue(RequiresDuplicateDetection="true")
    await queue.sender.open()
    sends = [asyncio.ensure_future(queue.send(message)) for message in numbered_messages(200)]
    await asyncio.sleep(0)
    await cut_connection(factory)
    await asyncio.gather(*sends)
    assert sorted(texts(await receive(queue, 200)), key=int) == [f"{number}" for number in range(200)]
    assert bus.message_counts(queue) == (200, 0), "each message is stored once: retries keep the message id"


async def test_messages_prefetched_in_receive_and_delete_survive_a_lost_connection(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    receiver = bus.shared_factory.create_message_receiver(queue.path, ReceiveMode.RECEIVE_AND_DELETE, prefetch=10)
    first = await receive_one(receiver)
    await wait_until(lambda: bus.message_counts(queue) == (0, 0))
    await asyncio.sleep(0.1)
    await cut_connection(bus.shared_factory)
    rest = [await receive_one(receiver) for _ in range(9)]
    assert texts([first, *rest]) == [f"{number}" for number in range(10)]
