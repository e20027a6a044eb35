"""Cancelled sends, receives and opens: the client stays usable, and no message stays locked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages, receive, receive_one, texts, wait_until
from twinbus.client import BrokeredMessage, ReceiveMode

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.client.bus import Bus


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def start(call: Coroutine[object, object, object]) -> asyncio.Task[object]:
    return asyncio.ensure_future(call)


async def test_a_cancelled_receive_leaves_no_message_locked(every_bus: Bus) -> None:
    queue, other = every_bus.create_queue(), every_bus.factory()
    await queue.receiver.open()
    for max_count in (1, 10):
        receiving = start(queue.receive_batch(max_count, 60))
        await asyncio.sleep(0.1)
        await cancel(receiving)
    await queue.send_batch(numbered_messages(5))
    received = await receive(other.create_queue_client(queue.path), 5)
    assert [(message.text, message.delivery_count) for message in received] == [(f"{n}", 1) for n in range(5)]


async def test_a_receive_after_cancelled_receives_gets_the_next_message(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.receiver.open()
    for _ in range(20):
        receiving = start(queue.receive_batch(3, 60))
        await asyncio.sleep(0.002)
        await cancel(receiving)
    waiting = start(queue.receive_batch(3, 20))
    await queue.send(BrokeredMessage("x"))
    assert texts(await waiting) == ["x"]  # type: ignore[arg-type]


async def test_a_receive_cancelled_at_any_moment_neither_loses_nor_duplicates_a_message(bus: Bus) -> None:
    """Messages arrive while receives are cancelled; some receives have messages in transit."""
    queue = bus.create_queue()
    received: list[str] = []

    async def take() -> None:
        messages = await queue.receive_batch(4, 60)
        received.extend(texts(messages))
        await asyncio.shield(queue.receiver.complete_batch(messages))

    sending = start(send_slowly(bus, queue.path, 100))
    for pause_ms in range(60):
        taking = start(take())
        await asyncio.sleep(pause_ms % 7 / 1000)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
    await sending
    while len(received) < 100:
        message = await receive_one(queue)
        received.append(message.text)
        await queue.complete(message)
    assert sorted(received, key=int) == [f"{number}" for number in range(100)]
    await wait_until(lambda: bus.message_counts(queue) == (0, 0))


async def send_slowly(bus: Bus, path: str, count: int) -> None:
    sender = bus.shared_factory.create_message_sender(path)
    for message in numbered_messages(count):
        await sender.send(message)
        await asyncio.sleep(0.001)


async def test_messages_of_a_cancelled_receive_and_delete_are_returned_by_the_next_receive(bus: Bus) -> None:
    queue = bus.shared_factory.create_queue_client(bus.server.create_queue(), ReceiveMode.RECEIVE_AND_DELETE)
    await queue.receiver.open()
    sending = start(send_slowly(bus, queue.path, 50))
    received: list[str] = []
    while len(received) < 50:
        receiving = start(queue.receive_batch(2, 60))
        await asyncio.sleep(0.003)
        receiving.cancel()
        [outcome] = await asyncio.gather(receiving, return_exceptions=True)
        if isinstance(outcome, list):
            received += texts(outcome)
    await sending
    assert sorted(received, key=int) == [f"{number}" for number in range(50)]


async def test_a_cancelled_send_does_not_affect_other_sends(bus: Bus) -> None:
    queue = bus.create_queue()
    first, second = start(queue.send(BrokeredMessage("0"))), start(queue.send(BrokeredMessage("1")))
    await asyncio.sleep(0.001)
    await cancel(first)
    await second
    sends = [start(queue.send(message)) for message in numbered_messages(100)]
    await asyncio.sleep(0)
    for send in sends[::2]:
        send.cancel()
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1::2]] == [type(None)] * 50
    await queue.send(BrokeredMessage("after"))


@pytest.mark.parametrize("steps", range(0, 30, 3))
async def test_a_client_works_after_an_operation_was_cancelled_while_it_opened(bus: Bus, steps: int) -> None:
    """Cancel after `steps` turns of the loop: while connecting, authenticating or attaching."""
    factory = bus.factory()
    queue = factory.create_queue_client(bus.server.create_queue())
    for use in (queue.send(BrokeredMessage("x")), queue.receive(20), queue.peek(), queue.receiver.open()):
        opening = start(use)
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    await queue.send(BrokeredMessage("last"))
    received = await receive(queue, bus.message_counts(queue)[0])
    assert received[-1].text == "last"
