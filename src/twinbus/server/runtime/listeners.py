"""The ports and listeners of a namespace: AMQP, HTTP and WebSockets, with and without TLS.

    listeners = Listeners(settings, namespace, administration, keys, clock, meter)
    async with contextlib.AsyncExitStack() as stack:
        ports = await listeners.open(stack, tls, {"amqp": [acceptor.serve]})

Owns: the gateway, the listeners behind each port, and checking tokens over HTTP. A `ClientPort` gives each connection
to a listener. The namespace and its administration are parameters.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp import aio
from twinbus.model.errors import Unauthorized
from twinbus.server.amqp.gateway import Gateway
from twinbus.server.api.service import StatusApi
from twinbus.server.auth import sas
from twinbus.server.auth.key_registry import KeyRegistry
from twinbus.server.auth.keys import Right
from twinbus.server.config.settings import PLAINTEXT_PROTOCOLS
from twinbus.server.http.allowed_hosts import ANY_HOST, AllowedHosts
from twinbus.server.http.app import HttpApp
from twinbus.server.http.data_plane import DataPlane
from twinbus.server.http.listener import listen as listen_http
from twinbus.server.http.namespace_endpoints import OutageEndpoints
from twinbus.server.http.pairing_endpoints import PairingEndpoints
from twinbus.server.http.usage_meter import HttpUsageMeter
from twinbus.server.paired_clients.backlog_reader import BacklogReader
from twinbus.server.port.client_port import ClientPort
from twinbus.server.port.detection import WireProtocol
from twinbus.server.port.directory import PortDirectory
from twinbus.server.runtime.loop_pauses import PauseMeter
from twinbus.server.tls import certificates
from twinbus.server.websocket.upgrade import WebSocketUpgrade

if TYPE_CHECKING:
    import contextlib
    import ssl
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from twinbus.amqp.listener import Listener, StartAccepting
    from twinbus.broker.clock import Clock
    from twinbus.broker.namespace import Namespace
    from twinbus.server.auth.keys import KeyRing
    from twinbus.server.auth.sas import Grant
    from twinbus.server.catalogue.administration import Administration
    from twinbus.server.config.settings import ServeSettings
    from twinbus.server.http.listener import HttpListener
    from twinbus.server.http.routes import Recheck
    from twinbus.server.port.client_port import Accept
    from twinbus.server.tls.certificates import Certificate
    from twinbus.server.usage.meter import UsageMeter

CLOSE_GRACE_S: Final = 5.0
"""How long connections may take to close cleanly when the server stops."""


class Listeners:
    """The listeners of a namespace and the gateway behind them."""

    def __init__(
        self,
        settings: ServeSettings,
        namespace: Namespace,
        administration: Administration,
        keys: KeyRing,
        clock: Clock,
        meter: UsageMeter,
    ) -> None:
        """Create the gateway without opening a listener."""
        self.grace_s = CLOSE_GRACE_S
        self._usage_meter = meter
        self.key_registry = KeyRegistry(keys, namespace.entities)
        self.gateway = Gateway(
            namespace,
            administration,
            self.key_registry,
            name=settings.name,
            call_soon=asyncio.get_running_loop().call_soon,
            link_idle_s=settings.link_idle_s,
            token_timeout_s=settings.token_timeout_s,
            meter=meter,
        )
        self.gateway.allow_plaintext_passwords = "amqp" in settings.plaintext
        self.status_api = StatusApi(self.gateway, meter)
        namespace.on_entity_changed = self._on_entity_changed
        self._settings = settings
        self._namespace = namespace
        self._administration = administration
        self._clock = clock

    async def open(
        self,
        stack: contextlib.AsyncExitStack,
        tls: ssl.SSLContext | None,
        accept_functions: Mapping[str, Sequence[Accept]],
        certificate: Certificate | None = None,
    ) -> dict[str, int]:
        """Open ports and return their numbers by name; `accept_functions` start accepting, by the name of a port.

        `stack` closes the ports. If allowed hosts are limited, requests may also name the hosts in `certificate`.
        """
        self._allowed_hosts = self._make_allowed_hosts(certificate)
        self.status_api.start(stack)
        app = self._make_app(self._start_pause_meter(stack))
        settings = self._settings
        directory = PortDirectory(
            plaintext=[name for name in PLAINTEXT_PROTOCOLS if settings.allows_plaintext(name)], has_tls=tls is not None
        )
        for name, functions in accept_functions.items():
            for accept in functions:
                port = await self._make_port(name, directory, app)
                number = await port.open(accept, tls)
                stack.push_async_callback(self._close_with_grace(port.close))
                directory.ports.setdefault(name, number)
        return directory.ports

    def _on_entity_changed(self, key: str) -> None:
        self.key_registry.refresh(key)
        self.status_api.index.update(key)

    def replace_keys(self, keys: KeyRing) -> None:
        """Replace the keys of the namespace; links whose rights are revoked are closed soon."""
        self.key_registry.replace_keys(keys)

    async def wait_for_revocations(self) -> None:
        """Wait until all links whose rights are revoked are closed."""
        is_done = asyncio.get_running_loop().create_future()
        self.gateway.revocations.call_when_done(lambda: None if is_done.done() else is_done.set_result(None))
        await is_done

    def replace_certificate(self, certificate: Certificate) -> None:
        """Accept requests for the hosts in another certificate. Raise StartError if the certificate cannot be read."""
        if self._allowed_hosts is not ANY_HOST:
            self._allowed_hosts.replace(self._host_names(certificate))

    def _make_allowed_hosts(self, certificate: Certificate | None) -> AllowedHosts:
        return AllowedHosts(self._host_names(certificate)) if self._settings.emulator_key else ANY_HOST

    def _host_names(self, certificate: Certificate | None) -> list[str]:
        names = certificates.host_names(certificate) if certificate is not None else []
        return [*self._settings.allowed_hosts, self._settings.host, *names]

    def _make_app(self, pause_meter: PauseMeter | None) -> HttpApp:
        gateway, clock, key_registry = self.gateway, self._clock, self.key_registry
        meter = HttpUsageMeter(self._usage_meter, self._namespace.entities)
        backlogs = BacklogReader(self._namespace, self._administration)
        extra_routes = (
            *self.status_api.routes,
            *DataPlane(self._namespace, meter).routes,
            *OutageEndpoints(gateway.outage_switch).routes,
            *PairingEndpoints(gateway.pairing_reports, backlogs, partial(_verify_token, clock, key_registry)).routes,
        )
        authorise = partial(_authorise, clock, key_registry)
        return HttpApp(
            self._administration,
            authorise,
            pause_meter=pause_meter,
            extra_routes=extra_routes,
            handle_management=meter.handle_management,
            on_login_failed=partial(gateway.login_log.record_failure, "http"),
        )

    async def _make_port(self, name: str, directory: PortDirectory, app: HttpApp) -> ClientPort:
        """Return a port that is not open, with a listener for each protocol that the port serves."""
        port = ClientPort(name, directory, self.gateway)
        for protocol in dict.fromkeys(spoken.protocol for spoken in directory.protocols(name)):
            port.add_listener(await self._make_listener(protocol, app, port.serve_function(protocol)))
        return port

    async def _make_listener(
        self, protocol: WireProtocol, app: HttpApp, serve: StartAccepting
    ) -> Listener | HttpListener:
        gateway = self.gateway
        if protocol is WireProtocol.HTTP:
            websocket_upgrade = WebSocketUpgrade(gateway.make_client_connection, gateway.make_connection)
            return await listen_http(
                app, serve=serve, websocket_upgrade=websocket_upgrade, allowed_hosts=self._allowed_hosts
            )
        return await aio.listen(gateway.make_client_connection, gateway.make_connection, serve=serve)

    def _start_pause_meter(self, stack: contextlib.AsyncExitStack) -> PauseMeter | None:
        if not self._settings.measure_pauses:
            return None
        meter = PauseMeter(asyncio.get_running_loop())
        meter.start()
        stack.callback(meter.stop)
        return meter

    def _close_with_grace(self, close: Callable[..., Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await close(grace_s=self.grace_s)

        return run


def _authorise(
    clock: Clock,
    key_registry: KeyRegistry,
    token: str | None,
    right: str,
    path: str,
    host: str = "",
    address: str = "",
) -> Recheck:
    """Check the token of an HTTP request, and return a function that checks the token again: see `routes.Authorise`."""
    present, wall_s = _require_token(token), clock.wall_ms() / 1000
    if address:
        grant = sas.verify_request(present, path, address, key_registry, wall_s)
    else:
        grant = sas.verify(present, path, key_registry, wall_s, host)
    _check_grant(key_registry, grant, right, path)
    return partial(_check_grant, key_registry, grant, right, path)


def _check_grant(key_registry: KeyRegistry, grant: Grant, right: str, path: str) -> None:
    """Check a grant against the current state of its key: a waiting request may outlive its token, but not its key."""
    renewed = key_registry.renew(grant)
    if renewed is None or not renewed.allows(Right(right), path):
        raise Unauthorized(f"the key {grant.key_name!r} has no right to {right} on '{path}'")


def _verify_token(clock: Clock, key_registry: KeyRegistry, token: str | None) -> Grant:
    """Return the grant that a token gives for the scope that it names."""
    return sas.verify_for_own_audience(_require_token(token), key_registry, clock.wall_ms() / 1000)


def _require_token(token: str | None) -> str:
    if token is None:
        raise Unauthorized("the request has no Authorization header: it needs a SharedAccessSignature")
    return token
