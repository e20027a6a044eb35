"""A program on the pair: it sends, with a spool or without, or hosts a syphon. It can be stopped, killed and frozen.

Each life of it runs on a host of its own, so that nothing of a life that was killed ever runs again.

Owns: the factories and the pairing of the present life. What is sent is the affair of `traffic`.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Final

from twinbus.client import MessagingFactory, NamespaceManager, RetryPolicy
from twinbus.client.events import Sent
from twinbus.client.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.model.errors import ServiceBusError
from twinbus.testing import LoopClock, on_host

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from tests.simulation.pair.simulation import PairSimulation
    from tests.simulation.pair.spool_disk import SpoolDisk
    from twinbus.client.pairing import Pairing

CLOSE_LIMIT_S: Final = 60.0
"""How long an orderly end may take."""
_START_PAUSE_S: Final = 1.0
_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used; making one costs more than a whole outage


class Program:
    """One program, through all its lives."""

    def __init__(
        self,
        simulation: PairSimulation,
        name: str,
        *,
        hosts_syphon: bool,
        disk: SpoolDisk | None = None,
        skew_ms: int = 0,
    ) -> None:
        self.simulation = simulation
        self.name = name
        self.disk = disk
        self.clock = LoopClock()
        self.clock.set_wall_ms(self.clock.wall_ms() + skew_ms)
        self.pairing: Pairing | None = None
        self.primary: MessagingFactory | None = None
        self.is_running = False
        self.frozen_s = 0.0
        """How long it was frozen, in all."""
        self._hosts_syphon = hosts_syphon
        self._incarnation = 0
        self._manager: NamespaceManager | None = None
        self._factories: list[MessagingFactory] = []
        self._starting: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._frozen_at_s = 0.0

    @property
    def host(self) -> str:
        """Where its present life runs."""
        return f"{self.name}-{self._incarnation}"

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life; `is_paired` when that has succeeded, which it may not while the secondary is down."""
        assert not self.is_running
        self.is_running = True
        self._incarnation += 1
        self.simulation.trace(f"{self.host} starts")
        self._starting = self.run(self._start())
        self._starting.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.simulation.add_problem("DIED", f"{self.host} could not start: {error!r}")

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something on its host."""
        with on_host(self.host):
            return asyncio.ensure_future(work)

    @property
    def is_paired(self) -> bool:
        return self.pairing is not None

    async def _start(self) -> None:
        world, settings = self.simulation, self.simulation.settings
        options: dict[str, Any] = {
            "operation_timeout": settings.operation_timeout_s,
            "clock": self.clock,
            "client_id": self.host,
            "tls": _TLS,
        }
        self._factories = primary, secondary = [
            MessagingFactory.from_connection_string(namespace.connection_string, **options)
            for namespace in world.namespaces
        ]
        self._manager = NamespaceManager.from_connection_string(
            world.secondary.admin_connection_string, **options, retry_policy=RetryPolicy(max_retries=0)
        )
        if not self._hosts_syphon:
            primary.events.listen(world.checker.primary_confirmed, {Sent})
        while True:
            pair = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary,
                secondary_namespace_manager=self._manager,
                enable_syphon=self._hosts_syphon,
                spool_dir=self._spool_dir,
                spool_max_bytes=settings.spool_max_bytes,
                **settings.pair,
            )
            try:
                pairing = await primary.pair_namespace(pair)
            except ServiceBusError as error:
                world.trace(f"{self.host} cannot pair: {type(error).__name__}")
                await asyncio.sleep(_START_PAUSE_S)
            else:
                break
        pairing.on_event(world.event_listener(self.host))
        self.primary, self.pairing = primary, pairing
        world.trace(f"{self.host} is paired")
        if not self._hosts_syphon:
            self._tasks = world.traffic.start(self)

    @property
    def _spool_dir(self) -> Path | None:
        return self.disk.folder if self.disk is not None else None

    async def stop(self) -> None:
        """End in good order: what is being sent fails, or is in time."""
        if not self.is_running:
            return
        self.simulation.check_tasks()
        began_s = self.simulation.loop.time()
        ending = self.run(self._stop())
        await asyncio.wait([ending], timeout=CLOSE_LIMIT_S)
        took_s = self.simulation.loop.time() - began_s
        if not ending.done():
            self.simulation.add_problem("STUCK", f"{self.host} was not closed within {CLOSE_LIMIT_S:g} s")
            self.crash(is_power_cut=False)
            return
        ending.result()
        self.simulation.trace(f"{self.host} has stopped in {took_s:.1f} s")
        await asyncio.sleep(0)
        self._clear()

    def _clear(self) -> None:
        self.is_running = False
        self.pairing = self.primary = self._manager = None
        self._factories, self._tasks = [], []

    async def _stop(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self.pairing is not None:
            await self.pairing.close()
        for factory in self._factories:
            await factory.close()
        if self._manager is not None:
            await self._manager.close()
        while any(not task.done() for task in self._tasks):
            self.simulation.traffic.wake_all()  # those that pause send once more, and see that all is closed
            await asyncio.sleep(0.1)

    # --- its accidents ------------------------------------------------------------------------------------------------

    def crash(self, *, is_power_cut: bool) -> None:
        """End at once, as by SIGKILL; with `is_power_cut` nobody is told."""
        world, host = self.simulation, self.host
        world.loop.freeze(host)
        if is_power_cut:
            world.network.unplug(host)
        else:
            world.network.switch_off(host)
        world.checker.host_crashed(host)
        world.killed_hosts.append(host)
        world.killed_tasks.append(asyncio.all_tasks(world.loop))  # they never end, and are not to complain of that
        if self.pairing is not None:
            world.killed_pairings.append(self.pairing)
        if self.disk is not None:
            self.disk.crash(world.loop, host)
        self._clear()

    def freeze(self) -> None:
        self._frozen_at_s = self.simulation.loop.time()
        self.simulation.loop.freeze(self.host)

    def unfreeze(self) -> None:
        self.frozen_s += self.simulation.loop.time() - self._frozen_at_s
        self.simulation.loop.thaw(self.host)
