"""`com.microsoft:get-message-sessions` lists sessions page by page.

It lists the sessions that have messages or a state, or those whose state was set after a given time."""

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
"""The time that the SDKs send to list all sessions: the end of the year 9999."""


@pytest.fixture
def queue(server: ServerProcess) -> str:
    return server.create_queue(RequiresSession="true")


async def list_sessions(
    client: RawClient, queue: str, *, since_ms: int = ALL_MS, skip: int = 0, top: int = 100
) -> list[str]:
    arguments = {"last-updated-time": Timestamp(since_ms), "skip": Int(skip), "top": Int(top)}
    answer = await request_management(client, queue, LIST, arguments)
    if answer.status == 204:
        assert answer.body == {}
        return []
    assert answer.status == 200, answer.text
    sessions = answer.body["sessions-ids"]
    assert isinstance(sessions, Array)
    assert sessions.element_type is str
    assert answer.body["skip"] == skip + len(sessions.items)
    return [str(name) for name in sessions.items]


async def send_to(client: RawClient, queue: str, sessions: Iterable[str]) -> None:
    await send(client, queue, *[order_message(number, session=name) for number, name in enumerate(sessions, 1)])


async def set_state(client: RawClient, queue: str, session: str, state: bytes | None) -> None:
    link = await accept_session(client, queue, session)
    answer = await request_management(client, queue, SET, {"session-id": session, "session-state": state})
    assert answer.status == 200, answer.text
    await client.detach(link)


async def test_sessions_with_messages_are_listed_once_each(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        assert await list_sessions(client, queue) == []
        await send_to(client, queue, ["b", "a", "b", "", "a", "c" * 128, "Zürich"])
        assert sorted(await list_sessions(client, queue)) == sorted(["", "a", "b", "c" * 128, "Zürich"])


async def test_sessions_with_a_state_are_listed_until_the_state_is_cleared(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, ["messages", "both"])
        await set_state(client, queue, "both", b"x")
        await set_state(client, queue, "state", b"")
        await set_state(client, queue, "nothing", None)
        assert sorted(await list_sessions(client, queue)) == ["both", "messages", "state"]
        await set_state(client, queue, "state", None)
        await set_state(client, queue, "both", None)
        assert sorted(await list_sessions(client, queue)) == ["both", "messages"]


async def test_a_session_with_only_completed_deferred_or_scheduled_messages_is_not_listed(
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
        assert await list_sessions(client, queue) == ["held"]


async def test_a_listing_by_time_has_the_sessions_whose_state_was_set_later(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, ["messages"])
        before_ms = int(time.time() * 1000) - 1
        await set_state(client, queue, "a", b"1")
        await set_state(client, queue, "b", b"1")
        between_ms = await wait_for_a_later_millisecond()
        await set_state(client, queue, "c", b"1")
        await set_state(client, queue, "a", b"2")
        assert sorted(await list_sessions(client, queue, since_ms=0)) == ["a", "b", "c"]
        assert sorted(await list_sessions(client, queue, since_ms=before_ms)) == ["a", "b", "c"]
        assert sorted(await list_sessions(client, queue, since_ms=between_ms)) == ["a", "c"]
        assert await list_sessions(client, queue, since_ms=between_ms + 3_600_000) == []
        await set_state(client, queue, "c", None)
        assert await list_sessions(client, queue, since_ms=between_ms) == ["a"]


async def wait_for_a_later_millisecond() -> int:
    """Return a time after everything before this call and before everything after it."""
    start_ms = int(time.time() * 1000)
    while int(time.time() * 1000) < start_ms + 3:
        pass
    return start_ms + 1


@pytest.mark.parametrize("by_time", [False, True], ids=["all", "by time"])
@pytest.mark.parametrize("top", [1, 3, 7, 10, 25, 1_000])
async def test_the_pages_together_list_every_session_once(
    server: ServerProcess, queue: str, top: int, *, by_time: bool
) -> None:
    names = [f"session {number:02}" for number in range(25)]
    async with connect_raw(server) as client:
        if by_time:
            for name in names:
                await set_state(client, queue, name, b"x")
        else:
            await send_to(client, queue, names * 2)
        sessions: list[str] = []
        while page := await list_sessions(
            client, queue, since_ms=0 if by_time else ALL_MS, skip=len(sessions), top=top
        ):
            assert len(page) <= top
            sessions += page
        assert sorted(sessions) == names
        assert len(sessions) == len(names)


async def test_a_page_can_start_at_any_offset(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, [f"session {number:02}" for number in range(10)])
        whole = await list_sessions(client, queue)
        for skip in (7, 3, 9, 0, 10, 2_147_483_647):
            assert await list_sessions(client, queue, skip=skip, top=2) == whole[skip : skip + 2]
            assert await list_sessions(client, queue, skip=skip, top=2_147_483_647) == whole[skip:]


async def test_a_request_without_arguments_lists_all_sessions(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, ["a", "b"])
        answer = await request_management(client, queue, LIST)
        assert answer.body["sessions-ids"].items == ["a", "b"]


async def test_listing_the_sessions_of_an_entity_without_sessions_is_refused(server: ServerProcess, queue: str) -> None:
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
