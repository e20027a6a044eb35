"""Links are detached with their clients, so that a long-lived connection has only the links in use."""

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

CBS_LINKS = 2
"""Links to `$cbs`."""


def count_links(factory: MessagingFactory) -> int:
    connection = factory._connection  # noqa: SLF001  # there is no public count of links
    assert connection is not None
    return sum(len(session.links) for session in connection._sessions)  # noqa: SLF001


async def test_concurrent_management_requests_share_their_links(bus: Bus) -> None:
    queue = bus.create_queue()
    await asyncio.gather(*[queue.peek() for _ in range(20)])
    assert count_links(bus.shared_factory) == CBS_LINKS + 2


async def test_concurrent_sends_and_receives_share_their_links(bus: Bus) -> None:
    queue = bus.create_queue()
    await asyncio.gather(*[queue.send(BrokeredMessage("x")) for _ in range(20)])
    openings = [queue.receiver.open() for _ in range(5)]
    await asyncio.gather(*openings, *[queue.receive(10) for _ in range(20)])
    assert count_links(bus.shared_factory) == CBS_LINKS + 2


async def test_closed_clients_sessions_and_transactions_have_no_links(bus: Bus) -> None:
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
    await wait_until(lambda: count_links(bus.shared_factory) == CBS_LINKS + 5)  # five senders are still open


async def test_timed_out_and_cancelled_attaches_leave_no_links(bus: Bus) -> None:
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
    await wait_until(lambda: count_links(bus.shared_factory) == CBS_LINKS)
