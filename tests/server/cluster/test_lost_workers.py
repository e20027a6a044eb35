"""A worker that dies or hangs is replaced and misses no change; the other workers keep serving."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

from tests.support.multi_process_server import is_worker, run_multi_process_server
from tests.support.server_process import QUEUE_ENTRY, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_a_killed_worker_restarts_with_all_its_messages(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=3) as server:
        queues = [server.create_queue() for _ in range(6)]  # in stores of every worker
        for queue in queues:
            server.send(queue, queue)
        for number in (0, 1, 2):
            pid = server.signal_worker(number, signal.SIGKILL)
            server.wait_for_replacement(number, pid)
        server.wait_until_healthy()
        assert [server.receive_and_delete(queue) for queue in queues] == queues


def test_other_workers_serve_while_one_is_stopped(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--worker-timeout=3", workers=2) as server:
        queues = [server.create_queue() for _ in range(4)]
        with server.connect_to_each() as connections:
            pid = server.signal_worker(0, signal.SIGSTOP)
            durations_s = []
            for queue in (queues[1], queues[3]):  # in stores of the other worker
                began_s = time.monotonic()
                server.send(queue, "meanwhile", connections[1])
                durations_s.append(time.monotonic() - began_s)
            assert max(durations_s) < 2
            server.wait_for_replacement(0, pid)
        assert not is_worker(pid)


def test_a_stopped_worker_is_killed_after_the_timeout_and_replaced(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--worker-timeout=2", workers=2) as server:
        queues = [server.create_queue() for _ in range(2)]
        for queue in queues:
            server.send(queue, "kept")
        began_s = time.monotonic()
        pid = server.signal_worker(1, signal.SIGSTOP)
        wait_until(lambda: not is_worker(pid))
        assert 1.0 < time.monotonic() - began_s < 6.0
        assert "killing worker 1: it sent no heartbeat for 2 s" in server.log
        server.wait_for_replacement(1, pid)
        server.wait_until_healthy()
        assert [server.receive_and_delete(queue) for queue in queues] == ["kept", "kept"]


def test_health_shows_the_stores_of_a_worker_that_is_down(tmp_path: Path) -> None:
    with (
        run_multi_process_server(tmp_path, "--worker-timeout=2", workers=2) as server,
        server.connect_to_each() as connections,
    ):
        pid = server.signal_worker(1, signal.SIGSTOP)
        server.signal_worker(1, signal.SIGKILL)

        def health() -> str:
            return server.request_on(connections[0], "GET", "health", expected=200)

        reason = "its broker process is not connected"
        up = {"is_available": True, "takes_messages": True}
        down = {"is_available": False, "takes_messages": False, "reason": reason}
        expected = {
            "status": "degraded",
            "reason": f"store 1, 3: {reason}",
            "stores": [{"name": "0", **up}, {"name": "1", **down}, {"name": "2", **up}, {"name": "3", **down}],
        }
        wait_until(lambda: json.loads(health()) == expected)
        server.wait_for_replacement(1, pid)
        wait_until(lambda: '"status":"ok"' in health())


def test_a_replaced_worker_has_the_changes_made_while_it_was_down(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        server.create_entity("news", "TopicDescription")
        deleted = server.create_queue()
        pid = server.signal_worker(1, signal.SIGKILL)
        created: list[str] = []
        while server.workers().get(1, pid) == pid or len(created) < 5:  # before, during and after its restart
            server.create_entity(f"during-{len(created)}", "QueueDescription")
            created.append(f"during-{len(created)}")
        server.create_entity("news/Subscriptions/late", "SubscriptionDescription")
        server.delete_queue(deleted)
        server.wait_for_replacement(1, pid)
        for name in (*created, "news/Subscriptions/late"):
            server.request_each("GET", name, expected=200)
        assert set(server.request_each("GET", deleted, expected=404)) == {0, 1}


def test_a_partitioned_entity_cannot_be_created_or_deleted_while_a_worker_is_down(tmp_path: Path) -> None:
    partitioned = QUEUE_ENTRY.format("<EnablePartitioning>true</EnablePartitioning>")
    with (
        run_multi_process_server(tmp_path, "--worker-timeout=60", workers=2) as server,
        server.connect_to_each() as connections,
    ):
        alive = connections[0]
        server.request_on(alive, "PUT", "spread", partitioned, expected=201)
        pid = server.signal_worker(1, signal.SIGKILL)
        wait_until(lambda: f"worker 1 exited pid={pid}" in server.log)
        refused = server.request_on(alive, "PUT", "other", partitioned, expected=503)
        assert "store 1 is unavailable and would hold a fragment of 'other'" in refused
        assert "store 1 is unavailable" in server.request_on(alive, "DELETE", "spread", expected=503)
        assert "Limited" in server.request_on(alive, "GET", "spread", expected=200)
        server.request_on(alive, "PUT", "plain", QUEUE_ENTRY.format(""), expected=201)  # in a store that works
        server.wait_for_replacement(1, pid)
        server.request_on(alive, "PUT", "other", partitioned, expected=201)
        server.request_on(alive, "DELETE", "spread", expected=200)
        server.request_each("GET", "plain", expected=200)


def test_a_supervisor_that_was_paused_itself_kills_no_worker(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--worker-timeout=1", workers=2) as server:
        before = server.workers()
        server.pause()
        time.sleep(2.5)  # longer than workers may be silent
        server.resume()
        server.create_queue()
        assert server.workers() == before
        assert "killing worker" not in server.log
