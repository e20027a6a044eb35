"""The AMQP port of a namespace in memory serves HTTP, too, under the same rules."""

from __future__ import annotations

import asyncio

from twinbus.client import BrokeredMessage
from twinbus.client.management import NamespaceManager
from twinbus.testing import InMemoryNamespace, in_virtual_time


@in_virtual_time
async def test_one_connection_string_serves_messaging_and_administration() -> None:
    async with (
        InMemoryNamespace() as namespace,
        NamespaceManager.from_connection_string(namespace.connection_string) as manager,
        namespace.factory() as factory,
    ):
        await manager.create_queue("orders")
        await factory.create_queue_client("orders").send(BrokeredMessage("hello"))
        assert len(await namespace.messages("orders")) == 1


@in_virtual_time
async def test_a_web_page_cannot_use_the_amqp_port_of_a_server_with_the_public_key() -> None:
    async with InMemoryNamespace(host="127.0.0.1", emulator_key=True) as namespace:
        reader, writer = await asyncio.open_connection(namespace.host, 5672)
        writer.write(b"GET /health HTTP/1.1\r\nHost: evil.example:5672\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"
        writer.close()
