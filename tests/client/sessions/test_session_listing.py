"""Listing the sessions of an entity that have messages or a state, over several pages."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS
from twinbus.client import BrokeredMessage
from twinbus.model.errors import CallerError

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_all_sessions_with_messages_or_a_state_are_listed_once(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    assert await queue.get_message_sessions() == []
    names = {f"session {number}" for number in range(230)}
    await queue.send_batch([BrokeredMessage("x", session_id=name) for name in sorted(names)])
    listed = await queue.get_message_sessions()
    assert (len(listed), set(listed)) == (230, names)


async def test_sessions_can_be_listed_by_the_time_their_state_was_set(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    await queue.send(BrokeredMessage("x", session_id="without a state"))
    async with await queue.accept_session("with a state") as session:
        await session.set_state(b"x")
    assert await queue.get_message_sessions(before) == ["with a state"]
    assert await queue.get_message_sessions(before + dt.timedelta(hours=1)) == []


async def test_listing_the_sessions_of_a_queue_without_sessions_is_refused(bus: Bus) -> None:
    with pytest.raises(CallerError):
        await bus.create_queue().get_message_sessions()
