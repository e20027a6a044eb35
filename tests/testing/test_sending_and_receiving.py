"""A namespace in memory supports what clients do with a real one."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json

import pytest

from twinbus.client import BrokeredMessage, ConnectionString
from twinbus.model.errors import EntityAlreadyExists, MessageLockLost
from twinbus.model.rule import RuleDescription, SqlFilter
from twinbus.model.signature import make_token
from twinbus.testing import InMemoryNamespace, in_virtual_time

DAY_S = 86_400.0


@in_virtual_time
async def test_a_sent_message_is_received_and_completed() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory() as factory:
        await namespace.create_queue("orders")
        client = factory.create_queue_client("orders")
        await client.send(BrokeredMessage("two pounds of apples", properties={"shop": 7}))
        assert [message.text for message in await namespace.messages("orders")] == ["two pounds of apples"]
        message = await client.receive()
        assert message is not None
        assert (message.body, message.properties) == (b"two pounds of apples", {"shop": 7})
        await client.complete(message)
        assert await namespace.messages("orders") == []
        assert namespace.counts("orders").size_bytes == 0


@in_virtual_time
async def test_sessions_are_received_one_by_one_with_their_state() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory() as factory:
        await namespace.create_queue("orders", requires_session=True)
        client = factory.create_queue_client("orders")
        for number in range(4):
            await client.send(BrokeredMessage(str(number), session_id=f"shop {number % 2}"))
        session = await client.accept_session("shop 1")
        await session.set_state(b"open")
        assert [message.text for message in await session.receive_batch(10, timeout=1)] == ["1", "3"]
        assert await session.get_state() == b"open"


@in_virtual_time
async def test_subscriptions_get_the_messages_their_rules_match() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory() as factory:
        await namespace.create_topic("news")
        await namespace.create_subscription("news", "all")
        rule = RuleDescription(name="large", filter=SqlFilter(expression="amount > 10"))
        await namespace.create_subscription("news", "large", rule)
        topic = factory.create_topic_client("news")
        for amount in (5, 50):
            await topic.send(BrokeredMessage(str(amount), properties={"amount": amount}))
        assert len(await namespace.messages("news/Subscriptions/all")) == 2
        message = await factory.create_subscription_client("news", "large").receive()
        assert message is not None
        assert message.text == "50"


@in_virtual_time
async def test_an_expired_lock_is_lost_and_the_message_is_redelivered() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory() as factory:
        await namespace.create_queue("orders", lock_duration_ms=30_000)
        client = factory.create_queue_client("orders")
        await client.send(BrokeredMessage("apples"))
        message = await client.receive()
        assert message is not None
        await asyncio.sleep(31)
        with pytest.raises(MessageLockLost):
            await client.complete(message)
        again = await client.receive()
        assert again is not None
        assert again.delivery_count == 2


@in_virtual_time
async def test_a_scheduled_message_is_delivered_when_it_is_due() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory(operation_timeout=2 * DAY_S) as factory:
        await namespace.create_queue("orders")
        client = factory.create_queue_client("orders")
        tomorrow = namespace.clock.now() + dt.timedelta(days=1)
        await client.schedule(BrokeredMessage("apples"), tomorrow)
        message = await client.receive(timeout=2 * DAY_S)
        assert message is not None
        assert dt.timedelta(0) <= namespace.clock.now() - tomorrow < dt.timedelta(seconds=2)


@in_virtual_time
async def test_an_expired_message_is_dead_lettered() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory() as factory:
        await namespace.create_queue("orders", dead_lettering_on_expiration=True)
        await factory.create_queue_client("orders").send(
            BrokeredMessage("apples", time_to_live=dt.timedelta(minutes=5))
        )
        await asyncio.sleep(302)
        (letter,) = await namespace.messages("orders/$DeadLetterQueue")
        assert letter.dead_letter_reason == "TTLExpiredException"
        assert await namespace.messages("orders") == []


@in_virtual_time
async def test_a_client_uses_the_clock_of_its_namespace() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory() as factory:
        await namespace.create_queue("orders")
        namespace.clock.set_wall_ms(4_102_444_800_000)  # a token made with the machine's clock would have expired
        await factory.create_queue_client("orders").send(BrokeredMessage("apples"))
        (message,) = await namespace.messages("orders")
        assert message.enqueued_time_utc.year == 2100


@in_virtual_time
async def test_messages_returns_more_than_one_page() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory() as factory:
        await namespace.create_queue("orders")
        client = factory.create_queue_client("orders")
        await client.send_batch([BrokeredMessage(str(number)) for number in range(1_100)])
        assert [message.text for message in await namespace.messages("orders")] == [str(n) for n in range(1_100)]


@in_virtual_time
async def test_entities_are_managed_over_http() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        endpoint = ConnectionString.parse(namespace.admin_connection_string)
        assert endpoint.key_name is not None
        assert endpoint.key is not None
        uri = f"http://{endpoint.host}/orders"
        token = make_token(uri, endpoint.key_name, endpoint.key, namespace.clock.wall_ms() // 1000 + 60)
        head = f"GET /orders HTTP/1.1\r\nHost: {endpoint.host}\r\nAuthorization: {token}\r\nConnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(head.encode())
        response = await reader.read()
        writer.close()
        assert response.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"<QueueDescription " in response


@in_virtual_time
async def test_amqp_works_over_a_websocket() -> None:
    async with InMemoryNamespace() as namespace:
        endpoint = ConnectionString.parse(namespace.admin_connection_string)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        key = base64.b64encode(bytes(16)).decode()
        head = (
            f"GET /$servicebus/websocket HTTP/1.1\r\nHost: {endpoint.host}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
        )
        writer.write(head.encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        header = bytes.fromhex("414d515003010000")  # "AMQP", SASL, 1.0.0
        writer.write(bytes((0x82, 0x80 | len(header), 0, 0, 0, 0)) + header)
        assert (await reader.readexactly(2 + len(header)))[2:] == header
        writer.close()


@in_virtual_time
async def test_health_is_served_over_http() -> None:
    async with InMemoryNamespace() as namespace:
        reader, writer = await asyncio.open_connection(namespace.host, 5300)
        writer.write(b"GET /health HTTP/1.1\r\nHost: contoso\r\nConnection: close\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 200")
        assert json.loads(body)["status"] == "ok"


@in_virtual_time
async def test_invalid_entities_are_refused() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        with pytest.raises(EntityAlreadyExists):
            await namespace.create_queue("Orders")
        with pytest.raises(TypeError, match="no_such_field"):
            await namespace.create_queue("others", no_such_field=1)


async def test_a_namespace_outside_virtual_time_raises_an_error() -> None:
    with pytest.raises(RuntimeError, match="in_virtual_time"):
        InMemoryNamespace()
