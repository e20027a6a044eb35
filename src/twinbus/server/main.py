"""A server process from its start to its end.

Owns: the process: its loop, its signals, its data directory, its ready file. What it serves is made by `service`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import logging
import os
import random
import resource
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import uvloop

from twinbus.server import certificates, logs
from twinbus.server.data_directory import DataDirectory
from twinbus.server.keys import KeyRing
from twinbus.server.ready_file import ReadyFile, connection_string
from twinbus.server.rocks_disks import RocksDisks
from twinbus.server.service import Ground, Service
from twinbus.server.system_clock import SystemClock
from twinbus.store.catalogue import Catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.server.settings import ServeSettings

log: Final = logging.getLogger(__name__)

OTHER_FILES: Final = 4_096
"""Open files of stores and all else that is no connection."""
SWITCH_INTERVAL_S: Final = 0.002
"""How long the loop may keep the GIL when a store's thread wants it: a commit waits for that twice. Shorter costs a
fifth of the receive rate (0.5 ms), longer adds to the accept latency of a busy server."""
GC_THRESHOLDS: Final = (10_000, 2, 1_000)
"""Objects made before Python looks for cycles, of which messages have none: with its own (700, 10, 10) that took a
twentieth of the time. The second step is never for many at once, since nothing else runs meanwhile (of 300,000 objects
it takes a tenth of a second), and all are looked at seldom."""


def run(settings: ServeSettings, announce: Callable[[ReadyFile], None] | None = None) -> int:
    """Serve until a signal says stop; the exit code. `announce` is told once it serves."""
    logs.configure(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    _allow_files(settings.max_connections)
    with DataDirectory(settings.data) as data:
        uvloop.run(_serve(settings, data, announce))
    return 0


async def _serve(settings: ServeSettings, data: DataDirectory, announce: Callable[[ReadyFile], None] | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        server = Server(settings, data)
        ready = await server.start(stack)
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
    """One namespace, served from a data directory."""

    service: Service
    """There from `start` on."""

    def __init__(self, settings: ServeSettings, data: DataDirectory) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._data = data
        self._keys = self._load_keys()
        self._certificate = self._choose_certificate()

    async def start(self, stack: contextlib.AsyncExitStack) -> ReadyFile:
        """Start everything; `stack` stops it. What a client needs to know."""
        settings = self._settings
        ground = Ground(
            clock=SystemClock(),
            random=random.SystemRandom(),
            keys=self._keys,
            disks=RocksDisks(self._data.stores(settings.stores, settings.store_dirs), sync=settings.sync),
            open_catalogue=partial(Catalogue, self._data.catalogue),
        )
        self.service = Service(settings, ground)
        return self._ready(await self.service.start(stack, certificates.server_context(self._certificate)))

    def _ready(self, ports: dict[str, int]) -> ReadyFile:
        settings, root = self._settings, self._keys.root
        ca_file = self._certificate.ca_file
        return ReadyFile(
            namespace=settings.name,
            amqp_port=ports["amqp"],
            amqps_port=ports["amqps"],
            http_port=ports["http"],
            https_port=ports["https"],
            connection_string=connection_string(settings.host, ports["amqp"], root, is_emulator=True),
            admin_connection_string=connection_string(settings.host, ports["https"], root, is_emulator=False),
            ca_file=str(ca_file) if ca_file is not None else None,
            pid=os.getpid(),
        )

    def _load_keys(self) -> KeyRing:
        ring = KeyRing.load(self._data.keys).with_keys(self._settings.keys)
        if self._settings.emulator_key:
            log.warning("the emulator's key is good here: everybody knows it, and all on this machine can use it")
            ring = ring.with_emulator_key()
        return ring

    def _choose_certificate(self) -> certificates.Certificate:
        settings = self._settings
        if settings.tls_cert is not None and settings.tls_key is not None:
            return certificates.Certificate(settings.tls_cert, settings.tls_key)
        return certificates.development_certificate(self._data.tls, settings.host, dt.datetime.now(dt.UTC))


def _allow_files(connections: int) -> None:
    """A connection is an open file, and the usual limit of a process is 1,024 of them."""
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning("only %d files may be open: fewer than --max-connections %d needs", hard, connections)
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _where(ready: ReadyFile) -> dict[str, object]:
    ports = {name: getattr(ready, f"{name}_port") for name in ("amqp", "amqps", "http", "https")}
    return {"namespace": ready.namespace, **ports}
