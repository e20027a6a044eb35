"""Workers accept connections from one shared socket: each gets its share, and a stopped worker gets none."""

from __future__ import annotations

import contextlib
import http.client
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.multi_process_server import run_multi_process_server
from tests.support.server_process import TIMEOUT_S, wait_until
from tests.support.silent_connections import count_open, open_silent_connections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.multi_process_server import MultiProcessServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiProcessServer]:
    with run_multi_process_server(
        tmp_path_factory.mktemp("crew"), "--worker-timeout=60", "--max-connections=40", workers=3
    ) as server:
        yield server


@contextlib.contextmanager
def connected(server: MultiProcessServer, count: int) -> Iterator[list[http.client.HTTPConnection]]:
    """Open `count` connections and keep them open."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)
            stack.callback(connection.close)
            server.request_on(connection, "GET", "health", expected=200)
            connections.append(connection)
        yield connections


def test_every_worker_gets_its_share_of_the_connections(server: MultiProcessServer) -> None:
    with connected(server, 30) as connections:
        shares = Counter(map(server.worker_of_connection, connections))
    assert sum(shares.values()) == 30
    assert min(shares[number] for number in range(3)) >= 7  # on a busy machine a worker may miss its turn


def test_a_stopped_worker_gets_no_connections(server: MultiProcessServer) -> None:
    server.signal_worker(2, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        with connected(server, 20) as connections:
            shares = Counter(map(server.worker_of_connection, connections))
            assert set(shares) == {0, 1}
            assert min(shares.values()) >= 5
        assert time.monotonic() - began_s < 5
    finally:
        server.signal_worker(2, signal.SIGCONT)


def test_a_restarted_worker_gets_new_connections(server: MultiProcessServer) -> None:
    with connected(server, 6):
        pid = server.signal_worker(1, signal.SIGKILL)
        server.wait_for_replacement(1, pid)
        with connected(server, 2) as connections:
            assert 1 in map(server.worker_of_connection, connections)


def test_silent_connections_are_limited_in_each_worker_and_block_no_client(server: MultiProcessServer) -> None:
    with open_silent_connections(server, 400) as sockets:
        with connected(server, 3):
            wait_until(
                lambda: count_open(sockets) <= 3 * 20, timeout_s=5
            )  # half of 40, since all come from one address
        queue = server.create_queue()
        assert server.message_counts(queue) == (0, 0)
