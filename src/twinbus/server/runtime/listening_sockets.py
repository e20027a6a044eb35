"""Listening sockets.

Owns: how a host and a port become sockets, and which ports of the settings are opened. Who accepts from them is
decided elsewhere: this process (`acceptor`), or its workers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from twinbus.server.config.settings import PLAINTEXT_PROTOCOLS, StartError

if TYPE_CHECKING:
    import ssl

    from twinbus.amqp.listener import AcceptingServer, MakeProtocol, StartAccepting
    from twinbus.server.config.settings import ServeSettings

log: Final = logging.getLogger(__name__)

BACKLOG: Final = 1_024


def open_sockets(settings: ServeSettings) -> dict[str, list[socket.socket]]:
    """The sockets of each way in that is open: one for each address of the host. StartError."""
    opened: dict[str, list[socket.socket]] = {}
    for way in settings.open_protocols:
        port = settings.port(way)
        try:
            opened[way] = bind_sockets(settings.host, port)
        except OSError as error:
            for sock in [sock for sockets in opened.values() for sock in sockets]:
                sock.close()
            raise StartError(f"--{way}-port {port}: cannot be listened on: {error}") from error
    if not settings.is_loopback:
        _warn_about_plaintext(settings, opened)
    return opened


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of a host. OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = dict.fromkeys((family, address) for family, _, _, _, address in found)
    sockets: list[socket.socket] = []
    try:
        for family, address in places:
            sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def serve_with_loop(host: str, port: int) -> StartAccepting:
    """Accept by the event loop's own server, which counts nothing: for loops whose network is no real one."""

    async def serve(make_protocol: MakeProtocol, tls: ssl.SSLContext | None, _timeout_s: float) -> AcceptingServer:
        return await asyncio.get_running_loop().create_server(lambda: make_protocol(None), host, port, ssl=tls)

    return serve


def _warn_about_plaintext(settings: ServeSettings, sockets: dict[str, list[socket.socket]]) -> None:
    """Say which ports without TLS are open to other machines, and which are not."""
    for way in PLAINTEXT_PROTOCOLS:
        if way in sockets:
            log.warning(
                "--plaintext %s: port %d of %s is open without TLS: the network can read keys and messages",
                way,
                sockets[way][0].getsockname()[1],
                settings.host,
            )
        elif getattr(settings, f"{way}_port") is not None:
            log.warning(
                "the %s port is not opened: it has no TLS, and %s is reached from other machines. Use %ss, or open it "
                "with --plaintext %s",
                way,
                settings.host,
                way,
                way,
            )
