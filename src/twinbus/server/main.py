"""A server from its start to its end: everything is made here, in order, and taken down in the opposite order.

Owns: the process: its loop, its signals, its ready file. What each part does is in the part.
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

from twinbus.amqp import aio
from twinbus.broker.namespace import Namespace
from twinbus.model.errors import ServiceBusError, Unauthorized
from twinbus.server import certificates, logs, sas
from twinbus.server.authority import Authority
from twinbus.server.config.apply import bring_to_plan
from twinbus.server.data_directory import DataDirectory
from twinbus.server.entities import Entities
from twinbus.server.gateway import Gateway
from twinbus.server.http.app import ManagementApp
from twinbus.server.http.data_plane import DataPlane
from twinbus.server.http.listener import listen as listen_http
from twinbus.server.keys import KeyRing, Right
from twinbus.server.pauses import PauseMeter
from twinbus.server.ready_file import ReadyFile, connection_string
from twinbus.server.settings import ServeSettings, StartError
from twinbus.server.stores import Stores
from twinbus.server.system_clock import SystemClock, TimerDrive
from twinbus.server.websocket.entrance import Entrance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.server.http.listener import HttpListener

log: Final = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""How long connections have to end well when the server stops."""
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
    """One namespace, served."""

    def __init__(self, settings: ServeSettings, data: DataDirectory) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._data = data
        self._keys = self._load_keys()
        self._clock = SystemClock()
        self._certificate = self._choose_certificate()

    async def start(self, stack: contextlib.AsyncExitStack) -> ReadyFile:
        """Start everything; `stack` stops it. What a client needs to know."""
        settings, loop = self._settings, asyncio.get_running_loop()
        namespace = Namespace(
            clock=self._clock,
            random=random.SystemRandom(),
            defer=loop.call_soon,
            on_failed=lambda journal: stores.reopen(journal),  # noqa: PLW0108  # made below: each needs the other
            limits=settings.limits,
            store_timeout_s=settings.store_timeout_s,
        )
        directories = self._data.stores(settings.stores, settings.store_dirs)
        stores = Stores(namespace, directories, min_free_bytes=settings.min_free_bytes, sync=settings.sync)
        stack.push_async_callback(stores.close)
        await stores.open()
        stack.callback(TimerDrive(namespace.timers).stop)
        entities = Entities(namespace, settings.name, stores=settings.stores)
        try:
            await entities.open(self._data.catalogue)
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        stack.push_async_callback(entities.close)
        if settings.plan is not None:
            await bring_to_plan(entities, settings.plan, now_ms=self._clock.wall_ms())
        return await self._listen(stack, namespace, entities)

    async def _listen(self, stack: contextlib.AsyncExitStack, namespace: Namespace, entities: Entities) -> ReadyFile:
        settings = self._settings
        tls = certificates.server_context(self._certificate)
        authority = Authority(self._keys, namespace.entities)
        gateway = Gateway(
            namespace,
            entities,
            authority,
            name=settings.name,
            soon=asyncio.get_running_loop().call_soon,
            link_idle_s=settings.link_idle_s,
            token_timeout_s=settings.token_timeout_s,
        )
        pauses, data_plane = self._measure_pauses(stack), DataPlane(namespace)
        app = ManagementApp(entities, partial(self._authorise, authority), pauses=pauses, first=data_plane.routes)
        ports = {}
        for option, port, is_http, context in (
            ("amqp", settings.amqp_port, False, None),
            ("amqps", settings.amqps_port, False, tls),
            ("http", settings.http_port, True, None),
            ("https", settings.https_port, True, tls),
        ):
            listener: aio.Listener | HttpListener
            try:
                if is_http:
                    most = settings.max_connections
                    entrance = Entrance(gateway.make_client, gateway.make_connection, max_connections=most)
                    listener = await listen_http(app, host=settings.host, port=port, tls=context, entrance=entrance)
                else:
                    listener = await aio.listen(
                        gateway.make_client,
                        gateway.make_connection,
                        host=settings.host,
                        port=port,
                        tls=context,
                        max_connections=settings.max_connections,
                    )
            except OSError as error:
                raise StartError(f"--{option}-port {port}: cannot be listened on: {error}") from error
            stack.push_async_callback(_closer(listener.close))
            ports[option] = listener.port
        return self._ready(ports)

    def _measure_pauses(self, stack: contextlib.AsyncExitStack) -> PauseMeter | None:
        if not self._settings.measure_pauses:
            return None
        meter = PauseMeter(asyncio.get_running_loop())
        meter.start()
        stack.callback(meter.stop)
        return meter

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

    def _authorise(self, authority: Authority, token: str | None, right: str, path: str, host: str = "") -> None:
        """Whoever asks over HTTP shows a token with each request."""
        if token is None:
            raise Unauthorized("the request has no Authorization header: it needs a SharedAccessSignature")
        grant = sas.verify(token, path, authority, self._clock.wall_ms() / 1000, host)
        if not grant.allows(Right(right), path):
            raise Unauthorized(f"the key {grant.key_name!r} has no right to {right} on '{path}'")


def _allow_files(connections: int) -> None:
    """A connection is an open file, and the usual limit of a process is 1,024 of them."""
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning("only %d files may be open: fewer than --max-connections %d needs", hard, connections)
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _closer(close: Callable[..., Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await close(grace_s=GRACE_S)

    return run


def _where(ready: ReadyFile) -> dict[str, object]:
    ports = {name: getattr(ready, f"{name}_port") for name in ("amqp", "amqps", "http", "https")}
    return {"namespace": ready.namespace, **ports}
