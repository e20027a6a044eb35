"""A program that uses the pair: a sender (with or without a spool) or a host of a syphon.

It can be stopped, killed and frozen. Each start runs on a new simulated host, so that nothing of a killed process ever
runs again.

Owns: the factories and the pairing of the current process. `traffic` decides what is sent.
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
"""Maximum duration of a clean stop."""
_START_PAUSE_S: Final = 1.0
_TLS: Final = ssl.SSLContext(
    ssl.PROTOCOL_TLS_CLIENT
)  # never used; creating one for each factory would cost more than a whole outage


class Program:
    """A program, through all its restarts."""

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
        """Total time that it was frozen."""
        self._hosts_syphon = hosts_syphon
        self._incarnation = 0
        self._manager: NamespaceManager | None = None
        self._factories: list[MessagingFactory] = []
        self._starting: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._frozen_at_s = 0.0

    @property
    def host(self) -> str:
        """Host of the current process."""
        return f"{self.name}-{self._incarnation}"

    # --- start and stop------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process. `is_paired` is true once it has paired, which may fail while the secondary is down."""
        assert not self.is_running
        self.is_running = True
        self._incarnation += 1
        self.simulation.trace(f"{self.host} starts")
        self._starting = self.run(self._start())
        self._starting.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.simulation.add_problem("DIED", f"{self.host} could not start: {error!r}")

    def run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine on the program's host."""
        with on_host(self.host):
            return asyncio.ensure_future(coroutine)

    @property
    def is_paired(self) -> bool:
        return self.pairing is not None

    async def _start(self) -> None:
        simulation, settings = self.simulation, self.simulation.settings
        options: dict[str, Any] = {
            "operation_timeout": settings.operation_timeout_s,
            "clock": self.clock,
            "client_id": self.host,
            "tls": _TLS,
        }
        self._factories = primary, secondary = [
            MessagingFactory.from_connection_string(namespace.connection_string, **options)
            for namespace in simulation.namespaces
        ]
        self._manager = NamespaceManager.from_connection_string(
            simulation.secondary.admin_connection_string, **options, retry_policy=RetryPolicy(max_retries=0)
        )
        if not self._hosts_syphon:
            primary.events.listen(simulation.checker.primary_confirmed, {Sent})
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
                simulation.trace(f"{self.host} cannot pair: {type(error).__name__}")
                await asyncio.sleep(_START_PAUSE_S)
            else:
                break
        pairing.on_event(simulation.event_listener(self.host))
        self.primary, self.pairing = primary, pairing
        simulation.trace(f"{self.host} is paired")
        if not self._hosts_syphon:
            self._tasks = simulation.traffic.start(self)

    @property
    def _spool_dir(self) -> Path | None:
        return self.disk.folder if self.disk is not None else None

    async def stop(self) -> None:
        """Stop cleanly: sends in progress complete or fail."""
        if not self.is_running:
            return
        self.simulation.check_tasks()
        began_s = self.simulation.loop.time()
        ending = self.run(self._stop())
        await asyncio.wait([ending], timeout=CLOSE_LIMIT_S)
        duration_s = self.simulation.loop.time() - began_s
        if not ending.done():
            self.simulation.add_problem("STUCK", f"{self.host} was not closed within {CLOSE_LIMIT_S:g} s")
            self.crash(is_power_cut=False)
            return
        ending.result()
        self.simulation.trace(f"{self.host} has stopped in {duration_s:.1f} s")
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
            self.simulation.traffic.wake_all()  # pausing flows send once more, and notice that the factory is closed
            await asyncio.sleep(0.1)

    # --- crash and freeze --------------------------------------------------------------------------------------------

    def crash(self, *, is_power_cut: bool) -> None:
        """Kill the process, as with SIGKILL; with `is_power_cut`, peers get no notice."""
        simulation, host = self.simulation, self.host
        simulation.loop.freeze(host)
        if is_power_cut:
            simulation.network.unplug(host)
        else:
            simulation.network.switch_off(host)
        simulation.checker.host_crashed(host)
        simulation.killed_hosts.append(host)
        simulation.killed_tasks.append(
            asyncio.all_tasks(simulation.loop)
        )  # kept, so that unfinished tasks are not reported
        if self.pairing is not None:
            simulation.killed_pairings.append(self.pairing)
        if self.disk is not None:
            self.disk.crash(simulation.loop, host)
        self._clear()

    def freeze(self) -> None:
        self._frozen_at_s = self.simulation.loop.time()
        self.simulation.loop.freeze(self.host)

    def unfreeze(self) -> None:
        self.frozen_s += self.simulation.loop.time() - self._frozen_at_s
        self.simulation.loop.thaw(self.host)
