"""C01: usage of calls over HTTP: messages and administration."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx

from tests.server.usage.usage_totals import nonzero_counts, total_usage
from twinbus.client import BrokeredMessage
from twinbus.client.connection_string import ConnectionString
from twinbus.client.management import NamespaceManager
from twinbus.model.message import PING_CONTENT_TYPE
from twinbus.model.rule import RuleDescription, SqlFilter
from twinbus.model.signature import make_token
from twinbus.testing import InMemoryNamespace, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def http_client(namespace: InMemoryNamespace) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client with a token for the namespace."""
    address = ConnectionString.parse(namespace.admin_connection_string)
    assert address.key_name is not None
    assert address.key is not None
    expires_s = namespace.clock.wall_ms() // 1000 + 3_600
    token = make_token(f"http://{address.host}/", address.key_name, address.key, expires_s)
    headers = {"Authorization": token}
    async with httpx.AsyncClient(base_url=address.http_base, headers=headers, trust_env=False) as client:
        yield client


@in_virtual_time
async def test_c01_messages_over_http_are_counted_like_messages_over_amqp() -> None:
    async with InMemoryNamespace() as namespace, http_client(namespace) as client:
        await namespace.create_queue("orders")
        assert (await client.post("/orders/messages", content=b"x" * 70_000)).status_code == 201
        batch = '[{"Body": "a"}, {"Body": "b"}]'
        media_type = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
        assert (await client.post("/orders/messages", content=batch, headers=media_type)).status_code == 201
        ping = {"Content-Type": PING_CONTENT_TYPE}
        assert (await client.post("/orders/messages", headers=ping)).status_code == 201
        assert (await client.post("/orders/messages", headers={"BrokerProperties": "{"})).status_code == 400
        sent = {"sends": 3, "send_units": 4, "pings": 1, "failed_sends": 1}
        assert nonzero_counts(total_usage(namespace)) == sent
        locked = await client.post("/orders/messages/head")
        assert (await client.post(locked.headers["location"])).status_code == 200
        assert (await client.put(locked.headers["location"])).status_code == 200
        redelivered = await client.post("/orders/messages/head")
        assert (await client.delete(redelivered.headers["location"])).status_code == 200
        assert (await client.delete(redelivered.headers["location"])).status_code == 404
        for status in (200, 200, 204):
            assert (await client.delete("/orders/messages/head?timeout=1")).status_code == status
        received = {"receives": 4, "receive_units": 6, "empty_receives": 1, "settlements": 3, "renewals": 1}
        assert nonzero_counts(total_usage(namespace)) == sent | received
        assert {row.client for row in namespace.usage()} == {"RootManageSharedAccessKey"}


@in_virtual_time
async def test_a_call_that_waits_across_minutes_is_counted() -> None:
    async with InMemoryNamespace() as namespace, http_client(namespace) as client:
        await namespace.create_queue("orders")
        meter = namespace._running_service.meter  # noqa: SLF001  # nothing writes its minutes
        pending = asyncio.ensure_future(client.delete("/orders/messages/head?timeout=50", timeout=60))
        await asyncio.sleep(10)
        meter.remove_unused(meter.counters())  # as at the end of a minute without any count
        assert (await pending).status_code == 204
        assert nonzero_counts(total_usage(namespace)) == {"empty_receives": 1}


@in_virtual_time
async def test_c01_administration_is_counted_for_the_entity_and_lists_for_the_namespace() -> None:
    async with InMemoryNamespace() as namespace:
        connection_string = namespace.admin_connection_string
        async with NamespaceManager.from_connection_string(connection_string, clock=namespace.clock) as manager:
            await manager.create_queue("orders")
            await manager.get_queue("Orders")
            await manager.create_topic("news")
            await manager.create_subscription("news", "all")
            await manager.create_rule("news", "all", RuleDescription(name="r", filter=SqlFilter(expression="1=1")))
            assert not await manager.queue_exists("nothing")
            assert [queue.path async for queue in manager.get_queues()] == ["orders"]
            await manager.delete_queue("orders")
        counts = {row.entity: nonzero_counts(row) for row in namespace.usage()}
        assert counts == {
            "orders": {"management": 3},
            "news": {"management": 1},
            "news/Subscriptions/all": {"management": 2},
            "": {"management": 2},
        }


@in_virtual_time
async def test_health_checks_and_refused_requests_are_not_counted() -> None:
    async with InMemoryNamespace() as namespace, http_client(namespace) as client:
        await namespace.create_queue("orders")
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/orders", headers={"Authorization": "none"})).status_code == 401
        factory = namespace.factory()
        await factory.create_message_receiver("orders").open()
        await factory.create_message_sender("orders").send(BrokeredMessage("apples"))
        assert nonzero_counts(total_usage(namespace)) == {"sends": 1, "send_units": 1}
