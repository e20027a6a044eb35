"""No client settles messages locked by another: lock tokens cannot be guessed, and session locks need the session."""

from __future__ import annotations

import http.client
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    accept_session,
    annotation_of,
    defer,
    lock_token_of,
    request_management,
    send_orders,
)
from tests.support.raw_client import connect_raw
from tests.support.server_process import TIMEOUT_S
from tests.support.transaction_coordinator import attach_coordinator
from twinbus.amqp.outcomes import ACCEPTED, TransactionalState
from twinbus.amqp.types import Array, UInt

if TYPE_CHECKING:
    from tests.support.entity_operations import ManagementResponse
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

UPDATE, RENEW = "com.microsoft:update-disposition", "com.microsoft:renew-lock"
RECEIVE_DEFERRED = "com.microsoft:receive-by-sequence-number"
MESSAGE_LOCK_LOST = (410, "com.microsoft:message-lock-lost")
SESSION_LOCK_LOST = (410, "com.microsoft:session-lock-lost")
STATUSES = ("completed", "abandoned", "defered", "suspended")
NEAR = 50


async def settle(
    client: RawClient,
    queue: str,
    token: uuid.UUID,
    status: str = "completed",
    *,
    session: str | None = None,
    txn_id: bytes | None = None,
) -> ManagementResponse:
    session_id = {"session-id": session} if session is not None else {}
    body = {"disposition-status": status, "lock-tokens": Array(uuid.UUID, [token]), **session_id}
    state = TransactionalState(txn_id=txn_id) if txn_id is not None else None
    return await request_management(client, queue, UPDATE, body, state=state)


def http_status(server: ServerProcess, method: str, queue: str, sequence: int, token: uuid.UUID) -> int:
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
    try:
        address = f"/{queue}/messages/{sequence}/{token}"
        connection.request(method, address, headers={"Authorization": server.token(queue)})
        return connection.getresponse().status
    finally:
        connection.close()


# --- guessing ---------------------------------------------------------------------------------------------------------


async def test_a_lock_token_cannot_be_guessed_from_neighbouring_tokens(server: ServerProcess, queue: str) -> None:
    """A client of the same queue knows the tokens issued just before and after that of another client."""
    async with connect_raw(server) as victim, connect_raw(server) as thief:
        await send_orders(thief, queue, range(3))
        own_link = await thief.attach_receiver(queue)
        [before] = await thief.receive(own_link)
        link = await victim.attach_receiver(queue)
        [delivery] = await victim.receive(link)
        [after] = await thief.receive(own_link)
        known = [lock_token_of(neighbour).int for neighbour in (before, after)]
        guesses = {number + step for number in known for step in range(-NEAR, NEAR)} - set(known)
        assert lock_token_of(delivery).int not in guesses
        for guess in sorted(guesses)[:NEAR] + sorted(guesses)[-NEAR:]:
            answer = await settle(thief, queue, uuid.UUID(int=guess))
            assert (answer.status, answer.condition) == MESSAGE_LOCK_LOST
        sequence = annotation_of(delivery, "x-opt-sequence-number")
        for method in ("DELETE", "PUT", "POST"):
            assert http_status(server, method, queue, sequence, uuid.UUID(int=known[0] + 1)) == 404
        assert await victim.settle(link, delivery, ACCEPTED) is None
    assert server.message_counts(queue) == (2, 0)


# --- sessions ---------------------------------------------------------------------------------------------------------


async def assert_only_the_holder_settles(server: ServerProcess, queue: str, session: str) -> None:
    """A client that knows the token, for example from a log, still does not hold the session."""
    async with connect_raw(server) as holder, connect_raw(server) as thief:
        await send_orders(holder, queue, [1, 2, 3], session=session)
        link = await accept_session(holder, queue, session)
        first, second, third = await holder.receive(link, 3)
        await accept_session(thief, queue, f"{session} of the thief")
        for status in STATUSES:
            answer = await settle(thief, queue, lock_token_of(first), status)
            assert (answer.status, answer.condition) == MESSAGE_LOCK_LOST
            for name in (session, f"{session} of the thief"):
                answer = await settle(thief, queue, lock_token_of(first), status, session=name)
                assert (answer.status, answer.condition) == SESSION_LOCK_LOST
        coordinator = await attach_coordinator(thief)
        for claimed in (None, session):
            txn_id = await coordinator.declare()
            assert (await settle(thief, queue, lock_token_of(first), txn_id=txn_id, session=claimed)).status == 410
            assert await coordinator.discharge(txn_id) is not None
        tokens = {"lock-tokens": Array(uuid.UUID, [lock_token_of(first)])}
        for client in (thief, holder):
            answer = await request_management(client, queue, RENEW, tokens)
            assert (answer.status, answer.condition) == (400, "amqp:not-allowed")
        # The holder settles by requests, in a transaction or not, whether it names the session or not.
        assert (await settle(holder, queue, lock_token_of(first), session=session)).status == 200
        assert (await settle(holder, queue, lock_token_of(second))).status == 200
        coordinator = await attach_coordinator(holder)
        txn_id = await coordinator.declare()
        assert (await settle(holder, queue, lock_token_of(third), txn_id=txn_id, session=session)).status == 200
        assert await coordinator.discharge(txn_id) is None
        assert await holder.drain(link) == []


@pytest.mark.parametrize("partitioned", ["false", "true"])
async def test_only_the_session_holder_settles_a_message_of_the_session(
    server: ServerProcess, partitioned: str
) -> None:
    queue = server.create_queue(RequiresSession="true", EnablePartitioning=partitioned)
    await assert_only_the_holder_settles(server, queue, "a")
    assert server.message_counts(queue) == (0, 0)


async def test_only_the_session_holder_settles_a_deferred_message_of_the_session(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as holder, connect_raw(server) as thief:
        await send_orders(holder, queue, [1], session="a")
        link = await accept_session(holder, queue, "a")
        number = await defer(holder, link, (await holder.receive(link))[0])
        arguments = {"sequence-numbers": [number], "receiver-settle-mode": UInt(1), "session-id": "a"}
        answer = await request_management(holder, queue, RECEIVE_DEFERRED, arguments)
        token = answer.body["messages"][0]["lock-token"]
        assert (await settle(thief, queue, token)).status == 410
        assert (await settle(thief, queue, token, session="a")).status == 410
        assert (await settle(holder, queue, token, session="a")).status == 200


async def test_a_former_session_holder_cannot_settle_messages_of_the_next_one(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as before, connect_raw(server) as after:
        await send_orders(before, queue, [1], session="a")
        link = await accept_session(before, queue, "a")
        [lost] = await before.receive(link)
        await before.detach(link)
        link = await accept_session(after, queue, "a")
        [delivery] = await after.receive(link)
        for token in (lock_token_of(lost), lock_token_of(delivery)):
            answer = await settle(before, queue, token, session="a")
            assert (answer.status, answer.condition) == SESSION_LOCK_LOST
        assert await after.settle(link, delivery, ACCEPTED) is None
