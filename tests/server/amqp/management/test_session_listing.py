"""Which sessions a queue has: those with messages or a state, or those whose state was set since; page by page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    FAR_FUTURE_MS,
    accept_session,
    defer,
    order_message,
    request_management,
    send,
)
from tests.support.raw_client import connect_raw
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.types import Array, Int, Timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

LIST = "com.microsoft:get-message-sessions"
SET = "com.microsoft:set-session-state"
ALL_MS = 253_402_300_800_000
"""As the SDKs say "all": the end of the year 9999."""


@pytest.fixture
def queue(server: ServerProcess) -> str:
    return server.create_queue(RequiresSession="true")


async def listed(client: RawClient, queue: str, *, since_ms: int = ALL_MS, skip: int = 0, top: int = 100) -> list[str]:
    wanted = {"last-updated-time": Timestamp(since_ms), "skip": Int(skip), "top": Int(top)}
    answer = await request_management(client, queue, LIST, wanted)
    if answer.status == 204:
        assert answer.body == {}
        return []
    assert answer.status == 200, answer.text
    found = answer.body["sessions-ids"]
    assert isinstance(found, Array)
    assert found.element_type is str
    assert answer.body["skip"] == skip + len(found.items)
    return [str(name) for name in found.items]


async def send_to(client: RawClient, queue: str, sessions: Iterable[str]) -> None:
    await send(client, queue, *[order_message(number, session=name) for number, name in enumerate(sessions, 1)])


async def set_state(client: RawClient, queue: str, session: str, state: bytes | None) -> None:
    link = await accept_session(client, queue, session)
    answer = await request_management(client, queue, SET, {"session-id": session, "session-state": state})
    assert answer.status == 200, answer.text
    await client.detach(link)


async def test_sessions_with_messages_are_listed_once_each(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        assert await listed(client, queue) == []
        await send_to(client, queue, ["b", "a", "b", "", "a", "c" * 128, "Zürich"])
        assert sorted(await listed(client, queue)) == sorted(["", "a", "b", "c" * 128, "Zürich"])


async def test_sessions_with_a_state_are_listed_until_it_is_nothing(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, ["messages", "both"])
        await set_state(client, queue, "both", b"x")
        await set_state(client, queue, "state", b"")
        await set_state(client, queue, "nothing", None)
        assert sorted(await listed(client, queue)) == ["both", "messages", "state"]
        await set_state(client, queue, "state", None)
        await set_state(client, queue, "both", None)
        assert sorted(await listed(client, queue)) == ["both", "messages"]


async def test_a_session_whose_messages_are_gone_deferred_or_scheduled_has_none(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, ["gone", "deferred", "held"])
        await send(client, queue, order_message(4, session="scheduled", due_ms=FAR_FUTURE_MS))
        gone = await accept_session(client, queue, "gone")
        [delivery] = await client.receive(gone)
        assert await client.settle(gone, delivery, ACCEPTED) is None
        deferred = await accept_session(client, queue, "deferred")
        await defer(client, deferred, (await client.receive(deferred))[0])
        held = await accept_session(client, queue, "held")
        await client.receive(held)
        assert await listed(client, queue) == ["held"]


async def test_by_time_those_are_listed_whose_state_was_set_after_it(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, ["messages"])
        before_ms = int(time.time() * 1000) - 1
        await set_state(client, queue, "a", b"1")
        await set_state(client, queue, "b", b"1")
        between_ms = await a_moment_between()
        await set_state(client, queue, "c", b"1")
        await set_state(client, queue, "a", b"2")
        assert sorted(await listed(client, queue, since_ms=0)) == ["a", "b", "c"]
        assert sorted(await listed(client, queue, since_ms=before_ms)) == ["a", "b", "c"]
        assert sorted(await listed(client, queue, since_ms=between_ms)) == ["a", "c"]
        assert await listed(client, queue, since_ms=between_ms + 3_600_000) == []
        await set_state(client, queue, "c", None)
        assert await listed(client, queue, since_ms=between_ms) == ["a"]


async def a_moment_between() -> int:
    """A millisecond of its own: what was before it was before, what comes after it comes after."""
    start_ms = int(time.time() * 1000)
    while int(time.time() * 1000) < start_ms + 3:
        pass
    return start_ms + 1


@pytest.mark.parametrize("by_time", [False, True], ids=["all", "by time"])
@pytest.mark.parametrize("top", [1, 3, 7, 10, 25, 1_000])
async def test_pages_make_up_the_whole_list_without_a_gap_or_a_repetition(
    server: ServerProcess, queue: str, top: int, *, by_time: bool
) -> None:
    names = [f"session {number:02}" for number in range(25)]
    async with connect_raw(server) as client:
        if by_time:
            for name in names:
                await set_state(client, queue, name, b"x")
        else:
            await send_to(client, queue, names * 2)
        found: list[str] = []
        while page := await listed(client, queue, since_ms=0 if by_time else ALL_MS, skip=len(found), top=top):
            assert len(page) <= top
            found += page
        assert sorted(found) == names
        assert len(found) == len(names)


async def test_a_page_can_begin_anywhere(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, [f"session {number:02}" for number in range(10)])
        whole = await listed(client, queue)
        for skip in (7, 3, 9, 0, 10, 2_147_483_647):
            assert await listed(client, queue, skip=skip, top=2) == whole[skip : skip + 2]
            assert await listed(client, queue, skip=skip, top=2_147_483_647) == whole[skip:]


async def test_everything_is_asked_for_if_nothing_is_said(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, ["a", "b"])
        answer = await request_management(client, queue, LIST)
        assert answer.body["sessions-ids"].items == ["a", "b"]


async def test_a_queue_without_sessions_has_no_list_of_them(server: ServerProcess, queue: str) -> None:
    plain = server.create_queue()
    async with connect_raw(server) as client:
        for entity in (
            plain,
            f"{plain}/$DeadLetterQueue",
            f"{queue}/$DeadLetterQueue",
        ):
            answer = await request_management(client, entity, LIST)
            assert (answer.status, answer.condition) == (400, "amqp:not-allowed")
            assert entity in answer.text
