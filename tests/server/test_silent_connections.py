"""Whoever opens connections and says nothing keeps nobody else out, and takes no files from the stores."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.served import PATIENCE_S, started, wait_until
from tests.silent import silent, still_open

FILES = 600
"""The limit of open files of the server: with it and 2 stores, it accepts 236 connections."""
LIMITED = ("prlimit", f"--nofile={FILES}:{FILES}")


def send_and_receive(connection_string: str, queue: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue, max_wait_time=PATIENCE_S) as receiver,
    ):
        sender.send_messages([ServiceBusMessage(b"x" * 1_000) for _ in range(20)])
        for message in receiver.receive_messages(20):
            receiver.complete_message(message)


def health(connection: http.client.HTTPConnection) -> object:
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        return json.loads(connection.getresponse().read())["status"]


def test_silent_connections_on_all_ports_keep_nobody_out(tmp_path: Path) -> None:
    with started(tmp_path, "--stores=2", before=LIMITED) as server:
        queue = server.make_queue()
        assert server._process is not None  # noqa: SLF001  # its files are looked at
        pid = server._process.pid  # noqa: SLF001
        with silent(server, 1_000) as sockets:
            send_and_receive(server.connection_string, queue)
            assert server.counts(queue) == (0, 0)
            assert health(http.client.HTTPConnection(server.host, server.http_port, timeout=PATIENCE_S)) == "ok"
            tls = ssl.create_default_context(cafile=server.ca_file)
            secure = http.client.HTTPSConnection(server.host, server.https_port, timeout=PATIENCE_S, context=tls)
            assert health(secure) == "ok"
            wait_until(lambda: still_open(sockets) <= 118, patience_s=5)  # half of 236: all are of one address
            assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < FILES - 2 * 64
        log = server.check_log()
        assert "--max-connections 10000: with 2 stores and a limit of 600 open files, 236 connections" in log
        assert "Too many open files" not in log
        assert log.count("limit of 118 unauthenticated connections of 127.") <= 2
