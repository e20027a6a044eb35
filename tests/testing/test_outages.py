"""Every kind of outage does to a client what it does outside of tests, and `restore` ends it."""

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
async def connected(**settings: Any) -> AsyncIterator[tuple[InMemoryNamespace, QueueClient]]:  # noqa: ANN401  # each has a type of its own
    """A namespace and a client that has sent one message and tries nothing twice."""
    async with InMemoryNamespace(**settings) as namespace:
        await namespace.create_queue("orders")
        client = namespace.factory(retry_policy=NO_RETRY, operation_timeout=30).create_queue_client("orders")
        await client.send(BrokeredMessage("before"))
        yield namespace, client


async def texts(namespace: InMemoryNamespace, path: str = "orders") -> list[str]:
    return [message.text for message in await namespace.messages(path)]


@in_virtual_time
async def test_stop_refuses_clients_until_it_is_over() -> None:
    async with connected() as (namespace, client):
        namespace.outage.stop()
        for _ in range(3):
            with pytest.raises((ConnectionLost, ConnectionFailed)):
                await client.send(BrokeredMessage("meanwhile"))
        assert await texts(namespace) == ["before"]
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_a_client_that_tries_again_survives_a_short_stop() -> None:
    async with connected() as (namespace, _):
        patient = namespace.factory(retry_policy=RetryPolicy(max_retries=10)).create_queue_client("orders")
        namespace.outage.stop()
        asyncio.get_running_loop().call_later(20, namespace.outage.restore)
        await patient.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_hang_lets_operations_time_out() -> None:
    async with connected() as (namespace, client):
        began_s = asyncio.get_running_loop().time()
        namespace.outage.hang()
        with pytest.raises(TimedOut) as caught:
            await client.send(BrokeredMessage("meanwhile"))
        assert caught.value.was_sent
        assert asyncio.get_running_loop().time() - began_s == ALMOST(30)


@in_virtual_time
async def test_what_was_sent_into_a_hanging_namespace_may_arrive_later() -> None:
    async with connected() as (namespace, client):
        namespace.outage.hang()
        with pytest.raises(TimedOut):
            await client.send(BrokeredMessage("meanwhile"))
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "meanwhile", "after"]


@in_virtual_time
async def test_nobody_gets_into_a_hanging_namespace() -> None:
    async with connected() as (namespace, _):
        namespace.outage.hang()
        other = namespace.factory(retry_policy=NO_RETRY, operation_timeout=10).create_queue_client("orders")
        with pytest.raises((ConnectionFailed, OperationTimeout)):
            await other.send(BrokeredMessage("meanwhile"))
        namespace.outage.restore()
        assert await texts(namespace) == ["before"]


@in_virtual_time
async def test_a_connection_that_hangs_for_long_is_given_up() -> None:
    async with connected() as (namespace, client):
        namespace.outage.hang()
        await asyncio.sleep(300)
        assert not client.factory.is_connected
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_slow_makes_everything_take_longer() -> None:
    async with connected() as (namespace, client):
        namespace.outage.slow(1.5)
        began_s = asyncio.get_running_loop().time()
        await client.send(BrokeredMessage("slowly"))
        assert asyncio.get_running_loop().time() - began_s == ALMOST(3.0)


@in_virtual_time
async def test_a_cut_connection_is_made_again() -> None:
    async with connected() as (namespace, client):
        namespace.outage.cut()
        with pytest.raises(ConnectionLost):
            await client.send(BrokeredMessage("meanwhile"))
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_busy_is_said_of_one_entity_and_of_no_other() -> None:
    async with connected() as (namespace, client):
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
async def test_busy_lasts_over_a_restart() -> None:
    async with connected() as (namespace, client):
        namespace.outage.busy("Orders")
        namespace.kill()
        await namespace.start()
        with pytest.raises(ServerBusy):
            await client.sender.send(BrokeredMessage("meanwhile"), timeout=5)
        with pytest.raises(EntityNotFound):
            namespace.outage.busy("no-such-queue")


@in_virtual_time
async def test_a_full_disk_refuses_sends_and_lets_settlements_go_on() -> None:
    async with connected() as (namespace, client):
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
async def test_a_store_that_fails_is_opened_again_when_its_disk_works() -> None:
    async with connected(stores=2) as (namespace, client):
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
async def test_a_store_that_was_not_used_while_its_disk_failed_has_not_failed() -> None:
    async with connected() as (namespace, client):
        namespace.outage.fail_store(0)
        namespace.outage.restore()
        await client.send(BrokeredMessage("after"))
        assert await texts(namespace) == ["before", "after"]


@in_virtual_time
async def test_a_store_that_hangs_is_unavailable_after_its_time_and_goes_on_later() -> None:
    async with connected(store_timeout_s=7) as (namespace, client):
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
    async with connected() as (namespace, client):
        namespace.outage.hang_store(0)
        with pytest.raises(ServiceBusError):
            await client.send(BrokeredMessage("meanwhile"))
        await namespace.stop()
        namespace.outage.restore()
        await namespace.start()
        assert await texts(namespace) == ["before"]
