"""While the supervisor is down, messages flow, administration fails, and no second server can open the stores."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.multi_process_server import MultiProcessServer, is_worker, run_multi_process_server
from tests.support.server_process import QUEUE_ENTRY, ServerFailed, wait_until


def test_messages_flow_and_administration_is_refused_while_the_supervisor_is_down(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        queues = [server.create_queue() for _ in range(4)]
        workers = server.workers().values()
        with server.connect_to_each() as connections:
            os.kill(server.pid, signal.SIGKILL)
            wait_until(lambda: server.log.count("the supervisor exited") == 2)
            for connection in connections.values():
                began_s = time.monotonic()
                for method, path, body in (
                    ("PUT", "new", QUEUE_ENTRY.format("")),
                    ("DELETE", queues[0], None),
                    ("PUT", f"$outage?path={queues[0]}&seconds=5", None),
                ):
                    refused = server.request_on(connection, method, path, body, expected=503)
                    assert "the supervisor, which owns the catalogue, is down" in refused
                assert time.monotonic() - began_s < 3
                assert "QueueDescription" in server.request_on(connection, "GET", queues[0], expected=200)
                for queue in queues:
                    server.send(queue, "flows", connection)
                    assert server.receive_and_delete(queue, connection) == "flows"
        for queue in queues:  # over new connections
            server.send(queue, "kept")
        second = MultiProcessServer(tmp_path, "--workers=2")
        with pytest.raises(ServerFailed, match=r"is in use by process \d+, workers \d+, \d+"):
            second.start()
        assert all(is_worker(pid) for pid in workers)
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not any(is_worker(pid) for pid in workers))
        socket_folder = Path((tmp_path / "data" / "run").read_text().strip())
        assert socket_folder.is_dir()
        server.forget_supervisor()
        server.start()
        assert not socket_folder.exists()
        assert [server.receive_and_delete(queue) for queue in queues] == ["kept"] * 4


def test_a_worker_lost_without_a_supervisor_takes_only_its_own_stores_down(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        queues = [server.create_queue() for _ in range(2)]
        with server.connect_to_each() as connections:
            lost = server.workers()[1]
            os.kill(server.pid, signal.SIGKILL)
            os.kill(lost, signal.SIGKILL)
            wait_until(lambda: not is_worker(lost))
            server.send(queues[0], "flows", connections[0])
            assert server.receive_and_delete(queues[0], connections[0]) == "flows"
            server.request_on(connections[0], "POST", f"{queues[1]}/messages", "lost", expected=503)
        server.kill()
        server.start()
        server.send(queues[1], "flows again")
