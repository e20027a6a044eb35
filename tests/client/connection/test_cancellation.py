"""A task that is cancelled in the middle of anything leaves the client as usable as before, and nothing locked."""

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


def started(call: Coroutine[object, object, object]) -> asyncio.Task[object]:
    return asyncio.ensure_future(call)


async def test_a_receive_that_is_cancelled_leaves_no_message_locked(every_bus: Bus) -> None:
    queue, other = every_bus.create_queue(), every_bus.factory()
    await queue.receiver.open()
    for wanted in (1, 10):
        receiving = started(queue.receive_batch(wanted, 60))
        await asyncio.sleep(0.1)
        await cancel(receiving)
    await queue.send_batch(numbered_messages(5))
    found = await receive(other.create_queue_client(queue.path), 5)
    assert [(message.text, message.delivery_count) for message in found] == [(f"{n}", 1) for n in range(5)]


async def test_the_next_receive_after_a_cancelled_one_gets_what_comes(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.receiver.open()
    for _ in range(20):
        receiving = started(queue.receive_batch(3, 60))
        await asyncio.sleep(0.002)
        await cancel(receiving)
    waiting = started(queue.receive_batch(3, 20))
    await queue.send(BrokeredMessage("x"))
    assert texts(await waiting) == ["x"]  # type: ignore[arg-type]


async def test_cancelled_at_any_moment_a_receive_neither_loses_nor_doubles_a_message(bus: Bus) -> None:
    """Messages come while receives are cancelled, some of them with messages just on their way."""
    queue = bus.create_queue()
    found: list[str] = []

    async def take() -> None:
        messages = await queue.receive_batch(4, 60)
        found.extend(texts(messages))
        await asyncio.shield(queue.receiver.complete_batch(messages))

    sending = started(send_slowly(bus, queue.path, 100))
    for pause_ms in range(60):
        taking = started(take())
        await asyncio.sleep(pause_ms % 7 / 1000)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
    await sending
    while len(found) < 100:
        message = await receive_one(queue)
        found.append(message.text)
        await queue.complete(message)
    assert sorted(found, key=int) == [f"{number}" for number in range(100)]
    await wait_until(lambda: bus.message_counts(queue) == (0, 0))


async def send_slowly(bus: Bus, path: str, count: int) -> None:
    sender = bus.shared_factory.create_message_sender(path)
    for message in numbered_messages(count):
        await sender.send(message)
        await asyncio.sleep(0.001)


async def test_what_came_for_a_cancelled_receive_and_delete_is_there_for_the_next(bus: Bus) -> None:
    queue = bus.shared_factory.create_queue_client(bus.server.create_queue(), ReceiveMode.RECEIVE_AND_DELETE)
    await queue.receiver.open()
    sending = started(send_slowly(bus, queue.path, 50))
    found: list[str] = []
    while len(found) < 50:
        receiving = started(queue.receive_batch(2, 60))
        await asyncio.sleep(0.003)
        receiving.cancel()
        [outcome] = await asyncio.gather(receiving, return_exceptions=True)
        if isinstance(outcome, list):
            found += texts(outcome)
    await sending
    assert sorted(found, key=int) == [f"{number}" for number in range(50)]


async def test_a_send_that_is_cancelled_harms_no_other(bus: Bus) -> None:
    queue = bus.create_queue()
    first, second = started(queue.send(BrokeredMessage("0"))), started(queue.send(BrokeredMessage("1")))
    await asyncio.sleep(0.001)
    await cancel(first)
    await second
    sends = [started(queue.send(message)) for message in numbered_messages(100)]
    await asyncio.sleep(0)
    for send in sends[::2]:
        send.cancel()
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1::2]] == [type(None)] * 50
    await queue.send(BrokeredMessage("after"))


@pytest.mark.parametrize("steps", range(0, 30, 3))
async def test_a_client_that_is_cancelled_while_it_opens_works_afterwards(bus: Bus, steps: int) -> None:
    """So many turns of the loop into connecting, showing a token, and attaching."""
    factory = bus.factory()
    queue = factory.create_queue_client(bus.server.create_queue())
    for use in (queue.send(BrokeredMessage("x")), queue.receive(20), queue.peek(), queue.receiver.open()):
        opening = started(use)
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    await queue.send(BrokeredMessage("last"))
    found = await receive(queue, bus.message_counts(queue)[0])
    assert found[-1].text == "last"
