"""Listening sockets.

Owns: opening sockets for the host and ports in the settings. This process (`acceptor`) or its workers accept
connections from these sockets.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING, Final

from twinbus.server.config.settings import PLAINTEXT_PROTOCOLS, StartError
from twinbus.server.port.directory import ONE_PORT

if TYPE_CHECKING:
    import ssl

    from twinbus.amqp.listener import AcceptingServer, MakeProtocol, StartAccepting
    from twinbus.server.config.settings import ServeSettings

log: Final = logging.getLogger(__name__)

BACKLOG: Final = 1_024
_IN_USE: Final = "another program uses it: stop that program, or give another port (0: any free port)"


def open_sockets(settings: ServeSettings) -> dict[str, list[socket.socket]]:
    """Open sockets for each open protocol, one per address of the host.

    Raise StartError if a socket cannot be opened.
    """
    opened: dict[str, list[socket.socket]] = {}
    for protocol in settings.open_protocols:
        port = settings.port(protocol)
        try:
            opened[protocol] = bind_sockets(settings.host, port)
        except OSError as error:
            for sock in [sock for sockets in opened.values() for sock in sockets]:
                sock.close()
            reason = _IN_USE if error.errno == errno.EADDRINUSE else str(error)
            raise StartError(f"--{protocol}-port {port}: cannot listen on it: {reason}") from error
    if not settings.is_loopback:
        _warn_about_plaintext(settings, opened)
    return opened


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Open a listening socket for each address of a host. Raise OSError if a socket cannot be opened."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, address) for family, _, _, _, address in infos)
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def serve_with_loop(host: str, port: int) -> StartAccepting:
    """Return a function that accepts with the event loop's own server, without admission, for simulated networks."""

    async def serve(
        make_protocol: MakeProtocol,
        tls: ssl.SSLContext | None,
        _timeout_s: float,
        _make_plaintext_protocol: MakeProtocol | None = None,
    ) -> AcceptingServer:
        return await asyncio.get_running_loop().create_server(lambda: make_protocol(None), host, port, ssl=tls)

    return serve


def _warn_about_plaintext(settings: ServeSettings, sockets: dict[str, list[socket.socket]]) -> None:
    """Log what is open to other machines without TLS, and what they can use only with TLS."""
    ports = {name: opened[0].getsockname()[1] for name, opened in sockets.items()}
    for protocol in PLAINTEXT_PROTOCOLS:
        if protocol in settings.plaintext:
            for port in [ports[name] for name in dict.fromkeys((ONE_PORT, protocol)) if name in ports]:
                log.warning(
                    "--plaintext %s: port %d of %s is open without TLS: the network can read keys and messages",
                    protocol,
                    port,
                    settings.host,
                )
    if "amqp" in ports and not settings.allows_plaintext("amqp"):
        log.warning(
            "port %d serves AMQP only over TLS, because other machines can reach %s. Use TLS, or start the server with "
            "--plaintext amqp",
            ports["amqp"],
            settings.host,
        )
    if "http" not in ports and settings.http_port is not None:
        log.warning(
            "the http port is not opened: it has no TLS, but other machines can reach %s. Use https, or open it with "
            "--plaintext http",
            settings.host,
        )
