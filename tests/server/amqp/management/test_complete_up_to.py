"""`twinbus:complete-up-to` completes the free active messages of a fragment up to a sequence number.

`twinbus:fragments` reports the sequence numbers that a reader of the log needs for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    FAR_FUTURE_MS,
    accept_session,
    browse,
    defer,
    message_ids,
    order_ids,
    order_message,
    peek,
    request_management,
    send,
    send_orders,
    sequence_numbers,
)
from tests.support.raw_client import connect_raw
from tests.support.server_process import QUEUE_ENTRY
from twinbus.amqp.message import data
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected
from twinbus.amqp.types import Int, ULong
from twinbus.model.message import BATCH_FORMAT

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

OPERATION = "twinbus:complete-up-to"
MORE_THAN_A_BATCH = 1_300
"""The server deletes messages in batches of 500."""


async def complete(client: RawClient, entity: str, number: int, **others: object) -> tuple[int, int]:
    """Complete messages up to `number`; return how many were completed and how many skipped."""
    answer = await request_management(client, entity, OPERATION, {"sequence-number": number, **others})
    assert answer.status == 200, answer.text
    return answer.body["completed"], answer.body["skipped"]


async def test_messages_up_to_the_number_are_completed_and_later_ones_stay(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 8))
        assert await complete(client, queue, 3) == (3, 0)
        assert server.message_counts(queue) == (4, 0)
        assert message_ids(await client.drain(await browse(client, queue))) == order_ids(4, 5, 6, 7)
        assert await complete(client, queue, 3) == (0, 0)
        assert await complete(client, queue, 4, fragment=Int(0)) == (1, 0)
        receiver = await client.attach_receiver(queue, settled=True)
        assert message_ids(await client.receive_all(receiver, 3)) == order_ids(5, 6, 7)


@pytest.mark.parametrize(
    ("number", "left"),
    [(0, 3), (1, 2), (3, 0), (4, 0), (2**63 - 1, 0), (ULong(2**64 - 1), 0)],
    ids=["none", "one", "all", "more", "a long", "a ulong"],
)
async def test_every_non_negative_sequence_number_is_accepted(
    server: ServerProcess, queue: str, number: int, left: int
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2, 3])
        assert await complete(client, queue, number) == (3 - left, 0)
        assert server.message_counts(queue) == (left, 0)
        await send_orders(client, queue, [4])
        assert server.message_counts(queue) == (left + 1, 0)


async def test_locked_messages_are_skipped_and_deferred_and_scheduled_ones_stay(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send(
            client,
            queue,
            *[order_message(number) for number in (1, 2, 3)],
            order_message(4, due_ms=FAR_FUTURE_MS),
            order_message(5),
        )
        receiver = await client.attach_receiver(queue)
        first, second = await client.receive(receiver, 2)
        deferred = await defer(client, receiver, first)
        assert await complete(client, queue, 5) == (2, 1)
        assert message_ids(await peek(client, queue)) == order_ids(1, 2, 4)
        assert await client.settle(receiver, second, Modified(delivery_failed=True)) is None
        [redelivered] = await client.receive(receiver)
        assert message_ids([redelivered]) == order_ids(2)
        assert await client.settle(receiver, redelivered, ACCEPTED) is None
        arguments = {"sequence-numbers": [deferred], "receiver-settle-mode": Int(0)}
        answer = await request_management(client, queue, "com.microsoft:receive-by-sequence-number", arguments)
        assert answer.status == 200
        assert message_ids(await peek(client, queue)) == order_ids(4)


async def test_an_attached_receiver_gets_only_the_remaining_messages(server: ServerProcess, queue: str) -> None:
    """Completed messages are also removed from the messages that the broker has read ahead."""
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 11))
        receiver = await client.attach_receiver(queue)
        [first] = await client.receive(receiver)
        assert await complete(client, queue, 8) == (7, 1)
        assert message_ids(await client.receive_all(receiver, 2)) == order_ids(9, 10)
        assert await client.settle(receiver, first, ACCEPTED) is None
        assert server.message_counts(queue) == (2, 0)


async def test_one_request_completes_more_messages_than_one_batch_holds(server: ServerProcess, queue: str) -> None:
    numbers = range(1, MORE_THAN_A_BATCH + 1)
    async with connect_raw(server) as client:
        batch = data(*[order_message(number) for number in numbers])
        assert await client.send(await client.attach_sender(queue), batch, message_format=BATCH_FORMAT) is None
        receiver = await client.attach_receiver(queue)
        held = await client.receive(receiver, 2)
        assert sequence_numbers(held) == [1, 2]
        assert await complete(client, queue, MORE_THAN_A_BATCH - 1) == (MORE_THAN_A_BATCH - 3, 2)
        assert message_ids(await client.drain(await browse(client, queue))) == order_ids(1, 2, MORE_THAN_A_BATCH)
        assert server.message_counts(queue) == (3, 0)


async def test_dead_lettered_messages_are_completed_by_their_own_sequence_numbers(
    server: ServerProcess, queue: str
) -> None:
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 6))
        receiver = await client.attach_receiver(queue)
        for delivery in reversed(await client.receive(receiver, 3)):
            assert await client.settle(receiver, delivery, Rejected()) is None
        assert await complete(client, dead, 2) == (2, 0)
        assert message_ids(await peek(client, dead)) == order_ids(1)
        assert server.message_counts(queue) == (2, 1)


async def test_a_queue_with_sessions_is_completed_across_all_sessions(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send(client, queue, *[order_message(number, session=name) for number, name in enumerate("ababa", 1)])
        holder = await accept_session(client, queue, "a")
        [first] = await client.receive(holder)
        assert await complete(client, queue, 4) == (3, 1)
        assert await client.settle(holder, first, ACCEPTED) is None
        assert message_ids(await client.receive_all(holder, 1)) == order_ids(5)
        listed = await request_management(client, queue, "com.microsoft:get-message-sessions")
        assert listed.body["sessions-ids"].items == ["a"]


async def test_fragments_reports_the_lowest_and_the_next_sequence_number(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        answer = await request_management(client, queue, "twinbus:fragments")
        empty = {"fragment": 0, "low-sequence-number": 1, "next-sequence-number": 1, "message-count": 0}
        empty |= {"purged-sequence-number": 0}
        assert answer.status == 200
        assert answer.body["fragments"] == [{**empty, "is-available": True}]
        await send(
            client, queue, order_message(1), order_message(2), order_message(3, due_ms=FAR_FUTURE_MS), order_message(4)
        )
        [filled] = (await request_management(client, queue, "twinbus:fragments")).body["fragments"]
        assert filled == {**empty, "next-sequence-number": 5, "message-count": 3, "is-available": True}
        assert await complete(client, queue, 2) == (2, 0)
        [later] = (await request_management(client, queue, "twinbus:fragments")).body["fragments"]
        assert (later["next-sequence-number"], later["message-count"]) == (5, 1)
        assert 1 <= later["low-sequence-number"] <= 4
        [dead] = (await request_management(client, f"{queue}/$DeadLetterQueue", "twinbus:fragments")).body["fragments"]
        assert dead == {**empty, "is-available": True}


async def test_fragments_reports_the_last_purged_sequence_number(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:

        async def purged_sequence_number() -> int:
            [fragment] = (await request_management(client, queue, "twinbus:fragments")).body["fragments"]
            return int(fragment["purged-sequence-number"])

        await send_orders(client, queue, range(1, 6))
        receiver = await client.attach_receiver(queue)
        [first] = await client.receive(receiver)
        await complete(client, queue, 2)
        assert await purged_sequence_number() == 0
        await request_management(client, queue, "twinbus:purge")
        assert await purged_sequence_number() == 5
        assert await client.settle(receiver, first, RELEASED) is None
        await request_management(client, queue, "com.microsoft:batch-delete-messages", {"message-count": Int(10)})
        assert await purged_sequence_number() == 5
        await send_orders(client, queue, range(6, 9))
        await request_management(client, queue, "com.microsoft:batch-delete-messages", {"message-count": Int(2)})
        assert await purged_sequence_number() == 7


async def test_the_next_sequence_number_never_falls_even_if_the_queue_is_empty(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2, 3])
        assert await complete(client, queue, 3) == (3, 0)
        [empty] = (await request_management(client, queue, "twinbus:fragments")).body["fragments"]
        assert (empty["next-sequence-number"], empty["message-count"]) == (4, 0)
        await send_orders(client, queue, [4])
        assert sequence_numbers(await peek(client, queue)) == [4]


async def test_a_recreated_queue_has_a_new_entity_id(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        before = (await request_management(client, queue, "twinbus:fragments")).body["entity-id"]
        server.delete_queue(queue)
        server.request("PUT", queue, QUEUE_ENTRY.format(""), expected=201)
        after = await request_management(client, queue, "twinbus:fragments")
        assert after.body["entity-id"] != before
        assert after.body["fragments"][0]["message-count"] == 0
