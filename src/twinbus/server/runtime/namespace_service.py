"""One namespace, served by one process: the broker, its entities, and the ways in.

    service = Service(settings, Ground(clock=clock, random=random, keys=keys, disks=disks, ...))
    async with contextlib.AsyncExitStack() as stack:
        ports = await service.start(stack, tls)

Owns: which part is given what; all is made in order, and taken down in the opposite order. Where time, disks and keys
come from is decided by whoever makes it: the process (`main`) takes those of the machine, a test may bring its own.
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

    from twinbus.amqp.listener import StartAccepting
    from twinbus.broker.clock import Clock
    from twinbus.server.auth.keys import KeyRing
    from twinbus.server.config.settings import ServeSettings
    from twinbus.server.runtime.stores import StoreBackend
    from twinbus.server.tls.certificates import Certificate
    from twinbus.store.catalogue import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a namespace stands on."""

    clock: Clock
    random: Random
    """Where ids and tokens come from that nobody may guess."""
    keys: KeyRing
    store_backend: StoreBackend
    open_catalogue: Callable[[], Catalogue]
    """Called on a thread, where it may wait for a disk."""
    open_acceptors: Callable[[], Mapping[str, Sequence[StartAccepting]]]
    """Open the ports. What accepts on each way in; called when there is something to serve."""
    usage_folder: Path | None = None
    """The folder in which is written down what clients use; None: that is counted, and not kept."""


class NamespaceService:
    """One namespace, from its start to its end."""

    namespace: Namespace
    """The broker. There from `start` on."""
    catalogue: LocalCatalogue
    """What manages it."""
    listeners: Listeners
    """The ways in."""

    def __init__(self, settings: ServeSettings, dependencies: Dependencies) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._dependencies = dependencies
        self.meter = UsageMeter()
        """Counts what clients use."""

    async def start(
        self, stack: contextlib.AsyncExitStack, tls: ssl.SSLContext | None, certificate: Certificate | None = None
    ) -> dict[str, int]:
        """Start everything; `stack` stops it. The open ports by their names."""
        await self._open_namespace(stack)
        ground = self._dependencies
        self.listeners = Listeners(
            self._settings, self.namespace, self.catalogue, ground.keys, ground.clock, self.meter
        )
        return await self.listeners.open(stack, tls, ground.open_acceptors(), certificate)

    async def _open_namespace(self, stack: contextlib.AsyncExitStack) -> None:
        settings, ground = self._settings, self._dependencies
        self.namespace = Namespace(
            clock=ground.clock,
            random=ground.random,
            call_at_turn_end=asyncio.get_running_loop().call_soon,
            on_failed=lambda journal: stores.reopen(journal),  # noqa: PLW0108  # made below: each needs the other
            limits=settings.limits,
            store_timeout_s=settings.store_timeout_s,
        )
        self.namespace.on_forwarded = self.meter.count_forwards
        if settings.metering and ground.usage_folder is not None:
            desk = UsageWriterConfig(
                folder=ground.usage_folder, namespace=settings.name, retention_days=settings.usage_days
            )
            clerk = UsageWriter(self.meter, ground.clock, self.namespace.timers, desk)
            stack.push_async_callback(clerk.close)  # after all else: what is counted last is written as well
            clerk.start()
        stores = StoreManager(self.namespace, ground.store_backend, min_free_bytes=settings.min_free_bytes)
        stack.push_async_callback(stores.close)
        await stores.open()
        stack.callback(TimerDriver(self.namespace.timers).stop)
        self.catalogue = LocalCatalogue(
            self.namespace, settings.name, store_count=len(ground.store_backend.directories)
        )
        try:
            await self.catalogue.open(ground.open_catalogue)
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        stack.push_async_callback(self.catalogue.close)
        if settings.plan is not None:
            await reconcile(self.catalogue, settings.plan, now_ms=ground.clock.wall_ms())
