"""A stopped or killed namespace in memory keeps accepted messages on its disks and starts with them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from twinbus.client import NO_RETRY, BrokeredMessage, ConnectionString
from twinbus.client.errors import ConnectionFailed, ConnectionLost
from twinbus.model.rule import RuleDescription, SqlFilter
from twinbus.model.signature import make_token
from twinbus.testing import InMemoryNamespace, in_virtual_time

if TYPE_CHECKING:
    from twinbus.client import QueueClient


@in_virtual_time
async def test_a_restart_keeps_entities_and_messages() -> None:
    async with InMemoryNamespace(stores=3) as namespace, namespace.factory() as factory:
        for number in range(3):
            await namespace.create_queue(f"queue-{number}")
            await factory.create_queue_client(f"queue-{number}").send(BrokeredMessage(str(number)))
        await namespace.create_topic("news")
        await namespace.create_subscription(
            "news", "large", RuleDescription(name="r", filter=SqlFilter(expression="amount > 10"))
        )
        await namespace.stop()
        await namespace.start()
        for number in range(3):
            (message,) = await namespace.messages(f"queue-{number}")
            assert message.text == str(number)
        (rule,) = await namespace.entities.list_rules("news/Subscriptions/large", skip=0, top=10)
        assert rule.name == "r"


@in_virtual_time
async def test_clients_work_after_a_restart() -> None:
    async with InMemoryNamespace() as namespace, namespace.factory() as factory:
        await namespace.create_queue("orders")
        client = factory.create_queue_client("orders")
        await client.send(BrokeredMessage("before"))
        namespace.kill()
        await namespace.start()
        await client.send(BrokeredMessage("after"))
        assert [message.text for message in await namespace.messages("orders")] == ["before", "after"]


@in_virtual_time
async def test_a_kill_at_any_moment_loses_nothing_that_was_accepted() -> None:
    counts: list[tuple[int, int]] = []
    async with InMemoryNamespace() as namespace:
        for moment in range(40):
            path = f"orders-{moment}"
            await namespace.create_queue(path)
            client = namespace.factory(retry_policy=NO_RETRY).create_queue_client(path)
            await client.sender.open()
            sends = [asyncio.ensure_future(_send_in(turn, client, str(turn))) for turn in range(20)]
            for _ in range(moment):
                await asyncio.sleep(0)
            namespace.kill()
            accepted = {str(turn) for turn, send in enumerate(sends) if send.done() and send.exception() is None}
            errors = [error for error in await asyncio.gather(*sends, return_exceptions=True) if error is not None]
            assert all(isinstance(error, ConnectionLost | ConnectionFailed) for error in errors)
            await namespace.start()
            held = {message.text for message in await namespace.messages(path)}
            assert accepted <= held
            counts.append((len(accepted), len(held)))
    assert any(0 < accepted < 20 for accepted, _ in counts), "no kill fell between two responses"
    assert any(accepted < held for accepted, held in counts), "no kill fell between a commit and its response"


async def _send_in(turns: int, client: QueueClient, text: str) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    await client.send(BrokeredMessage(text))


@in_virtual_time
async def test_a_kill_unlocks_messages_without_counting_a_delivery() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        client = namespace.factory().create_queue_client("orders")
        await client.send(BrokeredMessage("apples"))
        assert await client.receive() is not None
        namespace.kill()
        await namespace.start()
        again = await namespace.factory().create_queue_client("orders").receive(timeout=1)
        assert again is not None
        assert again.delivery_count == 1


@in_virtual_time
async def test_clients_notice_a_kill_at_once_and_cannot_connect() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        factory, loop = namespace.factory(retry_policy=NO_RETRY), asyncio.get_running_loop()
        client = factory.create_queue_client("orders")
        await client.send(BrokeredMessage("apples"))
        began_s = loop.time()
        namespace.kill()
        with pytest.raises((ConnectionLost, ConnectionFailed)):
            await client.send(BrokeredMessage("pears"))
        with pytest.raises(ConnectionFailed):
            await namespace.factory(retry_policy=NO_RETRY).create_queue_client("orders").send(BrokeredMessage("plums"))
        assert loop.time() == began_s
        assert not namespace.is_running
        with pytest.raises(RuntimeError, match="not running"):
            await namespace.messages("orders")


@in_virtual_time
async def test_a_killed_namespace_starts_again_at_the_same_moment() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        began_s = asyncio.get_running_loop().time()
        for _ in range(3):
            namespace.kill()
            await namespace.start()
        assert asyncio.get_running_loop().time() == began_s
        assert namespace.counts("orders").size_bytes == 0


@in_virtual_time
async def test_unwritten_messages_of_a_killed_namespace_are_lost() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        client = namespace.factory(retry_policy=NO_RETRY).create_queue_client("orders")
        await client.sender.open()
        namespace.outage.hang_store(0)
        sending = asyncio.ensure_future(client.send(BrokeredMessage("apples")))
        await asyncio.sleep(1)
        namespace.kill()
        namespace.outage.restore()
        await namespace.start()
        with pytest.raises(ConnectionLost):
            await sending
        assert await namespace.messages("orders") == []


@in_virtual_time
async def test_a_kill_does_not_wait_for_requests() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        endpoint = ConnectionString.parse(namespace.connection_string)
        token = make_token(f"http://{endpoint.host}", str(endpoint.key_name), str(endpoint.key), 4_000_000_000)
        head = f"Host: {endpoint.host}\r\nAuthorization: {token}\r\nContent-Length: 6\r\n\r\n"
        namespace.outage.hang_store(0)
        reader, writer = await asyncio.open_connection(namespace.host, 5300)
        writer.write(f"POST /orders/messages HTTP/1.1\r\n{head}apples".encode())
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        namespace.kill()
        namespace.outage.restore()
        await namespace.start()
        assert asyncio.get_running_loop().time() == began_s
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


@in_virtual_time
async def test_start_and_stop_may_be_called_twice() -> None:
    namespace = InMemoryNamespace()
    await namespace.stop()
    namespace.kill()
    await namespace.start()
    await namespace.start()
    assert namespace.is_running
    await namespace.stop()
    await namespace.stop()
    assert not namespace.is_running
