"""Only the holder of a session reads or sets its state and renews its lock, and links must match RequiresSession."""

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
SESSION_REQUESTS: dict[str, dict[str, object]] = {GET: {}, SET: {"session-state": b"theirs"}, RENEW: {}}


@pytest.fixture
def queue(server: ServerProcess) -> str:
    return server.create_queue(RequiresSession="true")


async def state_of(client: RawClient, queue: str, session: str) -> object:
    answer = await request_management(client, queue, GET, {"session-id": session})
    assert answer.status == 200, answer.text
    return answer.body["session-state"]


async def assert_session_lock_lost(client: RawClient, queue: str, session: str) -> None:
    for operation, others in SESSION_REQUESTS.items():
        answer = await request_management(client, queue, operation, {"session-id": session, **others})
        assert (answer.status, answer.condition) == LOST
        assert f"'{session}'" in answer.text


# --- the holder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", ["a", "", "x" * 128, "Zürich 🚂"], ids=["short", "empty", "long", "text"])
async def test_the_holder_of_a_session_sets_gets_and_renews(server: ServerProcess, queue: str, session: str) -> None:
    async with connect_raw(server) as client:
        await accept_session(client, queue, session)
        assert await state_of(client, queue, session) is None
        for state in (b"half-way", b"", bytes(100_000)):
            answer = await request_management(client, queue, SET, {"session-id": session, "session-state": state})
            assert answer.status == 200
            assert await state_of(client, queue, session) == state
        for no_state in ({"session-state": None}, {}):
            assert (await request_management(client, queue, SET, {"session-id": session, **no_state})).status == 200
            assert await state_of(client, queue, session) is None
        renewed = await request_management(client, queue, RENEW, {"session-id": session})
        assert renewed.status == 200
        assert isinstance(renewed.body["expiration"], Timestamp)


async def test_the_states_of_several_sessions_of_one_client_are_separate(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        for session in ("a", "b", "c"):
            await accept_session(client, queue, session)
        for session in ("c", "a", "b"):
            state = {"session-id": session, "session-state": session.encode()}
            assert (await request_management(client, queue, SET, state)).status == 200
            assert (await request_management(client, queue, RENEW, {"session-id": session})).status == 200
        assert [await state_of(client, queue, session) for session in ("a", "b", "c")] == [b"a", b"b", b"c"]


async def test_a_renewal_extends_the_session_lock(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await accept_session(client, queue, "a")
        assert link.remote_attach is not None
        ticks = (link.remote_attach.properties or {})["com.microsoft:locked-until-utc"]
        assert isinstance(ticks, int)
        first = await request_management(client, queue, RENEW, {"session-id": "a"})
        second = await request_management(client, queue, RENEW, {"session-id": "a"})
        until_ms = (ticks - 621_355_968_000_000_000) // 10_000
        assert until_ms <= first.body["expiration"] <= second.body["expiration"]


async def test_a_session_state_outlives_its_messages_and_links(server: ServerProcess, queue: str) -> None:
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


# --- other clients ----------------------------------------------------------------------------------------------------


async def test_a_session_held_by_another_connection_cannot_be_read_set_or_renewed(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        link = await accept_session(holder, queue, "a")
        state = {"session-id": "a", "session-state": b"mine"}
        assert (await request_management(holder, queue, SET, state)).status == 200
        await accept_session(other, queue, "b")
        await assert_session_lock_lost(other, queue, "a")
        await assert_session_lock_lost(holder, queue, "b")
        assert await state_of(holder, queue, "a") == b"mine"
        assert await state_of(other, queue, "b") is None
        await send(other, queue, order_message(1, session="a"))
        assert message_ids(await holder.receive(link)) == order_ids(1)


async def test_a_session_without_a_holder_cannot_be_read_set_or_renewed(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1, session="a"))
        for session in ("a", "unheard of", ""):
            await assert_session_lock_lost(client, queue, session)


async def test_a_session_with_the_same_name_in_another_queue_is_separate(server: ServerProcess, queue: str) -> None:
    other = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await accept_session(client, queue, "a")
        await assert_session_lock_lost(client, other, "a")


async def test_a_detached_client_no_longer_holds_its_session(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await accept_session(client, queue, "a")
        assert (await request_management(client, queue, RENEW, {"session-id": "a"})).status == 200
        await client.detach(link)
        await assert_session_lock_lost(client, queue, "a")


@pytest.mark.parametrize("operation", SESSION_REQUESTS)
async def test_session_requests_to_an_entity_without_sessions_are_refused(
    server: ServerProcess, queue: str, operation: str
) -> None:
    """The error for a lost lock advises to accept the session again, which would not help here."""
    plain = server.create_queue()
    async with connect_raw(server) as client:
        await accept_session(client, queue, "a")
        for entity in (plain, f"{plain}/$DeadLetterQueue", f"{queue}/$DeadLetterQueue"):
            answer = await request_management(
                client, entity, operation, {"session-id": "a", **SESSION_REQUESTS[operation]}
            )
            assert (answer.status, answer.condition) == (400, "amqp:not-allowed")
            assert entity in answer.text


async def test_only_the_holder_of_a_session_receives_its_deferred_messages(server: ServerProcess, queue: str) -> None:
    arguments = {"sequence-numbers": [1], "receiver-settle-mode": UInt(1), "session-id": "a"}
    receive = "com.microsoft:receive-by-sequence-number"
    async with connect_raw(server) as holder, connect_raw(server) as other:
        await send(other, queue, order_message(1, session="a"))
        link = await accept_session(holder, queue, "a")
        [delivery] = await holder.receive(link)
        assert await holder.settle(link, delivery, DEFERRED) is None
        answer = await request_management(other, queue, receive, arguments)
        assert (answer.status, answer.condition) == LOST
        await accept_session(other, queue, "b")
        answer = await request_management(other, queue, receive, {**arguments, "session-id": "b"})
        assert (answer.status, answer.condition) == (404, "com.microsoft:message-not-found")
        answer = await request_management(holder, queue, receive, arguments)
        assert answer.status == 200
        assert len(answer.body["messages"]) == 1


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True], ids=["peek-lock", "receive-and-delete"])
async def test_a_receiver_without_a_session_on_a_queue_with_sessions_is_refused(
    server: ServerProcess, queue: str, *, settled: bool
) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1, session="a"))
        with pytest.raises(LinkRefused, match="amqp:not-allowed") as caught:
            await client.attach_receiver(queue, settled=settled)
        assert "sessions" in caught.value.text
        assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("session", ["a", None], ids=["named", "next"])
