"""Silent and idle connections block no other client, and take no open files from the stores."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.support.server_process import TIMEOUT_S, run_server, wait_until
from tests.support.silent_connections import count_open, open_silent_connections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

FILES = 600
"""The limit of open files of the server."""
MAX_CONNECTIONS = 236
"""Connections that the server accepts with that limit and 2 stores."""
MANY = 700
LIMITED = ("prlimit", f"--nofile={FILES}:{FILES}")


def send_and_receive(connection_string: str, queue: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue, max_wait_time=TIMEOUT_S) as receiver,
    ):
        sender.send_messages([ServiceBusMessage(b"x" * 1_000) for _ in range(20)])
        for message in receiver.receive_messages(20):
            receiver.complete_message(message)


def health(connection: http.client.HTTPConnection) -> object:
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        return json.loads(connection.getresponse().read())["status"]


def open_files(server: ServerProcess) -> int:
    assert server._process is not None  # noqa: SLF001  # to list its open files
    return len(list(Path(f"/proc/{server._process.pid}/fd").iterdir()))  # noqa: SLF001


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("limited"), "--stores=2", "--workers=1", launcher=LIMITED) as server:
        yield server


def test_silent_connections_on_all_ports_block_no_client(server: ServerProcess) -> None:
    queue = server.create_queue()
    with open_silent_connections(server, MANY) as sockets:
        send_and_receive(server.connection_string, queue)
        assert server.message_counts(queue) == (0, 0)
        assert health(http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)) == "ok"
        tls = ssl.create_default_context(cafile=server.ca_file)
        secure = http.client.HTTPSConnection(server.host, server.https_port, timeout=TIMEOUT_S, context=tls)
        assert health(secure) == "ok"
        wait_until(lambda: count_open(sockets) <= MAX_CONNECTIONS // 2, timeout_s=5)  # all come from one address
        assert open_files(server) < FILES - 2 * 64
    log = server.check_log()
    assert (
        f"--max-connections 10000: with 2 stores and a limit of {FILES} open files, {MAX_CONNECTIONS} connections"
        in log
    )
    assert "Too many open files" not in log
    assert log.count(f"limit of {MAX_CONNECTIONS // 2} unauthenticated connections of 127.") <= 2


def test_idle_http_connections_on_one_port_block_no_client(server: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MANY):
            idle = stack.enter_context(
                contextlib.closing(http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S))
            )
            idle.request("GET", "/health")
            assert idle.getresponse().read()
        assert health(http.client.HTTPConnection(server.host, server.http_port, timeout=TIMEOUT_S)) == "ok"
        assert server.message_counts(server.create_queue()) == (0, 0)
        assert open_files(server) < FILES - 2 * 64
    assert server.check_log().count("limit of") <= 2
