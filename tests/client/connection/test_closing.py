"""Closing clients and factories, once or repeatedly: later calls raise ObjectClosed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, numbered_messages, receive, receive_one
from twinbus.client import BrokeredMessage, FactoryState
from twinbus.client.errors import ConnectionLost, ObjectClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.client.bus import Bus


async def test_clients_can_be_closed_twice_and_raise_object_closed_afterwards(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    message = await receive_one(queue)
    sender, receiver = (
        every_bus.shared_factory.create_message_sender("q"),
        every_bus.shared_factory.create_message_receiver("q"),
    )
    for closable in (queue, sender, receiver):
        await closable.close()
        await closable.close()
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: queue.send(BrokeredMessage("x")),
        lambda: queue.receive(0),
        lambda: queue.complete(message),
        queue.peek,
        queue.accept_session,
        queue.get_message_sessions,
        lambda: sender.send(BrokeredMessage("x")),
        sender.open,
        lambda: receiver.receive(0),
        receiver.open,
    ]
    for use in uses:
        with pytest.raises(ObjectClosed):
            await use()


async def test_a_closed_client_that_never_received_raises_object_closed(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.close()
    with pytest.raises(ObjectClosed):
        await queue.receive(0)


async def test_closing_a_factory_closes_its_clients_and_releases_their_locks(bus: Bus) -> None:
    factory = bus.factory()
    queue, sessions = bus.create_queue(), bus.create_queue(**SESSIONS)
    await queue.send_batch(numbered_messages(3))
    receiver = factory.create_message_receiver(queue.path, prefetch=3)
    assert (await receive_one(receiver)).text == "0"
    session = await sessions.accept_session("one")
    await factory.close()
    await factory.close()
    assert (factory.state, factory.ended.is_set(), factory.is_connected) == (FactoryState.CLOSED, True, False)
    for use in (queue.send(BrokeredMessage("x")), receiver.receive(0), session.get_state()):
        with pytest.raises(ObjectClosed):
            await use
    for create in (factory.create_queue_client, factory.create_message_sender, factory.create_message_receiver):
        with pytest.raises(ObjectClosed):
            create("q")
    with pytest.raises(ObjectClosed):
        factory.transaction()
    other = bus.factory()
    assert [message.text for message in await receive(other.create_queue_client(queue.path), 2)] == ["1", "2"]
    await other.create_queue_client(sessions.path).accept_session("one", timeout=10)


async def test_a_waiting_receive_returns_none_when_the_receiver_is_closed(bus: Bus) -> None:
    queue = bus.create_queue()
    waiting = [asyncio.ensure_future(queue.receive(60)) for _ in range(3)]
    await queue.receiver.open()
    await asyncio.sleep(0.1)
    async with asyncio.timeout(3):
        await queue.close()
        assert await asyncio.gather(*waiting) == [None] * 3
    await bus.shared_factory.create_message_sender(queue.path).send(BrokeredMessage("x"))
    assert (await receive_one(bus.shared_factory.create_message_receiver(queue.path))).delivery_count == 1


async def test_a_send_under_way_at_close_says_whether_the_message_may_have_been_sent(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.sender.open()
    sends = [asyncio.ensure_future(queue.send(message)) for message in numbered_messages(3)]
    early = asyncio.ensure_future(
        bus.shared_factory.create_queue_client(queue.path).send(BrokeredMessage("not attached yet"))
    )
    await asyncio.sleep(0)
    await bus.shared_factory.close()
    outcomes = await asyncio.gather(*sends, early, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3 + [ObjectClosed]


async def test_a_factory_that_was_never_used_closes_without_connecting(bus: Bus) -> None:
    async with bus.factory() as factory:
        factory.create_queue_client("q")
        assert not factory.is_connected
    assert factory.state is FactoryState.CLOSED
