"""The JSON API of this process, assembled from its parts.

    api = StatusApi(gateway, meter)
    routes = api.routes
    async with contextlib.AsyncExitStack() as stack:
        api.start(stack)

Owns the wiring, and the task that samples rates.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from twinbus.server.api.access import Authenticator
from twinbus.server.api.collector import Collector
from twinbus.server.api.endpoints import StatusEndpoints
from twinbus.server.api.entity_index import EntityIndex
from twinbus.server.api.entity_status import EntityReader
from twinbus.server.api.metrics_page import MetricsPage
from twinbus.server.api.overview import OverviewReader
from twinbus.server.api.process_status import ProcessStatus
from twinbus.server.api.usage_rates import UsageRates

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from twinbus.server.amqp.gateway import Gateway
    from twinbus.server.api.collector import Peers
    from twinbus.server.usage.meter import UsageMeter

log: Final = logging.getLogger(__name__)


class StatusApi:
    """The API of one process."""

    def __init__(self, gateway: Gateway, meter: UsageMeter) -> None:
        """Create the API of a server with a single process."""
        namespace = gateway.namespace
        self.index = EntityIndex(namespace)
        self._rates = UsageRates(meter, namespace.clock)
        self._process = ProcessStatus(gateway, self._rates, self.index, log)
        self._collector = Collector(self._process, self.index)
        overview = OverviewReader(gateway, self.index, self._collector)
        self.entities = EntityReader(namespace, self.index, self._collector)
        self.metrics = MetricsPage(gateway, self.index, self._collector, overview)
        authenticator = Authenticator(gateway.key_registry, namespace.clock, gateway.login_log.record_failure)
        self.routes = StatusEndpoints(
            gateway, authenticator, self._collector, self.entities, overview, self.metrics
        ).routes()
        self._tasks: set[asyncio.Task[None]] = set()

    def use_stores(self, directories: Mapping[int, Path], min_free_bytes: int) -> None:
        """Set the directories of this process's stores, and the space that has to stay free on their disks."""
        self._process.directories = directories
        self._process.min_free_bytes = min_free_bytes

    def join(self, peers: Peers) -> None:
        """Answer for all processes of the server, which are reached through `peers`."""
        self._process.number = peers.number
        self._collector.peers = peers

    def handle_peer(self, request: bytes, on_reply: Callable[[bytes], None]) -> None:
        """Answer a request of another process."""

        async def answer() -> None:
            on_reply(await self._process.handle_encoded(request))

        task = asyncio.get_running_loop().create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._on_answered)

    def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Order the entities, and start sampling rates until `stack` is closed."""
        self.index.fill()
        sampling = asyncio.get_running_loop().create_task(self._rates.run())
        stack.callback(sampling.cancel)

    def _on_answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a request of another process failed", exc_info=task.exception())
