"""Each kind of outage affects clients as it does in production, and `restore` ends it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from twinbus.client import NO_RETRY, BrokeredMessage, RetryPolicy
from twinbus.client.errors import ConnectionFailed, ConnectionLost, TimedOut
from twinbus.model.errors import EntityNotFound, OperationTimeout, ServerBusy, ServiceBusError
from twinbus.testing import InMemoryNamespace, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client import QueueClient

ALMOST = pytest.approx


@asynccontextmanager
async def namespace_and_client(**settings: Any) -> AsyncIterator[tuple[InMemoryNamespace, QueueClient]]:  # noqa: ANN401  # settings have different types
    """A namespace, and a client that has sent one message and does not retry."""
    async with InMemoryNamespace(**settings) as namespace:
        await namespace.create_queue("orders")
        client = namespace.factory(retry_policy=NO_RETRY, operation_timeout=30).create_queue_client("orders")
        await client.send(BrokeredMessage("before"))
        yield namespace, client


async def texts(namespace: InMemoryNamespace, path: str = "orders") -> list[str]:
    return [message.text for message in await namespace.messages(path)]


@in_virtual_time
async def test_stop_refuses_clients_until_it_is_restored() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.stop()
        for _ in range(3):
            with pytest.raises((ConnectionLost, ConnectionFailed)):
                await client.send(BrokeredMessage("meanwhile"))
        assert await texts(namespace) == ["before"]
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_a_client_with_retries_survives_a_short_stop() -> None:
    async with namespace_and_client() as (namespace, _):
        retrying = namespace.factory(retry_policy=RetryPolicy(max_retries=10)).create_queue_client("orders")
        namespace.outage.stop()
        asyncio.get_running_loop().call_later(20, namespace.outage.restore)
        await retrying.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_operations_time_out_while_the_namespace_hangs() -> None:
    async with namespace_and_client() as (namespace, client):
        began_s = asyncio.get_running_loop().time()
        namespace.outage.hang()
        with pytest.raises(TimedOut) as caught:
            await client.send(BrokeredMessage("meanwhile"))
        assert caught.value.was_sent
        assert asyncio.get_running_loop().time() - began_s == ALMOST(30)


@in_virtual_time
async def test_a_message_sent_to_a_hanging_namespace_may_arrive_later() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.hang()
        with pytest.raises(TimedOut):
            await client.send(BrokeredMessage("meanwhile"))
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "meanwhile", "after"]


@in_virtual_time
async def test_new_connections_to_a_hanging_namespace_fail() -> None:
    async with namespace_and_client() as (namespace, _):
        namespace.outage.hang()
        other = namespace.factory(retry_policy=NO_RETRY, operation_timeout=10).create_queue_client("orders")
        with pytest.raises((ConnectionFailed, OperationTimeout)):
            await other.send(BrokeredMessage("meanwhile"))
        namespace.outage.restore()
        assert await texts(namespace) == ["before"]


@in_virtual_time
async def test_a_connection_that_hangs_for_long_is_closed() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.hang()
        await asyncio.sleep(300)
        assert not client.factory.is_connected
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_slow_delays_operations() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.slow(1.5)
        began_s = asyncio.get_running_loop().time()
        await client.send(BrokeredMessage("slowly"))
        assert asyncio.get_running_loop().time() - began_s == ALMOST(3.0)


@in_virtual_time
async def test_a_client_reconnects_after_a_cut() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.cut()
        with pytest.raises(ConnectionLost):
            await client.send(BrokeredMessage("meanwhile"))
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_busy_affects_one_entity_only() -> None:
    async with namespace_and_client() as (namespace, client):
        await namespace.create_queue("returns")
        others = client.factory.create_queue_client("returns")
        namespace.outage.busy("orders")
        with pytest.raises(ServerBusy, match="orders"):
            await client.sender.send(BrokeredMessage("meanwhile"), timeout=5)
        await others.send(BrokeredMessage("taken"))
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace, "returns") == ["taken"]


@in_virtual_time
async def test_busy_survives_a_restart() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.busy("Orders")
        namespace.kill()
        await namespace.start()
        with pytest.raises(ServerBusy):
            await client.sender.send(BrokeredMessage("meanwhile"), timeout=5)
        with pytest.raises(EntityNotFound):
            namespace.outage.busy("no-such-queue")


@in_virtual_time
async def test_a_full_disk_refuses_sends_and_allows_settlements() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.fill_disk()
        with pytest.raises(ServiceBusError, match="store 0 takes no messages: its disk is full"):
            await client.send(BrokeredMessage("meanwhile"))
        await asyncio.sleep(2 * 3600)
        with pytest.raises(ServiceBusError, match="store 0 takes no messages: its disk is full"):
            await client.send(BrokeredMessage("still"))
        message = await client.receive()
        assert message is not None
        await client.complete(message)
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["after"]


@in_virtual_time
async def test_a_failed_store_is_reopened_when_its_disk_works_again() -> None:
    async with namespace_and_client(stores=2) as (namespace, client):
        await namespace.create_queue("returns")  # in the other store
        others = client.factory.create_queue_client("returns")
        namespace.outage.fail_store(0)
        for _ in range(2):
            with pytest.raises(ServiceBusError, match="store 0 is unavailable"):
                await client.send(BrokeredMessage("meanwhile"))
        await others.send(BrokeredMessage("taken"))
        await asyncio.sleep(3600)
        with pytest.raises(ServiceBusError, match="store 0 is unavailable"):
            await client.send(BrokeredMessage("still"))
        namespace.outage.restore()
        await asyncio.sleep(31)
        await client.send(BrokeredMessage("after"))
        held = await texts(namespace)
        assert held[0] == "before"
        assert held[-1] == "after"
        assert "still" not in held


@in_virtual_time
async def test_a_store_not_used_during_a_disk_failure_does_not_fail() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.fail_store(0)
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_a_hanging_store_is_unavailable_after_its_timeout_and_recovers() -> None:
    async with namespace_and_client(store_timeout_s=7) as (namespace, client):
        began_s = asyncio.get_running_loop().time()
        namespace.outage.hang_store(0)
        with pytest.raises(ServiceBusError, match="has not answered for 7 s"):
            await client.send(BrokeredMessage("meanwhile"))
        assert asyncio.get_running_loop().time() - began_s == ALMOST(7)
        namespace.outage.restore()
        await asyncio.sleep(1)
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "meanwhile", "after"]


@in_virtual_time
async def test_a_namespace_whose_store_hangs_can_be_stopped_and_started() -> None:
    async with namespace_and_client() as (namespace, client):
        namespace.outage.hang_store(0)
        with pytest.raises(ServiceBusError):
            await client.send(BrokeredMessage("meanwhile"))
        await namespace.stop()
        namespace.outage.restore()
        await namespace.start()
        assert await texts(namespace) == ["before"]
