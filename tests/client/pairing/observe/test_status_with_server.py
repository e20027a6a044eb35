"""`status()` reports the messages that were parked in a real server."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

from tests.support.in_process_server import run_server_in_process
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.connection_string import ConnectionString
from twinbus.client.pairing import EntityState, SendAvailabilityPairedNamespaceOptions
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.in_process_server import InProcessServer
    from twinbus.client.management import NamespaceManager, QueueInfo
    from twinbus.client.pairing import Pairing


class ServerManager:
    """The part of a NamespaceManager that a pairing needs, over the server's HTTP API."""

    def __init__(self, server: InProcessServer) -> None:
        self.where = ConnectionString(host=server.host)
        self._server = server

    async def get_queues(self, _: str) -> AsyncIterator[QueueInfo]:
        none_yet: list[QueueInfo] = []
        for path in none_yet:
            yield path

    async def create_queue(self, path: str, _: object) -> None:
        self._server.create_entity(path, "QueueDescription")

    async def get_queue_runtime(self, path: str) -> QueueRuntime:
        active, dead = self._server.message_counts(path)
        return QueueRuntime(
            active_count=active, dead_letter_count=dead, size_bytes=0, created_ms=0, updated_ms=0, accessed_ms=0
        )


async def pair_with_primary_down(server: InProcessServer, **options: Any) -> Pairing:  # noqa: ANN401
    """Pair with a primary that is down."""
    with socket.socket() as unused:
        unused.bind((server.host, 0))
        port = unused.getsockname()[1]
    text = f"Endpoint=sb://{server.host}:{port};SharedAccessKeyName=k;SharedAccessKey=c2Vj;UseDevelopmentEmulator=true"
    return await MessagingFactory.from_connection_string(text).pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            secondary_factory=MessagingFactory.from_connection_string(server.connection_string),
            secondary_namespace_manager=cast("NamespaceManager", ServerManager(server)),
            primary_namespace_name="contoso",
            failover_interval=0,
            **options,
        )
    )


def test_parked_messages_are_counted_by_entity(tmp_path: Path) -> None:
    async def scenario(server: InProcessServer) -> None:
        async with await pair_with_primary_down(server, backlog_queue_count=1) as pairing:
            orders = pairing.primary.create_queue_client("orders")
            news = pairing.primary.create_topic_client("news")
            await orders.send_batch([BrokeredMessage(f"order {number}", session_id="s") for number in range(3)])
            for number in range(300):
                await news.send(BrokeredMessage(f"news {number}"))
            status = await pairing.status()
            assert {entity.path: entity.state for entity in status.entities} == {
                "orders": EntityState.FAILED_OVER,
                "news": EntityState.FAILED_OVER,
            }
            (queue,) = status.backlog_queues
            assert queue.contents.parked == status.parked == 303
            assert queue.contents.for_entities == {"orders": 3, "news": 300}
            assert queue.contents.oldest is not None
            assert abs((queue.contents.oldest - status.at).total_seconds()) < 60
            assert not queue.contents.is_sample

    with run_server_in_process(tmp_path) as server:
        asyncio.run(scenario(server))
