"""`$management` requests in a transaction (schedule, settle by lock token) take effect when it is committed."""

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
    messages = [
        {"message-id": f"order {number}", "message": order_message(number, due_ms=due_ms)} for number in numbers
    ]
    return await request_management(
        client, entity, SCHEDULE, {"messages": messages}, state=TransactionalState(txn_id=txn_id)
    )


async def test_scheduled_messages_get_the_announced_sequence_numbers_on_commit(
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
        scheduled = [
            message
            for message in await peek(client, queue)
            if annotation_of(message, "x-opt-message-state") == SCHEDULED
        ]
        assert message_ids(scheduled) == order_ids(1, 2)
        numbers = answer.body["sequence-numbers"].items
        assert sequence_numbers(scheduled) == numbers
        assert (
            await request_management(client, queue, CANCEL, {"sequence-numbers": Array(int, numbers)})
        ).status == 200
        assert message_ids(await peek(client, queue)) == order_ids(3)


async def test_messages_scheduled_in_a_rolled_back_transaction_do_not_exist(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        txn_id = await coordinator.declare()
        numbers = (await schedule(client, queue, txn_id, 1)).body["sequence-numbers"]
        assert await coordinator.discharge(txn_id, fail=True) is None
        assert await peek(client, queue) == []
        assert (await request_management(client, queue, CANCEL, {"sequence-numbers": numbers})).status == 404


async def test_a_message_that_is_due_already_is_delivered_on_commit(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator, link = await attach_coordinator(client), await client.attach_receiver(queue)
        txn_id = await coordinator.declare()
        assert (await schedule(client, queue, txn_id, 1, due_ms=1_000)).status == 200
        assert await client.drain(link) == []
        assert await coordinator.discharge(txn_id) is None
        assert message_ids(await client.receive(link)) == order_ids(1)


@pytest.mark.parametrize("fail", [False, True], ids=["committed", "rolled back"])
async def test_a_completion_by_lock_token_and_a_send_take_effect_together(
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
        arguments = {"disposition-status": "completed", "lock-tokens": tokens}
        answer = await request_management(client, queue, UPDATE, arguments, state=state)
        assert answer.status == 200, answer.text
        assert await client.send(sender, order_message(2), state=state) is None
        assert message_ids(await peek(client, queue)) == order_ids(1)
        assert (
            await request_management(client, queue, UPDATE, arguments)
        ).condition == "com.microsoft:message-lock-lost"
        assert await coordinator.discharge(txn_id, fail=fail) is None
        assert message_ids(await peek(client, queue)) == (order_ids(1) if fail else order_ids(2))
        if fail:
            assert (await request_management(client, queue, UPDATE, arguments)).status == 200


@pytest.mark.parametrize(
    ("status", "counts"), [("abandoned", (1, 0)), ("defered", (0, 0)), ("suspended", (0, 1))], ids=str
)
async def test_messages_are_abandoned_deferred_and_dead_lettered_on_commit(
    server: ServerProcess, queue: str, status: str, counts: tuple[int, int]
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        coordinator = await attach_coordinator(client)
        [delivery] = await client.receive(await client.attach_receiver(queue))
        txn_id = await coordinator.declare()
        arguments = {"disposition-status": status, "lock-tokens": Array(uuid.UUID, [lock_token_of(delivery)])}
        arguments |= {"properties-to-modify": {"why": "because"}, "deadletter-reason": "bad"}
        answer = await request_management(client, queue, UPDATE, arguments, state=TransactionalState(txn_id=txn_id))
        assert answer.status == 200, answer.text
        assert await coordinator.discharge(txn_id) is None
        entity = f"{queue}/$DeadLetterQueue" if status == "suspended" else queue
        [message] = await peek(client, entity)
        reason = {"DeadLetterReason": "bad"} if status == "suspended" else {}
        assert message.application_properties == {"why": "because"} | reason
        assert (annotation_of(message, "x-opt-message-state") == DEFERRED) == (status == "defered")
    assert server.message_counts(queue) == counts


async def test_a_refused_request_fails_its_transaction(server: ServerProcess, queue: str) -> None:
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


async def test_scheduling_in_a_transaction_is_refused_with_duplicate_detection(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresDuplicateDetection="true")
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        txn_id = await coordinator.declare()
        assert (await schedule(client, queue, txn_id, 1)).condition == "amqp:not-allowed"
        assert await coordinator.discharge(txn_id) == "amqp:transaction:rollback"


async def test_a_request_in_a_transaction_is_accepted_provisionally(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        coordinator = await attach_coordinator(client)
        requests = await client.attach_sender(f"{queue}/$management")
        txn_id = await coordinator.declare()
        payload = build(properties=Properties(message_id="1"), body=value({}))
        answer = await client.send_for_state(requests, payload, state=TransactionalState(txn_id=txn_id))
        assert isinstance(answer, TransactionalState)
        assert (answer.txn_id, answer.outcome) == (txn_id, ACCEPTED)


async def test_a_request_in_an_unknown_transaction_is_rejected(server: ServerProcess, queue: str) -> None:
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
