"""`twinbus:move` moves messages to another entity: each message is always in exactly one of the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    message_ids,
    order_ids,
    order_message,
    peek,
    request_management,
    send,
    send_orders,
)
from tests.support.raw_client import connect_raw
from tests.support.server_process import wait_until
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.message import Header, Message, Properties, build, data
from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.types import Array, Int, Timestamp

if TYPE_CHECKING:
    from tests.support.entity_operations import ManagementResponse
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

MOVE = "twinbus:move"
ALL_SESSIONS = Timestamp(253_402_300_800_000)


async def move(client: RawClient, source: str, destination: str, *numbers: int) -> ManagementResponse:
    arguments: dict[str, object] = {"sequence-numbers": Array(int, list(numbers)), "destination": destination}
    return await request_management(client, source, MOVE, arguments)


async def dead_letter_all(client: RawClient, queue: str, count: int) -> None:
    link = await client.attach_receiver(queue)
    error = Error(condition="com.microsoft:dead-letter", info={"DeadLetterReason": "broken"})
    for delivery in await client.receive(link, count):
        assert await client.settle(link, delivery, Rejected(error=error)) is None
    await client.detach(link)


async def test_active_messages_move_to_another_queue(server: ServerProcess, queue: str) -> None:
    other = server.create_queue()
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 6))
        response = await move(client, queue, other, 2, 4)
        assert response.status == 200, response.text
        assert response.body["sequence-numbers"].items == [2, 4]
        wait_until(lambda: server.message_counts(other) == (2, 0))
        assert message_ids(await peek(client, other)) == order_ids(2, 4)
        assert message_ids(await peek(client, queue)) == order_ids(1, 3, 5)


async def test_a_dead_letter_moves_without_its_reason(server: ServerProcess, queue: str) -> None:
    other = server.create_queue()
    async with connect_raw(server) as client:
        sent = build(
            header=Header(durable=True, ttl=3_600_000),
            properties=Properties(message_id="order 1", content_type="text/plain"),
            application_properties={"a": 1},
            body=data(b"apples"),
        )
        await send(client, queue, sent)
        await dead_letter_all(client, queue, 1)
        response = await move(client, f"{queue}/$DeadLetterQueue", other, 1)
        assert response.status == 200, response.text
        wait_until(lambda: server.message_counts(other) == (1, 0))
        [moved] = await peek(client, other)
        assert moved.application_properties == {"a": 1}
        assert moved.properties == Properties(message_id="order 1", content_type="text/plain")
        assert moved.data == [b"apples"]
        assert server.message_counts(queue) == (0, 0)


async def test_if_one_message_is_locked_none_moves(server: ServerProcess, queue: str) -> None:
    other = server.create_queue()
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 4))
        link = await client.attach_receiver(queue)
        [locked] = await client.receive(link, 1)
        response = await move(client, queue, other, 1, 2, 3)
        assert (response.status, response.condition) == (404, "com.microsoft:message-not-found")
        assert "message 1" in response.text
        assert await client.settle(link, locked, ACCEPTED) is None
        assert message_ids(await client.receive(link, 2)) == order_ids(2, 3)
        assert server.message_counts(other) == (0, 0)


async def test_messages_with_a_time_to_live_and_a_session_move(server: ServerProcess) -> None:
    """Such messages have further rows on disk, which must go with them."""
    queue, other = server.create_queue(RequiresSession="true"), server.create_queue()
    async with connect_raw(server) as client:
        message = build(
            header=Header(ttl=3_600_000), properties=Properties(message_id="order 1", group_id="a"), body=data(b"")
        )
        await send(client, queue, message, order_message(2, session="b"))
        response = await move(client, queue, other, 1)
        assert response.status == 200, response.text
        wait_until(lambda: server.message_counts(other) == (1, 0))
        sessions = await request_management(
            client, queue, "com.microsoft:get-message-sessions", {"last-updated-time": ALL_SESSIONS, "skip": Int(0)}
        )
        assert sessions.body["sessions-ids"].items == ["b"]
        assert server.message_counts(queue) == (1, 0)


async def test_messages_move_from_every_fragment_of_a_partitioned_queue(server: ServerProcess) -> None:
    queue, other = server.create_queue(EnablePartitioning="true"), server.create_queue()
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 21))
        numbers = [_number_of(message) for message in await peek(client, queue)]
        response = await move(client, queue, other, *numbers)
        assert response.status == 200, response.text
        assert sorted(response.body["sequence-numbers"].items) == sorted(numbers)
        wait_until(lambda: server.message_counts(other) == (20, 0))
        assert sorted(message_ids(await peek(client, other))) == sorted(order_ids(*range(1, 21)))


async def test_messages_move_from_a_subscription(server: ServerProcess, name: str, queue: str) -> None:
    server.create_entity(name, "TopicDescription")
    server.create_entity(f"{name}/Subscriptions/all", "SubscriptionDescription")
    subscription = f"{name}/Subscriptions/all"
    async with connect_raw(server) as client:
        await send_orders(client, name, range(1, 4))
        numbers = [_number_of(message) for message in await peek(client, subscription)]
        response = await move(client, subscription, queue, *numbers)
        assert response.status == 200, response.text
        wait_until(lambda: server.message_counts(queue) == (3, 0))
        assert message_ids(await peek(client, queue)) == order_ids(1, 2, 3)
        assert await peek(client, subscription) == []


async def test_messages_that_the_destination_refuses_are_in_the_transfer_dead_letter_queue(
    server: ServerProcess, queue: str
) -> None:
    sessions_only = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        assert (await move(client, queue, sessions_only, 1)).status == 200
        refused = f"{queue}/$Transfer/$DeadLetterQueue"
        messages: list[Message] = []
        while not messages:
            messages = await peek(client, refused)
        assert message_ids(messages) == order_ids(1)


@pytest.mark.parametrize(
    ("destination", "status", "text"),
    [
        ("no-such-queue", 404, "no-such-queue"),
        (None, 400, "in '{}' already"),
        (7, 400, "destination is 7"),
    ],
)
async def test_an_invalid_destination_is_refused_and_nothing_moves(
    server: ServerProcess, queue: str, destination: object, status: int, text: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        arguments = {"sequence-numbers": Array(int, [1]), "destination": destination or queue}
        response = await request_management(client, queue, MOVE, arguments)
        assert response.status == status
        assert text.format(queue) in response.text
        assert server.message_counts(queue) == (1, 0)


async def test_moving_needs_the_right_to_send_to_the_destination(server: ServerProcess, queue: str) -> None:
    """A token for one queue gives no right to send to another one."""
    other = server.create_queue()
    async with connect_raw(server, Credentials.anonymous()) as client:
        properties = {"operation": "put-token", "name": f"sb://{server.host}/{queue}", "type": "jwt"}
        await client.request_status("$cbs", properties, server.token(queue))
        response = await move(client, queue, other, 1)
        assert (response.status, response.condition) == (401, "amqp:unauthorized-access")
        assert other in response.text


def _number_of(message: Message) -> int:
    annotations = message.message_annotations
    assert isinstance(annotations, dict)
    number = annotations["x-opt-sequence-number"]
    assert isinstance(number, int)
    return number
