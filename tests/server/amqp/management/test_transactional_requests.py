"""Messages are scheduled, and settled by their tokens, in a transaction: when it is committed, and not before."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    FAR_FUTURE_MS,
    annotation_of,
    lock_token_of,
    message_ids,
    order_ids,
    order_message,
    peek,
    request_management,
    send_orders,
    sequence_numbers,
)
from tests.support.raw_client import connect_raw
from tests.support.transaction_coordinator import attach_coordinator
from twinbus.amqp.message import Properties, build, value
from twinbus.amqp.outcomes import ACCEPTED, TransactionalState
from twinbus.amqp.types import Array

if TYPE_CHECKING:
    from tests.support.entity_operations import ManagementResponse
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

SCHEDULE = "com.microsoft:schedule-message"
CANCEL = "com.microsoft:cancel-scheduled-message"
UPDATE = "com.microsoft:update-disposition"
PEEK = "com.microsoft:peek-message"
DEFERRED, SCHEDULED = 1, 2


async def schedule(
    client: RawClient, entity: str, txn_id: bytes, *numbers: int, due_ms: int = FAR_FUTURE_MS
) -> ManagementResponse:
    messages = [{"message-id": f"order {one}", "message": order_message(one, due_ms=due_ms)} for one in numbers]
    return await request_management(
        client, entity, SCHEDULE, {"messages": messages}, state=TransactionalState(txn_id=txn_id)
    )


async def test_scheduled_messages_have_the_numbers_that_were_told_once_it_is_committed(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        txn_id = await coordinator.declare()
        answer = await schedule(client, queue, txn_id, 1, 2)
        assert answer.status == 200, answer.text
        await send_orders(client, queue, [3])
        assert message_ids(await peek(client, queue)) == order_ids(3)
        assert await coordinator.discharge(txn_id) is None
        found = [one for one in await peek(client, queue) if annotation_of(one, "x-opt-message-state") == SCHEDULED]
        assert message_ids(found) == order_ids(1, 2)
        numbers = answer.body["sequence-numbers"].items
        assert sequence_numbers(found) == numbers
        assert (
            await request_management(client, queue, CANCEL, {"sequence-numbers": Array(int, numbers)})
        ).status == 200
        assert message_ids(await peek(client, queue)) == order_ids(3)


async def test_what_is_scheduled_and_rolled_back_never_was(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        txn_id = await coordinator.declare()
        numbers = (await schedule(client, queue, txn_id, 1)).body["sequence-numbers"]
        assert await coordinator.discharge(txn_id, fail=True) is None
        assert await peek(client, queue) == []
        assert (await request_management(client, queue, CANCEL, {"sequence-numbers": numbers})).status == 404


async def test_what_is_due_already_comes_when_it_is_committed(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_receiver(queue)
        txn_id = await coordinator.declare()
        assert (await schedule(client, queue, txn_id, 1, due_ms=1_000)).status == 200
        assert await client.drain(link) == []
        assert await coordinator.discharge(txn_id) is None
        assert message_ids(await client.receive(link)) == order_ids(1)


@pytest.mark.parametrize("fail", [False, True], ids=["committed", "rolled back"])
async def test_a_message_is_completed_by_its_token_and_another_sent_together(
    server: ServerProcess, queue: str, *, fail: bool
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        coordinator, receiver = await attach_coordinator(client), await client.attach_receiver(queue)
        sender = await client.attach_sender(queue)
        [delivery] = await client.receive(receiver)
        await client.detach(receiver)
        txn_id = await coordinator.declare()
        state = TransactionalState(txn_id=txn_id)
        tokens = Array(uuid.UUID, [lock_token_of(delivery)])
        wanted = {"disposition-status": "completed", "lock-tokens": tokens}
        answer = await request_management(client, queue, UPDATE, wanted, state=state)
        assert answer.status == 200, answer.text
        assert await client.send(sender, order_message(2), state=state) is None
        assert message_ids(await peek(client, queue)) == order_ids(1)
        assert (await request_management(client, queue, UPDATE, wanted)).condition == "com.microsoft:message-lock-lost"
        assert await coordinator.discharge(txn_id, fail=fail) is None
        assert message_ids(await peek(client, queue)) == (order_ids(1) if fail else order_ids(2))
        if fail:
            assert (await request_management(client, queue, UPDATE, wanted)).status == 200


@pytest.mark.parametrize(
    ("status", "counts"), [("abandoned", (1, 0)), ("defered", (0, 0)), ("suspended", (0, 1))], ids=str
)
async def test_every_other_way_of_settling(
    server: ServerProcess, queue: str, status: str, counts: tuple[int, int]
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        coordinator = await attach_coordinator(client)
        [delivery] = await client.receive(await client.attach_receiver(queue))
        txn_id = await coordinator.declare()
        wanted = {"disposition-status": status, "lock-tokens": Array(uuid.UUID, [lock_token_of(delivery)])}
        wanted |= {"properties-to-modify": {"why": "because"}, "deadletter-reason": "bad"}
        answer = await request_management(client, queue, UPDATE, wanted, state=TransactionalState(txn_id=txn_id))
        assert answer.status == 200, answer.text
        assert await coordinator.discharge(txn_id) is None
        where = f"{queue}/$DeadLetterQueue" if status == "suspended" else queue
        [found] = await peek(client, where)
        reason = {"DeadLetterReason": "bad"} if status == "suspended" else {}
        assert found.application_properties == {"why": "because"} | reason
        assert (annotation_of(found, "x-opt-message-state") == DEFERRED) == (status == "defered")
    assert server.message_counts(queue) == counts


async def test_a_request_that_is_refused_fails_it(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator, sender = await attach_coordinator(client), await client.attach_sender(queue)
        lost = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, [uuid.uuid4()])}
        for operation, body, condition in (
            (UPDATE, lost, "com.microsoft:message-lock-lost"),
            (SCHEDULE, {"messages": [{"message": order_message(1)}]}, "com.microsoft:argument-error"),
            (PEEK, {}, "amqp:not-allowed"),
        ):
            txn_id = await coordinator.declare()
            state = TransactionalState(txn_id=txn_id)
            assert await client.send(sender, order_message(1), state=state) is None
            assert (await request_management(client, queue, operation, body, state=state)).condition == condition
            assert await coordinator.discharge(txn_id) == "amqp:transaction:rollback"
    assert server.message_counts(queue) == (0, 0)


async def test_where_duplicates_are_detected_nothing_is_scheduled_in_one(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresDuplicateDetection="true")
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        txn_id = await coordinator.declare()
        assert (await schedule(client, queue, txn_id, 1)).condition == "amqp:not-allowed"
        assert await coordinator.discharge(txn_id) == "amqp:transaction:rollback"


async def test_a_request_is_taken_on_condition(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        requests = await client.attach_sender(f"{queue}/$management")
        txn_id = await coordinator.declare()
        payload = build(properties=Properties(message_id="1"), body=value({}))
        answer = await client.send_for_state(requests, payload, state=TransactionalState(txn_id=txn_id))
        assert isinstance(answer, TransactionalState)
        assert (answer.txn_id, answer.outcome) == (txn_id, ACCEPTED)


async def test_a_request_in_no_transaction_that_is_open_is_rejected(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        state, payload = TransactionalState(txn_id=b"nonsense"), build(body=value({}))
        requests = await client.attach_sender(f"{queue}/$management")
        assert await client.send(requests, payload, state=state) == "amqp:transaction:unknown-id"
        assert await client.send(requests, payload, state=ACCEPTED) == "amqp:not-allowed"
        txn_id = await (await attach_coordinator(client)).declare()
        state = TransactionalState(txn_id=txn_id)
        assert await client.send(requests, b"\xff", state=state) == "amqp:decode-error"
        tokens = await client.attach_sender("$cbs")
        assert await client.send(tokens, payload, state=state) == "amqp:not-allowed"
