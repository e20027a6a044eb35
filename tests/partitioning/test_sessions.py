"""A session lives in one fragment: its messages keep their order, and it has one state."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    partitioned_namespace,
    texts,
)
from twinbus.client import BrokeredMessage
from twinbus.model.errors import (
    FragmentUnavailable,
    InternalFault,
    NotAllowed,
    OperationTimeout,
    QuotaExceeded,
    SessionCannotBeLocked,
)
from twinbus.testing import in_virtual_time

SESSIONS = [key_for_fragment(fragment) for fragment in range(FRAGMENTS)]


@in_virtual_time
async def test_r096_r113_messages_of_a_session_are_in_one_fragment_and_keep_their_order() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        for number in range(5):
            for session_id in SESSIONS:
                await orders.client.send(BrokeredMessage(f"{number}", session_id=session_id))
        for fragment, session_id in enumerate(SESSIONS):
            session = await orders.client.accept_session(session_id)
            received = await session.receive_batch(10, timeout=1)
            assert texts(received) == ["0", "1", "2", "3", "4"]
            assert {fragment_of_message(message) for message in received} == {fragment}
            for message in received:
                await session.complete(message)
            await session.close()
        assert await orders.fragments() == []


@in_virtual_time
async def test_r113_the_state_of_a_session_survives_a_kill() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        for number, session_id in enumerate(SESSIONS):
            session = await orders.client.accept_session(session_id)
            await session.set_state(f"state {number}".encode())
            await session.close()
        orders.namespace.kill()
        await orders.namespace.start()
        client = orders.namespace.factory().create_queue_client("orders")
        for number, session_id in enumerate(SESSIONS):
            session = await client.accept_session(session_id)
            assert await session.get_state() == f"state {number}".encode()
            await session.close()


@in_virtual_time
async def test_session_states_count_against_the_quota_of_their_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)  # so that the limit of each fragment is 1,024 bytes
    async with partitioned_namespace(requires_session=True) as orders:
        full, other = [await orders.client.accept_session(session_id) for session_id in SESSIONS[:2]]
        await full.set_state(bytes(900))
        same_fragment = await orders.client.accept_session(key_for_fragment(0, 1))
        with pytest.raises(QuotaExceeded, match="clear session states"):
            await same_fragment.set_state(bytes(200))
        with pytest.raises(QuotaExceeded):
            await orders.client.send(BrokeredMessage("x" * 100, session_id=SESSIONS[0]))
        await other.set_state(bytes(900))
        await full.set_state(None)
        await same_fragment.set_state(bytes(200))


@in_virtual_time
async def test_r113_a_session_has_one_receiver() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        held = await orders.client.accept_session(SESSIONS[5])
        other = orders.namespace.factory(operation_timeout=5).create_queue_client("orders")
        with pytest.raises(SessionCannotBeLocked):
            await other.accept_session(SESSIONS[5])
        await held.renew_session_lock()
        await held.close()
        await other.accept_session(SESSIONS[5])


@in_virtual_time
async def test_accepting_any_session_grants_each_session_of_all_fragments_once() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        for session_id in SESSIONS:
            await orders.client.send(BrokeredMessage("x", session_id=session_id))
        sessions = [await orders.client.accept_session(timeout=5) for _ in SESSIONS]
        assert {session.session_id for session in sessions} == set(SESSIONS)
        with pytest.raises(OperationTimeout):
            await orders.client.accept_session(timeout=5)
        for session in sessions:
            message = await session.receive(timeout=1)
            assert message is not None
            await session.complete(message)


@in_virtual_time
async def test_a_receiver_waiting_for_any_session_gets_the_first_of_any_fragment() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        waiting = [asyncio.ensure_future(orders.client.accept_session(timeout=60)) for _ in range(3)]
        await asyncio.sleep(5)
        for fragment in (14, 1, 6):
            await orders.client.send(BrokeredMessage("x", session_id=SESSIONS[fragment]))
        sessions = await asyncio.gather(*waiting)
        assert {session.session_id for session in sessions} == {SESSIONS[14], SESSIONS[1], SESSIONS[6]}


@in_virtual_time
async def test_sessions_of_every_fragment_are_accepted_in_turn() -> None:
    """Even while earlier sessions keep getting new messages."""
    async with partitioned_namespace(requires_session=True) as orders:
        for session_id in SESSIONS:
            await orders.client.send(BrokeredMessage("x", session_id=session_id))
        seen: set[str | None] = set()
        for _ in range(4 * FRAGMENTS):
            session = await orders.client.accept_session(timeout=5)
            seen.add(session.session_id)
            message = await session.receive(timeout=1)
            assert message is not None
            await orders.client.send(BrokeredMessage("x", session_id=session.session_id))
            await session.complete(message)
            await session.close()
        assert seen == set(SESSIONS)


@in_virtual_time
async def test_sessions_of_all_fragments_are_listed() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        names = [f"session {number}" for number in range(250)]
        await orders.client.send_batch([BrokeredMessage("x", session_id=name) for name in names])
        assert sorted(await orders.client.get_message_sessions()) == sorted(names)


@in_virtual_time
async def test_sessions_of_other_stores_work_while_a_store_is_unavailable() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        for session_id in SESSIONS:
            await orders.client.send(BrokeredMessage("x", session_id=session_id))
        orders.fail(2)
        with pytest.raises(FragmentUnavailable):
            await orders.client.send(BrokeredMessage("y", session_id=SESSIONS[2]))
        accepted = [await orders.client.accept_session(timeout=5) for _ in range(12)]
        assert {SESSIONS.index(str(session.session_id)) % 4 for session in accepted} == {0, 1, 3}
        with pytest.raises(InternalFault, match="store 2"):
            await orders.client.accept_session(SESSIONS[6], timeout=5)
        orders.namespace.outage.restore()
        await asyncio.sleep(60)
        session = await orders.client.accept_session(SESSIONS[6], timeout=5)
        assert texts(await session.receive_batch(10, timeout=1)) == ["x"]


@in_virtual_time
async def test_a_message_without_a_session_is_refused() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        with pytest.raises(NotAllowed):
            await orders.client.send(BrokeredMessage("x", partition_key="key"))
