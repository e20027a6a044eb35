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
from twinbus.server.config.apply import bring_to_plan
from twinbus.server.entities import Entities
from twinbus.server.front import Front
from twinbus.server.metering.clerk import Clerk, Desk
from twinbus.server.metering.meter import Meter
from twinbus.server.settings import StartError
from twinbus.server.stores import Stores
from twinbus.server.system_clock import TimerDrive

if TYPE_CHECKING:
    import contextlib
    import ssl
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from twinbus.amqp.peers import Serve
    from twinbus.broker.clock import Clock
    from twinbus.server.certificates import Certificate
    from twinbus.server.keys import KeyRing
    from twinbus.server.settings import ServeSettings
    from twinbus.server.stores import Disks
    from twinbus.store.catalogue import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a namespace stands on."""

    clock: Clock
    random: Random
    """Where ids and tokens come from that nobody may guess."""
    keys: KeyRing
    disks: Disks
    open_catalogue: Callable[[], Catalogue]
    """Called on a thread, where it may wait for a disk."""
    listen: Callable[[], Mapping[str, Sequence[Serve]]]
    """Open the ports. What accepts on each way in; called when there is something to serve."""
    usage: Path | None = None
    """The folder in which is written down what clients use; None: that is counted, and not kept."""


class Service:
    """One namespace, from its start to its end."""

    namespace: Namespace
    """The broker. There from `start` on."""
    entities: Entities
    """What manages it."""
    front: Front
    """The ways in."""

    def __init__(self, settings: ServeSettings, ground: Ground) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._ground = ground
        self.meter = Meter()
        """Counts what clients use."""

    async def start(
        self, stack: contextlib.AsyncExitStack, tls: ssl.SSLContext | None, certificate: Certificate | None = None
    ) -> dict[str, int]:
        """Start everything; `stack` stops it. The open ports by their names."""
        await self._open(stack)
        ground = self._ground
        self.front = Front(self._settings, self.namespace, self.entities, ground.keys, ground.clock, self.meter)
        return await self.front.open(stack, tls, ground.listen(), certificate)

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        settings, ground = self._settings, self._ground
        self.namespace = Namespace(
            clock=ground.clock,
            random=ground.random,
            defer=asyncio.get_running_loop().call_soon,
            on_failed=lambda journal: stores.reopen(journal),  # noqa: PLW0108  # made below: each needs the other
            limits=settings.limits,
            store_timeout_s=settings.store_timeout_s,
        )
        self.namespace.on_forwarded = self.meter.count_forwards
        if settings.metering and ground.usage is not None:
            desk = Desk(folder=ground.usage, namespace=settings.name, days=settings.usage_days)
            clerk = Clerk(self.meter, ground.clock, self.namespace.timers, desk)
            stack.push_async_callback(clerk.close)  # after all else: what is counted last is written as well
            clerk.start()
        stores = Stores(self.namespace, ground.disks, min_free_bytes=settings.min_free_bytes)
        stack.push_async_callback(stores.close)
        await stores.open()
        stack.callback(TimerDrive(self.namespace.timers).stop)
        self.entities = Entities(self.namespace, settings.name, stores=len(ground.disks.directories))
        try:
            await self.entities.open(ground.open_catalogue)
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        stack.push_async_callback(self.entities.close)
        if settings.plan is not None:
            await bring_to_plan(self.entities, settings.plan, now_ms=ground.clock.wall_ms())
