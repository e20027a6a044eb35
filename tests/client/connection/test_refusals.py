"""What a namespace refuses comes as an error that says what it was, at once, and the client goes on."""

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


async def test_a_queue_that_does_not_exist_is_not_found_and_not_asked_for_again(every_bus: Bus) -> None:
    queue = every_bus.factory(retry_policy=RetryPolicy(first_pause_s=5)).create_queue_client("no-such-queue")
    async with asyncio.timeout(4):
        for use in (queue.send(BrokeredMessage("x")), queue.receive(20), queue.peek(), queue.sender.open()):
            with pytest.raises(EntityNotFound, match="no-such-queue"):
                await use


async def test_whoever_uses_a_queue_that_is_deleted_is_told(bus: Bus) -> None:
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


async def test_nothing_can_be_sent_to_a_dead_letter_queue(bus: Bus) -> None:
    queue = bus.create_queue()
    with pytest.raises(CallerError):
        await bus.shared_factory.create_message_sender(f"{queue.path}/$DeadLetterQueue").send(BrokeredMessage("x"))


async def test_a_queue_that_is_disabled_says_so(bus: Bus) -> None:
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
async def test_what_can_be_no_message_is_refused_before_it_is_sent(bus: Bus, wrong: dict[str, object]) -> None:
    queue = bus.create_queue()
    with pytest.raises(InvalidArgument):
        await queue.send(BrokeredMessage("x", **wrong))  # type: ignore[arg-type]
    assert not bus.shared_factory.is_connected


async def test_properties_that_are_too_large_to_be_changed_are_refused_and_the_message_is_still_ours(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(1))
    message = await receive_one(queue)
    with pytest.raises(CallerError):
        await queue.abandon(message, {"large": "x" * 2_000_000})
    await queue.complete(message)
    assert bus.message_counts(queue) == (0, 0)


async def test_one_connection_can_have_many_links(bus: Bus) -> None:
    """More than one AMQP session has: the next ones are begun by themselves."""
    path = bus.server.create_queue()
    senders = [bus.shared_factory.create_message_sender(path) for _ in range(450)]
    await asyncio.gather(*[sender.send(BrokeredMessage("x")) for sender in senders])
    assert bus.server.message_counts(path) == (450, 0)
    await asyncio.gather(*[sender.close() for sender in senders])