async def test_a_dead_letter_queue_has_no_sessions_even_if_its_queue_has(
    server: ServerProcess, queue: str, session: str | None
) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="amqp:not-allowed"):
            await accept_session(client, f"{queue}/$DeadLetterQueue", session)
        await client.attach_receiver(f"{queue}/$DeadLetterQueue")


@pytest.mark.parametrize("session", [7, b"a", True, ["a"], {"a": 1}, Described(Symbol("x"), 7)], ids=str)
async def test_a_session_id_that_is_not_a_string_is_refused(server: ServerProcess, queue: str, session: object) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await accept_session(client, queue, session)
        assert "session" in caught.value.text
        await accept_session(client, queue, "a")


@pytest.mark.parametrize("length", [129, 10_000, 60_000])
async def test_a_session_id_that_is_too_long_is_refused(server: ServerProcess, queue: str, length: int) -> None:
    """A session id has at most 128 characters, as in sent messages."""
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, order_message(1, session="x" * length)) == "com.microsoft:argument-out-of-range"
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-out-of-range"):
            await accept_session(client, queue, "x" * length)
        await accept_session(client, queue, "x" * 128)


async def test_a_session_filter_can_be_a_described_value(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1], session="a")
        link = await accept_session(client, queue, Described(ULong(0x137_0000_000C), "a"))
        assert message_ids(await client.receive(link)) == order_ids(1)


async def test_a_session_has_one_receiver_at_a_time(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        link = await accept_session(holder, queue, "a")
        for client in (holder, other):
            with pytest.raises(LinkRefused, match=r"com\.microsoft:session-cannot-be-locked") as caught:
                await accept_session(client, queue, "a")
            assert "'a'" in caught.value.text
        await holder.detach(link)
        await accept_session(other, queue, "a")


async def test_waiting_for_any_session_fails_when_the_given_timeout_expires(server: ServerProcess, queue: str) -> None:
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
async def test_waiting_for_any_session_without_a_positive_timeout_fails_at_once(
    server: ServerProcess, queue: str, wait_ms: int
) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:timeout"):
            await accept_session(client, queue, None, properties={"com.microsoft:timeout": wait_ms})


async def test_a_queue_with_sessions_needs_a_session_id_and_any_queue_accepts_one(
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
