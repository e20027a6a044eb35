"""A namespace served by a single process: the broker, its catalogue, and its listeners.

    service = NamespaceService(settings, Dependencies(clock=clock, random=random, keys=keys, ...))
    async with contextlib.AsyncExitStack() as stack:
        ports = await service.start(stack, tls)

Owns: the wiring of these parts, their startup order, and their shutdown in reverse order. Clock, disks and keys are
parameters: `single_process` passes the machine's, and a test may pass its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.broker.namespace import Namespace
from twinbus.model.errors import ServiceBusError
from twinbus.server.catalogue.local_catalogue import LocalCatalogue
from twinbus.server.config.reconciler import reconcile
from twinbus.server.config.settings import StartError
from twinbus.server.runtime.listeners import Listeners
from twinbus.server.runtime.stores import StoreManager
from twinbus.server.runtime.system_clock import TimerDriver
from twinbus.server.usage.meter import UsageMeter
from twinbus.server.usage.writer import UsageWriter, UsageWriterConfig

if TYPE_CHECKING:
    import contextlib
    import ssl
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from twinbus.broker.clock import Clock
    from twinbus.server.auth.keys import KeyRing
    from twinbus.server.config.settings import ServeSettings
    from twinbus.server.port.client_port import Accept
    from twinbus.server.runtime.stores import StoreBackend
    from twinbus.server.tls.certificates import Certificate
    from twinbus.store.catalogue import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The clock, randomness, keys, disks and sockets that a namespace uses."""

    clock: Clock
    random: Random
    """The source of unguessable ids and tokens."""
    keys: KeyRing
    store_backend: StoreBackend
    open_catalogue: Callable[[], Catalogue]
    """Opens the catalogue; called on a thread, because opening may block on a disk."""
    open_acceptors: Callable[[], Mapping[str, Sequence[Accept]]]
    """Opens the ports, and returns functions that start accepting, by protocol; called once the namespace is loaded."""
    usage_folder: Path | None = None
    """The folder for usage records; if None, usage is counted but not recorded."""


class NamespaceService:
    """A namespace with its broker, catalogue and listeners."""

    namespace: Namespace
    """The broker, set by `start`."""
    catalogue: LocalCatalogue
    """The administration of the namespace, set by `start`."""
    listeners: Listeners
    """The listeners, set by `start`."""

    def __init__(self, settings: ServeSettings, dependencies: Dependencies) -> None:
        """Create a service that is not started."""
        self._settings = settings
        self._dependencies = dependencies
        self.meter = UsageMeter()
        """The counters of client usage."""

    async def start(
        self, stack: contextlib.AsyncExitStack, tls: ssl.SSLContext | None, certificate: Certificate | None = None
    ) -> dict[str, int]:
        """Start the namespace and return its open ports by protocol. `stack` stops everything that was started."""
        await self._open_namespace(stack)
        dependencies = self._dependencies
        self.listeners = Listeners(
            self._settings, self.namespace, self.catalogue, dependencies.keys, dependencies.clock, self.meter
        )
        directories = dict(enumerate(dependencies.store_backend.directories))
        self.listeners.status_api.use_stores(directories, self._settings.min_free_bytes)
        return await self.listeners.open(stack, tls, dependencies.open_acceptors(), certificate)

    async def _open_namespace(self, stack: contextlib.AsyncExitStack) -> None:
        settings, dependencies = self._settings, self._dependencies
        self.namespace = Namespace(
            clock=dependencies.clock,
            random=dependencies.random,
            call_at_turn_end=asyncio.get_running_loop().call_soon,
            on_failed=lambda commit_log: stores.reopen(commit_log),  # noqa: PLW0108  # `stores` is created below
            limits=settings.limits,
            store_timeout_s=settings.store_timeout_s,
        )
        self.namespace.on_forwarded = self.meter.count_forwards
        if settings.metering and dependencies.usage_folder is not None:
            config = UsageWriterConfig(
                folder=dependencies.usage_folder, namespace=settings.name, retention_days=settings.usage_days
            )
            writer = UsageWriter(self.meter, dependencies.clock, self.namespace.timers, config)
            stack.push_async_callback(writer.close)  # closed last, so that all usage is written
            writer.start()
        stores = StoreManager(self.namespace, dependencies.store_backend, min_free_bytes=settings.min_free_bytes)
        stack.push_async_callback(stores.close)
        await stores.open()
        stack.callback(TimerDriver(self.namespace.timers).stop)
        self.catalogue = LocalCatalogue(
            self.namespace, settings.name, store_count=len(dependencies.store_backend.directories)
        )
        try:
            await self.catalogue.open(dependencies.open_catalogue)
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        stack.push_async_callback(self.catalogue.close)
        if settings.plan is not None:
            await reconcile(self.catalogue, settings.plan, now_ms=dependencies.clock.wall_ms())
