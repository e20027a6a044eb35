"""Sessions: accepted by name or the next one, read in order by one receiver, released on close."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, cut_connection, numbered_messages, receive, receive_one, texts
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.model.errors import (
    CallerError,
    NotAllowed,
    OperationTimeout,
    ServiceBusError,
    SessionCannotBeLocked,
    SessionLockLost,
)

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_named_session_returns_only_its_messages_in_order(every_bus: Bus) -> None:
    queue = every_bus.create_queue(**SESSIONS)
    for message in numbered_messages(6):
        message.session_id = f"session {int(message.text) % 2}"
        await queue.send(message)
    async with await queue.accept_session("session 1") as session:
        assert session.session_id == "session 1"
        received = await receive(session, 3)
        assert texts(received) == ["1", "3", "5"]
        await session.complete_batch(received)
        assert await session.receive(0) is None
    assert every_bus.message_counts(queue) == (3, 0)


async def test_the_next_session_is_the_one_of_the_oldest_message(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    for name in ("one", "two", "one"):
        await queue.send(BrokeredMessage(name, session_id=name))
    first, second = await queue.accept_session(), await queue.accept_session()
    assert (first.session_id, second.session_id) == ("one", "two")
    received = []
    async for message in first:
        received.append(message.text)
        await first.complete(message)
        if len(received) == 2:
            break
    assert received == ["one", "one"]


async def test_accepting_the_next_session_waits_for_one_or_times_out(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    started = time.monotonic()
    with pytest.raises(OperationTimeout):
        await queue.accept_session(timeout=1)
    assert 0.9 < time.monotonic() - started < 4
    waiting = asyncio.ensure_future(queue.accept_session(timeout=20))
    await asyncio.sleep(0.1)
    await queue.send(BrokeredMessage("x", session_id="late"))
    assert (await waiting).session_id == "late"


async def test_a_session_has_one_receiver_and_is_released_with_its_messages_on_close(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    await queue.send_batch(numbered_messages(3, session_id="one"))
    session = await queue.accept_session("one", prefetch=3)
    assert (await receive_one(session)).text == "0"
    with pytest.raises(SessionCannotBeLocked):
        await queue.accept_session("one")
    await session.close()
    async with await queue.accept_session("one") as again:
        assert texts(await receive(again, 3)) == ["0", "1", "2"]


async def test_a_session_is_lost_with_its_connection_and_can_be_accepted_again(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    await queue.send_batch(numbered_messages(2, session_id="one"))
    session = await queue.accept_session("one")
    message = await receive_one(session)
    await cut_connection(bus.shared_factory)
    with pytest.raises(SessionLockLost):
        await session.receive(1)
    with pytest.raises(CallerError):
        await session.complete(message)
    async with await queue.accept_session("one", timeout=20) as again:
        assert texts(await receive(again, 2)) == ["0", "1"]


async def test_messages_of_a_session_can_be_received_and_deleted(bus: Bus) -> None:
    queue = bus.shared_factory.create_queue_client(bus.server.create_queue(**SESSIONS), ReceiveMode.RECEIVE_AND_DELETE)
    await queue.send_batch(numbered_messages(3, session_id="one"))
    async with await queue.accept_session() as session:
        assert texts(await receive(session, 3)) == ["0", "1", "2"]
    assert bus.message_counts(queue) == (0, 0)


async def test_sessions_are_required_in_session_queues_and_refused_in_others(bus: Bus) -> None:
    with_sessions, plain = bus.create_queue(**SESSIONS), bus.create_queue()
    with pytest.raises(ServiceBusError):
        await plain.accept_session("one", timeout=1)
    with pytest.raises(NotAllowed):
        await with_sessions.receive(1)
    with pytest.raises(CallerError):
        await with_sessions.send(BrokeredMessage("no session"))
    await with_sessions.send(BrokeredMessage("x", session_id="one"))


async def test_a_cancelled_accept_session_does_not_keep_the_session_from_others(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    waiting = asyncio.ensure_future(queue.accept_session(timeout=20))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await queue.send(BrokeredMessage("x", session_id="one"))
    async with await queue.accept_session(timeout=10) as session:
        assert (await receive_one(session)).text == "x"
