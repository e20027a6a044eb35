"""The front of a namespace: the gateway, and the listeners that clients come to.

    front = Front(settings, namespace, administration, keys, clock, meter)
    async with contextlib.AsyncExitStack() as stack:
        ports = await front.open(stack, tls, {"amqp": [acceptor.serve]})

Owns: which port is for what, and what a token is worth over HTTP. What is served is there before, and handed in.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp import aio
from twinbus.model.errors import Unauthorized
from twinbus.server import certificates, sas
from twinbus.server.authority import Authority
from twinbus.server.gateway import Gateway
from twinbus.server.http.app import ManagementApp
from twinbus.server.http.data_plane import DataPlane
from twinbus.server.http.hosts import ANY_HOST, Hosts
from twinbus.server.http.listener import listen as listen_http
from twinbus.server.http.metered import HttpMeter
from twinbus.server.http.outage_requests import OutageRequests
from twinbus.server.http.pairing_requests import PairingRequests
from twinbus.server.keys import Right
from twinbus.server.pairing_backlog import Backlogs
from twinbus.server.pauses import PauseMeter
from twinbus.server.websocket.entrance import Entrance

if TYPE_CHECKING:
    import contextlib
    import ssl
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from twinbus.amqp.peers import Listener, Serve
    from twinbus.broker.clock import Clock
    from twinbus.broker.namespace import Namespace
    from twinbus.server.administration import Administration
    from twinbus.server.certificates import Certificate
    from twinbus.server.http.listener import HttpListener
    from twinbus.server.http.routes import Recheck
    from twinbus.server.keys import KeyRing
    from twinbus.server.metering.meter import Meter
    from twinbus.server.sas import Grant
    from twinbus.server.settings import ServeSettings

GRACE_S: Final = 5.0
"""How long connections have to end well when the server stops."""


class Front:
    """The ways into one namespace."""

    def __init__(
        self,
        settings: ServeSettings,
        namespace: Namespace,
        administration: Administration,
        keys: KeyRing,
        clock: Clock,
        meter: Meter,
    ) -> None:
        """Nothing is accepted yet."""
        self.grace_s = GRACE_S
        self._meter = meter
        self.authority = Authority(keys, namespace.entities)
        namespace.on_described = self.authority.refresh
        self.gateway = Gateway(
            namespace,
            administration,
            self.authority,
            name=settings.name,
            soon=asyncio.get_running_loop().call_soon,
            link_idle_s=settings.link_idle_s,
            token_timeout_s=settings.token_timeout_s,
            meter=meter,
        )
        self.gateway.plaintext_passwords = "amqp" in settings.plaintext
        self._settings = settings
        self._namespace = namespace
        self._administration = administration
        self._clock = clock

    async def open(
        self,
        stack: contextlib.AsyncExitStack,
        tls: ssl.SSLContext | None,
        serve: Mapping[str, Sequence[Serve]],
        certificate: Certificate | None = None,
    ) -> dict[str, int]:
        """Accept on some ways in, given what accepts on each; `stack` ends that. The ports by their names.

        Requests may name the hosts of `certificate`, where not every host is accepted.
        """
        self._hosts = self._accepted_hosts(certificate)
        app = self._app(self._measure_pauses(stack))
        ports: dict[str, int] = {}
        for way, acceptors in serve.items():
            for accept in acceptors:
                listener = await self._listen(way, app, accept, tls if way.endswith("s") else None)
                stack.push_async_callback(self._closer(listener.close))
                ports.setdefault(way, listener.port)
        return ports

    def replace_keys(self, keys: KeyRing) -> None:
        """Use other keys of the namespace from now on; links that they do not allow end soon."""
        self.authority.replace_keys(keys)

    async def settle_keys(self) -> None:
        """Wait until every link has ended that changed keys do not allow any more."""
        is_done = asyncio.get_running_loop().create_future()
        self.gateway.revocations.when_done(lambda: None if is_done.done() else is_done.set_result(None))
        await is_done

    def replace_certificate(self, certificate: Certificate) -> None:
        """Accept requests for the hosts of another certificate. StartError if it cannot be read."""
        if self._hosts is not ANY_HOST:
            self._hosts.replace(self._host_names(certificate))

    def _accepted_hosts(self, certificate: Certificate | None) -> Hosts:
        return Hosts(self._host_names(certificate)) if self._settings.emulator_key else ANY_HOST

    def _host_names(self, certificate: Certificate | None) -> list[str]:
        names = certificates.names_in(certificate) if certificate is not None else []
        return [*self._settings.allowed_hosts, self._settings.host, *names]

    def _app(self, pauses: PauseMeter | None) -> ManagementApp:
        gateway, clock, authority = self.gateway, self._clock, self.authority
        meter = HttpMeter(self._meter, self._namespace.entities)
        backlogs = Backlogs(self._namespace, self._administration)
        first = (
            *DataPlane(self._namespace, meter).routes,
            *OutageRequests(gateway.outage_switch).routes,
            *PairingRequests(gateway.pairings, backlogs, partial(_show, clock, authority)).routes,
        )
        authorise = partial(_authorise, clock, authority)
        return ManagementApp(
            self._administration,
            authorise,
            pauses=pauses,
            first=first,
            managed=meter.managed,
            on_login_failed=partial(gateway.login_log.note, "http"),
        )

    async def _listen(
        self, way: str, app: ManagementApp, serve: Serve, tls: ssl.SSLContext | None
    ) -> Listener | HttpListener:
        gateway = self.gateway
        if way.startswith("http"):
            entrance = Entrance(gateway.make_client, gateway.make_connection)
            return await listen_http(app, serve=serve, tls=tls, entrance=entrance, hosts=self._hosts)
        return await aio.listen(gateway.make_client, gateway.make_connection, serve=serve, tls=tls)

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


def _authorise(
    clock: Clock,
    authority: Authority,
    token: str | None,
    right: str,
    path: str,
    host: str = "",
    address: str = "",
) -> Recheck:
    """Check the token that every HTTP request shows."""
    shown, wall_s = _shown(token), clock.wall_ms() / 1000
    if address:
        grant = sas.verify_request(shown, path, address, authority, wall_s)
    else:
        grant = sas.verify(shown, path, authority, wall_s, host)
    _check_grant(authority, grant, right, path)
    return partial(_check_grant, authority, grant, right, path)


def _check_grant(authority: Authority, grant: Grant, right: str, path: str) -> None:
    """Check a grant with its key as it is now. A request that waits may outlive its token, but not its key."""
    now = authority.renewed(grant)
    if now is None or not now.allows(Right(right), path):
        raise Unauthorized(f"the key {grant.key_name!r} has no right to {right} on '{path}'")


def _show(clock: Clock, authority: Authority, token: str | None) -> Grant:
    """... and where it is not known beforehand what the token has to be for, that is seen by the token."""
    return sas.show(_shown(token), authority, clock.wall_ms() / 1000)


def _shown(token: str | None) -> str:
    if token is None:
        raise Unauthorized("the request has no Authorization header: it needs a SharedAccessSignature")
    return token
