"""Requests that the namespace refuses: the specific error is raised at once, and the client stays usable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages, receive_one
from twinbus.client import BrokeredMessage, RetryPolicy
from twinbus.client.errors import EntityNotFound
from twinbus.model.errors import CallerError, EntityDisabled, InvalidArgument

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_missing_queue_raises_entity_not_found_without_retries(every_bus: Bus) -> None:
    queue = every_bus.factory(retry_policy=RetryPolicy(first_pause_s=5)).create_queue_client("no-such-queue")
    async with asyncio.timeout(4):
        for use in (queue.send(BrokeredMessage("x")), queue.receive(20), queue.peek(), queue.sender.open()):
            with pytest.raises(EntityNotFound, match="no-such-queue"):
                await use


async def test_operations_on_a_deleted_queue_fail(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    message = await receive_one(queue)
    waiting = asyncio.ensure_future(queue.receive(20))
    await asyncio.sleep(0.1)
    bus.server.delete_queue(queue.path)
    with pytest.raises(EntityNotFound):
        await waiting
    for use in (queue.send(BrokeredMessage("x")), queue.complete(message)):
        with pytest.raises(CallerError):
            await use


async def test_a_send_to_a_dead_letter_queue_is_refused(bus: Bus) -> None:
    queue = bus.create_queue()
    with pytest.raises(CallerError):
        await bus.shared_factory.create_message_sender(f"{queue.path}/$DeadLetterQueue").send(BrokeredMessage("x"))


async def test_a_send_to_a_disabled_queue_raises_entity_disabled(bus: Bus) -> None:
    queue = bus.create_queue(Status="SendDisabled")
    with pytest.raises(EntityDisabled):
        await queue.send(BrokeredMessage("x"))
    assert await queue.receive(0.2) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_id": "x" * 129},
        {"session_id": "one", "partition_key": "two"},
        {"properties": {"a": object()}},
        {"properties": {"a": 2**64}},
    ],
)
async def test_an_invalid_message_is_refused_before_it_is_sent(bus: Bus, wrong: dict[str, object]) -> None:
    queue = bus.create_queue()
    with pytest.raises(InvalidArgument):
        await queue.send(BrokeredMessage("x", **wrong))  # type: ignore[arg-type]
    assert not bus.shared_factory.is_connected


async def test_an_abandon_with_too_large_properties_is_refused_and_the_message_stays_locked(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(1))
    message = await receive_one(queue)
    with pytest.raises(CallerError):
        await queue.abandon(message, {"large": "x" * 2_000_000})
    await queue.complete(message)
    assert bus.message_counts(queue) == (0, 0)


async def test_one_connection_can_have_many_links(bus: Bus) -> None:
    """More links than an AMQP session can have: the client begins further sessions."""
    path = bus.server.create_queue()
    senders = [bus.shared_factory.create_message_sender(path) for _ in range(450)]
    await asyncio.gather(*[sender.send(BrokeredMessage("x")) for sender in senders])
    assert bus.server.message_counts(path) == (450, 0)
    await asyncio.gather(*[sender.close() for sender in senders])
