"""Idle TCP connections to all ports of a server: the client connects and sends nothing."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from tests.support.server_process import AMQPS_PORT, TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.server_process import ServerProcess


@contextlib.contextmanager
def open_silent_connections(server: ServerProcess, count: int) -> Iterator[list[socket.socket]]:
    """Open connections that send nothing, spread over the server's four ports."""
    ports = (server.amqp_port, AMQPS_PORT, server.http_port, server.https_port)
    with contextlib.ExitStack() as stack:
        sockets = []
        for number in range(count):
            sock = stack.enter_context(socket.socket())
            sock.settimeout(TIMEOUT_S)
            sock.connect((server.host, ports[number % len(ports)]))
            sockets.append(sock)
        yield sockets


def count_open(sockets: Sequence[socket.socket]) -> int:
    """Return how many of the connections the server has not closed."""
    count = 0
    for sock in sockets:
        sock.settimeout(0)
        with contextlib.suppress(ConnectionResetError):
            try:
                sock.recv(1)
            except BlockingIOError:
                count += 1
    return count
