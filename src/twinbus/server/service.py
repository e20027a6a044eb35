"""One namespace, served: the broker, its entities, the gateway and the listeners.

    service = Service(settings, Ground(clock=clock, random=random, keys=keys, disks=disks, open_catalogue=opener))
    async with contextlib.AsyncExitStack() as stack:
        ports = await service.start(stack, tls)

Owns: which part is given what; all is made in order, and taken down in the opposite order. Where time, disks and keys
come from is decided by whoever makes it: the process (`main`) takes those of the machine, a test may bring its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp import aio
from twinbus.broker.namespace import Namespace
from twinbus.model.errors import ServiceBusError, Unauthorized
from twinbus.server import sas
from twinbus.server.authority import Authority
from twinbus.server.config.apply import bring_to_plan
from twinbus.server.entities import Entities
from twinbus.server.gateway import Gateway
from twinbus.server.http.app import ManagementApp
from twinbus.server.http.data_plane import DataPlane
from twinbus.server.http.listener import listen as listen_http
from twinbus.server.http.outage_requests import OutageRequests
from twinbus.server.http.pairing_requests import PairingRequests
from twinbus.server.keys import Right
from twinbus.server.pauses import PauseMeter
from twinbus.server.settings import StartError
from twinbus.server.stores import Stores
from twinbus.server.system_clock import TimerDrive
from twinbus.server.websocket.entrance import Entrance

if TYPE_CHECKING:
    import contextlib
    import ssl
    from collections.abc import Awaitable, Callable
    from random import Random

    from twinbus.broker.clock import Clock
    from twinbus.server.http.listener import HttpListener
    from twinbus.server.keys import KeyRing
    from twinbus.server.sas import Grant
    from twinbus.server.settings import ServeSettings
    from twinbus.server.stores import Disks
    from twinbus.store.catalogue import Catalogue

GRACE_S: Final = 5.0
"""How long connections have to end well when the server stops."""


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


class Service:
    """One namespace, from its start to its end."""

    namespace: Namespace
    """The broker. There from `start` on."""
    entities: Entities
    """What manages it."""

    def __init__(self, settings: ServeSettings, ground: Ground) -> None:
        """Nothing is started yet."""
        self.grace_s = GRACE_S
        self._settings = settings
        self._ground = ground

    async def start(self, stack: contextlib.AsyncExitStack, tls: ssl.SSLContext | None) -> dict[str, int]:
        """Start everything; `stack` stops it. The ports by their names; without `tls` those that need none."""
        await self._open(stack)
        return await self._listen(stack, tls)

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
        stores = Stores(self.namespace, ground.disks, min_free_bytes=settings.min_free_bytes)
        stack.push_async_callback(stores.close)
        await stores.open()
        stack.callback(TimerDrive(self.namespace.timers).stop)
        self.entities = Entities(self.namespace, settings.name, stores=settings.stores)
        try:
            await self.entities.open(ground.open_catalogue)
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        stack.push_async_callback(self.entities.close)
        if settings.plan is not None:
            await bring_to_plan(self.entities, settings.plan, now_ms=ground.clock.wall_ms())

    async def _listen(self, stack: contextlib.AsyncExitStack, tls: ssl.SSLContext | None) -> dict[str, int]:
        settings, namespace = self._settings, self.namespace
        authority = Authority(self._ground.keys, namespace.entities)
        gateway = Gateway(
            namespace,
            self.entities,
            authority,
            name=settings.name,
            soon=asyncio.get_running_loop().call_soon,
            link_idle_s=settings.link_idle_s,
            token_timeout_s=settings.token_timeout_s,
        )
        clock, pauses = self._ground.clock, self._measure_pauses(stack)
        first = (
            *DataPlane(namespace).routes,
            *OutageRequests(gateway.outage_switch).routes,
            *PairingRequests(gateway.pairings, partial(_show, clock, authority)).routes,
        )
        app = ManagementApp(self.entities, partial(_authorise, clock, authority), pauses=pauses, first=first)
        ports = {}
        for option, port, is_http, context in (
            ("amqp", settings.amqp_port, False, None),
            ("amqps", settings.amqps_port, False, tls),
            ("http", settings.http_port, True, None),
            ("https", settings.https_port, True, tls),
        ):
            if context is None and option.endswith("s"):
                continue
            try:
                listener = await self._listen_on(port, app if is_http else None, gateway, context)
            except OSError as error:
                raise StartError(f"--{option}-port {port}: cannot be listened on: {error}") from error
            stack.push_async_callback(self._closer(listener.close))
            ports[option] = listener.port
        return ports

    async def _listen_on(
        self, port: int, app: ManagementApp | None, gateway: Gateway, tls: ssl.SSLContext | None
    ) -> aio.Listener | HttpListener:
        host, most = self._settings.host, self._settings.max_connections
        if app is not None:
            entrance = Entrance(gateway.make_client, gateway.make_connection, max_connections=most)
            return await listen_http(app, host=host, port=port, tls=tls, entrance=entrance)
        return await aio.listen(
            gateway.make_client, gateway.make_connection, host=host, port=port, tls=tls, max_connections=most
        )

    def _measure_pauses(self, stack: contextlib.AsyncExitStack) -> PauseMeter | None:
        if not self._settings.measure_pauses:
            return None
        meter = PauseMeter(asyncio.get_running_loop())
        meter.start()
        stack.callback(meter.stop)
        return meter

    def _closer(self, close: Callable[..., Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await close(grace_s=self.grace_s)

        return run


def _authorise(clock: Clock, authority: Authority, token: str | None, right: str, path: str, host: str = "") -> None:
    """Whoever asks over HTTP shows a token with each request."""
    grant = sas.verify(_shown(token), path, authority, clock.wall_ms() / 1000, host)
    if not grant.allows(Right(right), path):
        raise Unauthorized(f"the key {grant.key_name!r} has no right to {right} on '{path}'")


def _show(clock: Clock, authority: Authority, token: str | None) -> Grant:
    """... and where it is not known beforehand what the token has to be for, that is seen by the token."""
    return sas.show(_shown(token), authority, clock.wall_ms() / 1000)


def _shown(token: str | None) -> str:
    if token is None:
        raise Unauthorized("the request has no Authorization header: it needs a SharedAccessSignature")
    return token
