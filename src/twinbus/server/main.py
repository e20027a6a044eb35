"""A server process from its start to its end.

Owns: the process: its loop, its signals, its data directory, its ready file. What it serves is made by `service`; where
several processes serve, by `workers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from functools import partial
from typing import TYPE_CHECKING, Final

import uvloop

from twinbus.server import certificates, identity, logs, process
from twinbus.server.data_directory import DataDirectory
from twinbus.server.rocks_disks import RocksDisks
from twinbus.server.service import Ground, Service
from twinbus.server.system_clock import SystemClock
from twinbus.server.workers.fleet import Stopped
from twinbus.server.workers.supervisor import Supervisor
from twinbus.store.catalogue import Catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.server.ready_file import ReadyFile
    from twinbus.server.settings import ServeSettings

log: Final = logging.getLogger(__name__)


def run(settings: ServeSettings, announce: Callable[[ReadyFile], None] | None = None) -> int:
    """Serve until a signal says stop; the exit code. `announce` is told once it serves."""
    logs.configure(settings.log_level, settings.log_format)
    process.tune(settings.max_connections)
    with DataDirectory(settings.data) as data, contextlib.suppress(Stopped):
        uvloop.run(_serve(settings, data, announce))
    return 0


async def _serve(settings: ServeSettings, data: DataDirectory, announce: Callable[[ReadyFile], None] | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        if settings.workers == 1:
            ready = await Server(settings, data).start(stack)
        else:
            ready = await Supervisor(settings, data).start(stack, stop)
        if settings.ready_file is not None:
            ready.write(settings.ready_file)
            stack.callback(ready.remove, settings.ready_file)
        log.info("serving", extra=_where(ready))
        if announce is not None:
            announce(ready)
        await stop.wait()
        log.info("stopping")
    log.info("stopped")


class Server:
    """One namespace, served from a data directory by this process."""

    service: Service
    """There from `start` on."""

    def __init__(self, settings: ServeSettings, data: DataDirectory) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._data = data
        self._keys = identity.load_keys(settings, data)
        self._certificate = identity.choose_certificate(settings, data)

    async def start(self, stack: contextlib.AsyncExitStack) -> ReadyFile:
        """Start everything; `stack` stops it. What a client needs to know."""
        settings = self._settings
        ground = Ground(
            clock=SystemClock(),
            random=random.SystemRandom(),
            keys=self._keys,
            disks=RocksDisks(self._data.stores(settings.stores, settings.store_dirs), sync=settings.sync),
            open_catalogue=partial(Catalogue, self._data.catalogue),
            usage=self._data.usage,
        )
        self.service = Service(settings, ground)
        ports = await self.service.start(stack, certificates.server_context(self._certificate))
        return identity.make_ready_file(settings, ports, self._keys, self._certificate)


def _where(ready: ReadyFile) -> dict[str, object]:
    ports = {name: getattr(ready, f"{name}_port") for name in ("amqp", "amqps", "http", "https")}
    return {"namespace": ready.namespace, **ports}
