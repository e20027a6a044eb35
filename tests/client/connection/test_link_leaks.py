"""Links are ended with what they were for: a connection that lasts for months has no more of them than are in use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, wait_until
from twinbus.client import BrokeredMessage
from twinbus.model.errors import OperationTimeout

if TYPE_CHECKING:
    from tests.client.bus import Bus
    from twinbus.client import MessagingFactory

TOKENS = 2
"""Those to `$cbs`."""


def links(factory: MessagingFactory) -> int:
    conversation = factory._connection  # noqa: SLF001  # nobody else counts them
    assert conversation is not None
    return sum(len(session.links) for session in conversation._sessions)  # noqa: SLF001


async def test_requests_at_once_share_their_links(bus: Bus) -> None:
    queue = bus.create_queue()
    await asyncio.gather(*[queue.peek() for _ in range(20)])
    assert links(bus.shared_factory) == TOKENS + 2


async def test_sends_and_receives_at_once_share_their_links(bus: Bus) -> None:
    queue = bus.create_queue()
    await asyncio.gather(*[queue.send(BrokeredMessage("x")) for _ in range(20)])
    openings = [queue.receiver.open() for _ in range(5)]
    await asyncio.gather(*openings, *[queue.receive(10) for _ in range(20)])
    assert links(bus.shared_factory) == TOKENS + 2


async def test_what_is_closed_has_none_any_more(bus: Bus) -> None:
    path, with_sessions = bus.server.create_queue(), bus.create_queue(**SESSIONS)
    for number in range(5):
        async with (
            bus.shared_factory.create_message_sender(path) as sender,
            bus.shared_factory.create_message_receiver(path) as receiver,
        ):
            await sender.send(BrokeredMessage("x"))
            assert await receiver.receive(10) is not None
        async with await with_sessions.accept_session(f"session {number}"):
            pass
        async with bus.shared_factory.transaction() as transaction:
            await bus.shared_factory.create_message_sender(path).send(BrokeredMessage("x"), transaction=transaction)
    await wait_until(lambda: links(bus.shared_factory) == TOKENS + 5)  # one for each sender that was not closed


async def test_who_gives_up_leaves_none(bus: Bus) -> None:
    path, with_sessions = bus.server.create_queue(), bus.create_queue(**SESSIONS)
    with pytest.raises(OperationTimeout):
        await with_sessions.accept_session(timeout=0.1)
    for turns in range(8):
        receiver = bus.shared_factory.create_message_receiver(path)
        tasks = [
            asyncio.ensure_future(with_sessions.accept_session(timeout=20)),
            asyncio.ensure_future(receiver.open()),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await receiver.close()
    await wait_until(lambda: links(bus.shared_factory) == TOKENS)
