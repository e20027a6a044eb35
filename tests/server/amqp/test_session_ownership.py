"""Only who has a session reads or sets its state and renews its lock; and links fit to whether a queue has sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    accept_session,
    message_ids,
    order_ids,
    order_message,
    request_management,
    send,
    send_orders,
)
from tests.support.raw_client import LinkRefused, connect_raw
from twinbus.amqp.outcomes import ACCEPTED, Modified
from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

GET, SET = "com.microsoft:get-session-state", "com.microsoft:set-session-state"
RENEW = "com.microsoft:renew-session-lock"
LOST = (410, "com.microsoft:session-lock-lost")
DEFERRED = Modified(undeliverable_here=True)
ASKED: dict[str, dict[str, object]] = {GET: {}, SET: {"session-state": b"theirs"}, RENEW: {}}


@pytest.fixture
def queue(server: ServerProcess) -> str:
    return server.create_queue(RequiresSession="true")


async def state_of(client: RawClient, queue: str, session: str) -> object:
    answer = await request_management(client, queue, GET, {"session-id": session})
    assert answer.status == 200, answer.text
    return answer.body["session-state"]


async def assert_is_not_had(client: RawClient, queue: str, session: str) -> None:
    for operation, others in ASKED.items():
        answer = await request_management(client, queue, operation, {"session-id": session, **others})
        assert (answer.status, answer.condition) == LOST
        assert f"'{session}'" in answer.text


# --- who has it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", ["a", "", "x" * 128, "Zürich 🚂"], ids=["short", "empty", "long", "text"])
async def test_who_has_a_session_sets_gets_and_renews(server: ServerProcess, queue: str, session: str) -> None:
    async with connect_raw(server) as client:
        await accept_session(client, queue, session)
        assert await state_of(client, queue, session) is None
        for state in (b"half-way", b"", bytes(100_000)):
            answer = await request_management(client, queue, SET, {"session-id": session, "session-state": state})
            assert answer.status == 200
            assert await state_of(client, queue, session) == state
        for nothing in ({"session-state": None}, {}):
            assert (await request_management(client, queue, SET, {"session-id": session, **nothing})).status == 200
            assert await state_of(client, queue, session) is None
        renewed = await request_management(client, queue, RENEW, {"session-id": session})
        assert renewed.status == 200
        assert isinstance(renewed.body["expiration"], Timestamp)


async def test_who_has_several_sessions_keeps_them_apart(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        for session in ("a", "b", "c"):
            await accept_session(client, queue, session)
        for session in ("c", "a", "b"):
            state = {"session-id": session, "session-state": session.encode()}
            assert (await request_management(client, queue, SET, state)).status == 200
            assert (await request_management(client, queue, RENEW, {"session-id": session})).status == 200
        assert [await state_of(client, queue, session) for session in ("a", "b", "c")] == [b"a", b"b", b"c"]


async def test_a_renewal_reaches_further_than_the_lock_did(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await accept_session(client, queue, "a")
        assert link.remote_attach is not None
        ticks = (link.remote_attach.properties or {})["com.microsoft:locked-until-utc"]
        assert isinstance(ticks, int)
        first = await request_management(client, queue, RENEW, {"session-id": "a"})
        second = await request_management(client, queue, RENEW, {"session-id": "a"})
        until_ms = (ticks - 621_355_968_000_000_000) // 10_000
        assert until_ms <= first.body["expiration"] <= second.body["expiration"]


async def test_a_state_outlives_messages_links_and_connections(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1, session="a"))
        link = await accept_session(client, queue, "a")
        answer = await request_management(client, queue, SET, {"session-id": "a", "session-state": b"half-way"})
        assert answer.status == 200
        [delivery] = await client.receive(link)
        assert await client.settle(link, delivery, ACCEPTED) is None
        await client.detach(link)
        await accept_session(client, queue, "a")
        assert await state_of(client, queue, "a") == b"half-way"


# --- who has it not ---------------------------------------------------------------------------------------------------


async def test_a_session_that_another_connection_has_is_not_ones_own(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        link = await accept_session(holder, queue, "a")
        mine = {"session-id": "a", "session-state": b"mine"}
        assert (await request_management(holder, queue, SET, mine)).status == 200
        await accept_session(other, queue, "b")
        await assert_is_not_had(other, queue, "a")
        await assert_is_not_had(holder, queue, "b")
        assert await state_of(holder, queue, "a") == b"mine"
        assert await state_of(other, queue, "b") is None
        await send(other, queue, order_message(1, session="a"))
        assert message_ids(await holder.receive(link)) == order_ids(1)


async def test_a_session_that_nobody_has_is_nobodys(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1, session="a"))
        for session in ("a", "unheard of", ""):
            await assert_is_not_had(client, queue, session)


async def test_a_session_of_another_queue_is_not_that_of_this_one(server: ServerProcess, queue: str) -> None:
    other = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await accept_session(client, queue, "a")
        await assert_is_not_had(client, other, "a")


async def test_a_session_that_was_closed_is_not_had_any_more(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await accept_session(client, queue, "a")
        assert (await request_management(client, queue, RENEW, {"session-id": "a"})).status == 200
        await client.detach(link)
        await assert_is_not_had(client, queue, "a")


@pytest.mark.parametrize("operation", ASKED)
async def test_what_has_no_sessions_says_so(server: ServerProcess, queue: str, operation: str) -> None:
    """To accept the session again, as one is told whose lock is lost, would help nobody here."""
    plain = server.create_queue()
    async with connect_raw(server) as client:
        await accept_session(client, queue, "a")
        for entity in (plain, f"{plain}/$DeadLetterQueue", f"{queue}/$DeadLetterQueue"):
            answer = await request_management(client, entity, operation, {"session-id": "a", **ASKED[operation]})
            assert (answer.status, answer.condition) == (400, "amqp:not-allowed")
            assert entity in answer.text


async def test_deferred_messages_of_a_session_are_for_who_has_it(server: ServerProcess, queue: str) -> None:
    wanted = {"sequence-numbers": [1], "receiver-settle-mode": UInt(1), "session-id": "a"}
    receive = "com.microsoft:receive-by-sequence-number"
    async with connect_raw(server) as holder, connect_raw(server) as other:
        await send(other, queue, order_message(1, session="a"))
        link = await accept_session(holder, queue, "a")
        [delivery] = await holder.receive(link)
        assert await holder.settle(link, delivery, DEFERRED) is None
        answer = await request_management(other, queue, receive, wanted)
        assert (answer.status, answer.condition) == LOST
        await accept_session(other, queue, "b")
        answer = await request_management(other, queue, receive, {**wanted, "session-id": "b"})
        assert (answer.status, answer.condition) == (404, "com.microsoft:message-not-found")
        answer = await request_management(holder, queue, receive, wanted)
        assert answer.status == 200
        assert len(answer.body["messages"]) == 1


# --- links that do not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True], ids=["peek-lock", "receive-and-delete"])
async def test_a_queue_with_sessions_is_not_received_from_without_one(
    server: ServerProcess, queue: str, *, settled: bool
) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1, session="a"))
        with pytest.raises(LinkRefused, match="amqp:not-allowed") as caught:
            await client.attach_receiver(queue, settled=settled)
        assert "sessions" in caught.value.text
        assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("session", ["a", None], ids=["named", "next"])
async def test_dead_letters_have_no_sessions_though_their_queue_has(
    server: ServerProcess, queue: str, session: str | None
) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="amqp:not-allowed"):
            await accept_session(client, f"{queue}/$DeadLetterQueue", session)
        await client.attach_receiver(f"{queue}/$DeadLetterQueue")


@pytest.mark.parametrize("session", [7, b"a", True, ["a"], {"a": 1}, Described(Symbol("x"), 7)], ids=str)
async def test_a_session_that_is_no_text_is_refused(server: ServerProcess, queue: str, session: object) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await accept_session(client, queue, session)
        assert "session" in caught.value.text
        await accept_session(client, queue, "a")


@pytest.mark.parametrize("length", [129, 10_000, 60_000])
async def test_a_session_that_no_message_can_be_of_is_refused(server: ServerProcess, queue: str, length: int) -> None:
    """A session id has 128 characters at most; so it is when a message is sent."""
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, order_message(1, session="x" * length)) == "com.microsoft:argument-out-of-range"
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-out-of-range"):
            await accept_session(client, queue, "x" * length)
        await accept_session(client, queue, "x" * 128)


async def test_a_session_filter_may_be_described(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1], session="a")
        link = await accept_session(client, queue, Described(ULong(0x137_0000_000C), "a"))
        assert message_ids(await client.receive(link)) == order_ids(1)


async def test_a_session_is_one_receivers_at_a_time(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        link = await accept_session(holder, queue, "a")
        for client in (holder, other):
            with pytest.raises(LinkRefused, match=r"com\.microsoft:session-cannot-be-locked") as caught:
                await accept_session(client, queue, "a")
            assert "'a'" in caught.value.text
        await holder.detach(link)
        await accept_session(other, queue, "a")


async def test_who_waits_for_any_session_is_told_when_the_time_it_gave_is_over(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:timeout"):
            await accept_session(client, queue, None, properties={"com.microsoft:timeout": UInt(50)})
        await send(client, queue, order_message(1, session="a"))
        link = await accept_session(client, queue, None, properties={"com.microsoft:timeout": UInt(5_000)})
        assert link.remote_attach is not None
        source = link.remote_attach.source
        assert isinstance(source, Source)
        assert (source.filter or {})["com.microsoft:session-filter"] == "a"


@pytest.mark.parametrize("wait_ms", [Int(0), Int(-1), -(2**63)], ids=str)
async def test_who_gives_no_time_is_told_at_once(server: ServerProcess, queue: str, wait_ms: int) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:timeout"):
            await accept_session(client, queue, None, properties={"com.microsoft:timeout": wait_ms})


async def test_a_message_without_a_session_is_refused_and_one_with_it_is_taken_by_any_queue(
    server: ServerProcess, queue: str
) -> None:
    plain = server.create_queue()
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, order_message(1)) == "amqp:not-allowed"
        assert await client.send(link, order_message(2, session="a")) is None
        await send(client, plain, order_message(3, session="a"))
        assert server.message_counts(queue) == (1, 0)
        assert message_ids(await client.receive(await client.attach_receiver(plain))) == order_ids(3)
