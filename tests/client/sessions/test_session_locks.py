"""Session locks: renewed explicitly or automatically, lost on expiry."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, SHORT_LOCK, SHORTEST_LOCK_S, numbered_messages, receive_one
from twinbus.model.errors import SessionLockLost

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_renewing_a_session_lock_extends_it(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    async with await queue.accept_session("one") as session:
        before = session.locked_until_utc
        await asyncio.sleep(0.01)
        after = await session.renew_session_lock()
        assert after > before
        assert session.locked_until_utc == after


async def test_a_session_lock_expires_or_is_renewed_automatically(bus: Bus) -> None:
    """Both cases in one test: the shortest lock lasts five seconds of real time."""
    queue = bus.create_queue(**SESSIONS, **SHORT_LOCK)
    for name in ("lost", "renewed"):
        await queue.send_batch(numbered_messages(2, session_id=name))
    lost, renewed = await queue.accept_session("lost"), await queue.accept_session("renewed", auto_renew=60)
    late, message = await receive_one(lost), await receive_one(renewed)
    await asyncio.sleep(SHORTEST_LOCK_S + 1.5)
    with pytest.raises(SessionLockLost):
        await lost.complete(late)
    with pytest.raises(SessionLockLost):
        await lost.receive(1)
    with pytest.raises(SessionLockLost):
        await lost.renew_session_lock()
    await renewed.complete(message)
    assert (await receive_one(renewed)).text == "1"
    async with await queue.accept_session("lost") as again:
        assert (await receive_one(again)).text == "0"
