"""Queues disabled for senders or receivers: operations raise EntityDisabled until the queue is active again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, numbered_messages, receive_one
from twinbus.client import BrokeredMessage
from twinbus.model.errors import EntityDisabled

if TYPE_CHECKING:
    from tests.client.bus import Bus


@pytest.mark.parametrize(
    ("status", "can_send", "can_receive"),
    [("SendDisabled", False, True), ("ReceiveDisabled", True, False), ("Disabled", False, False)],
)
async def test_a_status_applies_to_open_links_until_the_queue_is_active_again(
    bus: Bus,
    status: str,
    can_send: bool,  # noqa: FBT001  # a column of the table
    can_receive: bool,  # noqa: FBT001
) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(3))
    await queue.complete(await receive_one(queue))
    bus.server.update_queue(queue.path, Status=status)
    if can_send:
        await queue.send(BrokeredMessage("x"))
    else:
        with pytest.raises(EntityDisabled, match=status):
            await queue.send(BrokeredMessage("x"))
    if can_receive:
        await queue.complete(await receive_one(queue))
    else:
        with pytest.raises(EntityDisabled, match=status):
            await queue.receive(10)
    assert bus.message_counts(queue) == (2 + can_send - can_receive, 0)
    bus.server.update_queue(queue.path, Status="Active")
    await queue.send(BrokeredMessage("y"))
    await queue.complete(await receive_one(queue))


async def test_disabling_a_queue_fails_waiting_receives_and_sessions_at_once(bus: Bus) -> None:
    queue, with_sessions = bus.create_queue(), bus.create_queue(**SESSIONS)
    waiting = asyncio.ensure_future(queue.receive(60))
    session = await with_sessions.accept_session("one")
    in_session = asyncio.ensure_future(session.receive(60))
    await queue.receiver.open()
    bus.server.update_queue(queue.path, Status="ReceiveDisabled")
    bus.server.update_queue(with_sessions.path, Status="Disabled", **SESSIONS)
    async with asyncio.timeout(10):
        for task in (waiting, in_session):
            with pytest.raises(EntityDisabled):
                await task
