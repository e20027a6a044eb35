"""Free messages are deleted in batches from the oldest on, by state, or by sequence number; locked messages stay."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    FAR_FUTURE_MS,
    accept_session,
    annotation_of,
    browse,
    defer,
    message_ids,
    order_ids,
    order_message,
    peek,
    request_management,
    send,
    send_orders,
    set_status,
)
from tests.support.raw_client import connect_raw
from twinbus.amqp.message import data
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Rejected
from twinbus.amqp.types import Array, Int, Timestamp, ULong
from twinbus.model.message import BATCH_FORMAT

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

BATCH_DELETE = "com.microsoft:batch-delete-messages"
DELETE = "twinbus:delete-by-sequence-number"
PURGE = "twinbus:purge"
MOST_AT_ONCE = 4_000


async def batch_delete(client: RawClient, entity: str, count: int, **others: object) -> tuple[int, int]:
    """Return the status, and how many messages were deleted."""
    arguments = {"message-count": Int(count), **{name.replace("_", "-"): value for name, value in others.items()}}
    answer = await request_management(client, entity, BATCH_DELETE, arguments)
    return answer.status, answer.body["message-count"]


async def purge(client: RawClient, entity: str, state: str | None = None) -> tuple[int, int]:
    """Return how many messages were removed, and how many skipped."""
    answer = await request_management(client, entity, PURGE, {} if state is None else {"state": state})
    assert answer.status == 200, answer.text
    return answer.body["removed"], answer.body["skipped"]


async def delete(client: RawClient, entity: str, *numbers: int) -> list[int]:
    """Return the sequence numbers of the deleted messages."""
    answer = await request_management(client, entity, DELETE, {"sequence-numbers": Array(int, list(numbers))})
    assert answer.status == 200, answer.text
    deleted: list[int] = answer.body["sequence-numbers"].items
    return deleted


async def send_batch(client: RawClient, queue: str, count: int) -> None:
    batch = data(*[order_message(number) for number in range(1, count + 1)])
    assert await client.send(await client.attach_sender(queue), batch, message_format=BATCH_FORMAT) is None


async def send_two_of_each_state(client: RawClient, queue: str) -> None:
    """Send orders: 1 and 4 stay active, 2 and 5 are deferred, 3 and 6 are scheduled."""
    for number in (1, 4):
        scheduled = order_message(number + 2, due_ms=FAR_FUTURE_MS)
        await send(client, queue, order_message(number), order_message(number + 1), scheduled)
    receiver = await client.attach_receiver(queue)
    for delivery in await client.receive(receiver, 4):
        if message_ids([delivery])[0] in order_ids(2, 5):
            await defer(client, receiver, delivery)
    second_receiver = await client.attach_receiver(queue)
    for delivery in client.received(receiver):
        if message_ids([delivery])[0] in order_ids(1, 4):
            receiver.settle([delivery], RELEASED)
    assert sorted(message_ids(await client.receive(second_receiver, 2))) == order_ids(1, 4)
    for delivery in client.received(second_receiver):
        second_receiver.settle([delivery], RELEASED)
    await client.detach(receiver)
    await client.detach(second_receiver)


async def dead_letter(client: RawClient, queue: str, count: int) -> None:
    receiver = await client.attach_receiver(queue)
    for delivery in await client.receive(receiver, count):
        assert await client.settle(receiver, delivery, Rejected()) is None
    await client.detach(receiver)


# --- batch delete -----------------------------------------------------------------------------------------------------


async def test_a_batch_delete_removes_the_requested_number_of_oldest_messages(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 8))
        assert await batch_delete(client, queue, 3) == (200, 3)
        assert message_ids(await peek(client, queue)) == order_ids(4, 5, 6, 7)
        assert await batch_delete(client, queue, 100) == (200, 4)
        assert await batch_delete(client, queue, 100) == (204, 0)
        assert server.message_counts(queue) == (0, 0)


async def test_only_messages_enqueued_before_the_given_time_are_deleted(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2])
        [_, second] = await peek(client, queue)
        enqueued_ms = annotation_of(second, "x-opt-enqueued-time")
        await _wait_until_after(enqueued_ms)
        await send_orders(client, queue, [3])
        [third] = await peek(client, queue, **{"from-sequence-number": 3})
        assert await batch_delete(client, queue, 10, enqueued_time_utc=Timestamp(0)) == (204, 0)
        before = Timestamp(annotation_of(third, "x-opt-enqueued-time"))
        assert await batch_delete(client, queue, 10, enqueued_time_utc=before) == (200, 2)
        assert await batch_delete(client, queue, 10, enqueued_time_utc=before) == (204, 0)
        assert await batch_delete(client, queue, 10, enqueued_time_utc=Timestamp(before + 1)) == (200, 1)


async def _wait_until_after(moment_ms: int) -> None:
    """Wait until the clock shows a later millisecond; the server uses the same clock."""
    while int(time.time() * 1000) <= moment_ms:
        pass


async def test_a_batch_delete_skips_locked_messages_and_deletes_the_next_ones(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 7))
        receiver = await client.attach_receiver(queue)
        held = await client.receive(receiver, 2)
        assert await batch_delete(client, queue, 3) == (200, 3)
        assert message_ids(await client.receive_all(receiver, 1)) == order_ids(6)
        for delivery in held:
            assert await client.settle(receiver, delivery, ACCEPTED) is None
        assert server.message_counts(queue) == (1, 0)


async def test_a_batch_delete_with_a_session_id_leaves_other_sessions_alone(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send(client, queue, *[order_message(number, session=name) for number, name in enumerate("ababab", 1)])
        assert await batch_delete(client, queue, 2, session_id="b") == (200, 2)
        assert message_ids(await peek(client, queue)) == order_ids(1, 3, 5, 6)
        assert await batch_delete(client, queue, 9, session_id="nobody") == (204, 0)
        assert await batch_delete(client, queue, 9) == (200, 4)


@pytest.mark.parametrize("count", [Int(2**31 - 1), ULong(2**64 - 1)], ids=["int", "ulong"])
async def test_a_batch_delete_removes_at_most_four_thousand_messages(
    server: ServerProcess, queue: str, count: int
) -> None:
    async with connect_raw(server) as client:
        await send_batch(client, queue, MOST_AT_ONCE)
        await send_orders(client, queue, [MOST_AT_ONCE + 1])
        answer = await request_management(client, queue, BATCH_DELETE, {"message-count": count})
        assert (answer.status, answer.body) == (200, {"message-count": MOST_AT_ONCE})
        assert message_ids(await peek(client, queue)) == order_ids(MOST_AT_ONCE + 1)


async def test_a_batch_delete_removes_the_oldest_dead_lettered_messages(server: ServerProcess, queue: str) -> None:
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 5))
        await dead_letter(client, queue, 3)
        assert await batch_delete(client, dead, 2) == (200, 2)
        assert message_ids(await peek(client, dead)) == order_ids(3)
        assert server.message_counts(queue) == (1, 1)


# --- purge ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "left"),
    [(None, (2, 3, 5, 6)), ("active", (2, 3, 5, 6)), ("deferred", (1, 3, 4, 6)), ("scheduled", (1, 2, 4, 5))],
)
async def test_a_purge_removes_only_the_messages_in_its_state(
    server: ServerProcess, queue: str, state: str | None, left: tuple[int, ...]
) -> None:
    async with connect_raw(server) as client:
        await send_two_of_each_state(client, queue)
        assert message_ids(await peek(client, queue)) == order_ids(1, 2, 3, 4, 5, 6)
        assert await purge(client, queue, state) == (2, 0)
        assert message_ids(await peek(client, queue)) == order_ids(*left)
        assert await purge(client, queue, state) == (0, 0)
        assert server.message_counts(queue) == (2 if state in ("deferred", "scheduled") else 0, 0)


async def test_a_purge_skips_locked_messages(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 6))
        receiver = await client.attach_receiver(queue)
        first, second = await client.receive(receiver, 2)
        number = await defer(client, receiver, first)
        arguments = {"sequence-numbers": [number], "receiver-settle-mode": Int(1)}
        locked = await request_management(client, queue, "com.microsoft:receive-by-sequence-number", arguments)
        [item] = locked.body["messages"]
        assert await purge(client, queue, "active") == (3, 1)
        assert await purge(client, queue, "deferred") == (0, 1)
        assert message_ids(await peek(client, queue)) == order_ids(1, 2)
        assert await client.settle(receiver, second, ACCEPTED) is None
        completion = {"disposition-status": "completed", "lock-tokens": [item["lock-token"]]}
        assert (await request_management(client, queue, "com.microsoft:update-disposition", completion)).status == 200
        assert await peek(client, queue) == []


async def test_purged_messages_cannot_be_accessed_and_later_ones_can(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        receiver, browser = await client.attach_receiver(queue), await browse(client, queue)
        await send_two_of_each_state(client, queue)
        for state in ("active", "deferred", "scheduled"):
            assert await purge(client, queue, state) == (2, 0)
        deferred = {"sequence-numbers": [2], "receiver-settle-mode": Int(1)}
        answer = await request_management(client, queue, "com.microsoft:receive-by-sequence-number", deferred)
        assert answer.condition == "com.microsoft:message-not-found"
        answer = await request_management(
            client, queue, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": [3]}
        )
        assert answer.condition == "com.microsoft:message-not-found"
        await send_orders(client, queue, [7])
        assert message_ids(await client.receive_all(receiver, 1)) == order_ids(7)
        assert message_ids(await client.drain(browser)) == order_ids(7)


async def test_a_purge_of_more_messages_than_one_batch_holds_leaves_none(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_batch(client, queue, 1_300)
        assert await purge(client, queue) == (1_300, 0)
        assert server.message_counts(queue) == (0, 0)


async def test_a_purge_of_the_dead_letter_queue_leaves_the_main_queue_alone(server: ServerProcess, queue: str) -> None:
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 6))
        await dead_letter(client, queue, 3)
        receiver = await client.attach_receiver(dead)
        await defer(client, receiver, (await client.receive(receiver))[0])
        await client.detach(receiver)
        assert await purge(client, dead, "scheduled") == (0, 0)
        assert await purge(client, dead, "active") == (2, 0)
        assert message_ids(await peek(client, dead)) == order_ids(1)
        assert await purge(client, dead, "deferred") == (1, 0)
        assert await peek(client, dead) == []
        assert message_ids(await peek(client, queue)) == order_ids(4, 5)


async def test_a_purge_of_a_queue_with_sessions_keeps_the_session_states(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send(client, queue, *[order_message(number, session=name) for number, name in enumerate("abab", 1)])
        holder = await accept_session(client, queue, "a")
        [first] = await client.receive(holder)
        state = {"session-id": "a", "session-state": b"half-way"}
        assert (await request_management(client, queue, "com.microsoft:set-session-state", state)).status == 200
        assert await purge(client, queue) == (3, 1)
        assert await client.settle(holder, first, ACCEPTED) is None
        assert await client.drain(holder) == []
        answer = await request_management(client, queue, "com.microsoft:get-session-state", {"session-id": "a"})
        assert answer.body["session-state"] == b"half-way"
        assert server.message_counts(queue) == (0, 0)
        await send(client, queue, order_message(5, session="b"))
        assert message_ids(await client.receive(await accept_session(client, queue, None))) == order_ids(5)


# --- by sequence number -----------------------------------------------------------------------------------------------


async def test_messages_in_every_state_are_deleted_by_sequence_number(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_two_of_each_state(client, queue)
        assert await delete(client, queue, 3, 1, 2) == [1, 2, 3]
        assert message_ids(await peek(client, queue)) == order_ids(4, 5, 6)
        assert server.message_counts(queue) == (1, 0)


async def test_locked_and_missing_sequence_numbers_are_left_out_of_the_response(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 5))
        receiver = await client.attach_receiver(queue)
        [first] = await client.receive(receiver)
        assert await delete(client, queue, 1, 2, 7, 2**63 - 1) == [2]
        assert await delete(client, queue, 1, 2) == []
        assert await delete(client, queue, 2**63 - 1) == []
        assert await client.settle(receiver, first, ACCEPTED) is None
        assert message_ids(await client.receive_all(receiver, 2)) == order_ids(3, 4)


async def test_dead_lettered_messages_are_deleted_by_their_own_sequence_numbers(
    server: ServerProcess, queue: str
) -> None:
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 7))
        await dead_letter(client, queue, 3)
        assert await delete(client, dead, 2, 5) == [2]
        assert message_ids(await peek(client, dead)) == order_ids(1, 3)
        assert message_ids(await peek(client, queue)) == order_ids(4, 5, 6)


async def test_one_request_deletes_as_many_sequence_numbers_as_it_can_name(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_batch(client, queue, 3_000)
        assert await delete(client, queue, *range(1, 10_001)) == list(range(1, 3_001))
        assert server.message_counts(queue) == (0, 0)


# --- disabled queues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled", "SendDisabled"])
async def test_a_disabled_queue_can_be_purged(server: ServerProcess, queue: str, status: str) -> None:
    """Operators disable a queue in order to clean it up."""
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2, 3])
        set_status(server, queue, status)
        assert await batch_delete(client, queue, 1) == (200, 1)
        assert await delete(client, queue, 2) == [2]
        assert await purge(client, queue) == (1, 0)
