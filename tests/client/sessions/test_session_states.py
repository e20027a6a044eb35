"""Session state: stored, changed and cleared; it outlives the session's messages and receivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.client.bus import SESSIONS

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_state_is_kept_for_the_next_receiver_and_can_be_cleared(every_bus: Bus) -> None:
    queue = every_bus.create_queue(**SESSIONS)
    async with await queue.accept_session("one") as session:
        assert await session.get_state() is None
        await session.set_state(b"half")
        await session.set_state(b"done \x00")
    async with await queue.accept_session("one") as session:
        assert await session.get_state() == b"done \x00"
        await session.set_state(None)
        assert await session.get_state() is None
    async with await queue.accept_session("two") as session:
        assert await session.get_state() is None
