"""Information of the kernel about a server's processes: children, connections and stores."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from bench.support.server import ProcessStats, Server
from bench.support.server_processes import (
    ServerProcesses,
    children_of,
    connected_worker,
    connected_workers,
    is_alive,
    ports_of,
    stores_of,
)

if TYPE_CHECKING:
    from pathlib import Path

WAITING = "import sys; print(flush=True); sys.stdin.read()"


def test_children_are_found_until_they_have_ended() -> None:
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.pid in children_of(os.getpid())
        assert ServerProcesses(child.pid).workers == [child.pid]
        assert child.pid in ServerProcesses(os.getpid()).workers
        assert is_alive(child.pid)
        child.kill()
        child.wait()
        assert child.pid not in children_of(os.getpid())
        assert not is_alive(child.pid)


def test_figures_of_a_process_tree_are_the_sums_of_its_processes() -> None:
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alone = ProcessStats(os.getpid())
        family = ServerProcesses(os.getpid())
        assert [process.pid for process in family.all] == sorted({os.getpid(), *children_of(os.getpid())})
        assert family.resident_bytes > alone.resident_bytes
        assert family.cpu_s >= alone.cpu_s
        child.kill()


def test_a_connection_belongs_to_the_process_that_accepted_it() -> None:
    pids = [os.getpid()]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client_port = client.getsockname()[1]
            assert connected_worker(client_port, port, pids) is None, "no process has accepted it"
            with listener.accept()[0]:
                assert connected_worker(client_port, port, pids) == os.getpid()
                assert connected_worker(client_port, port, [1]) is None
                assert connected_workers(port, pids) == {client_port: os.getpid()}
                assert ports_of(os.getpid(), port) == [client_port]


def test_a_server_has_its_stores_open(tmp_path: Path) -> None:
    with Server.started(tmp_path, "--stores", "3") as server:
        pid = server.process.pid
        assert stores_of(pid) == {0, 1, 2}
        assert ServerProcesses(pid).worker_of_store(2) == pid
        assert ServerProcesses(pid).worker_of_store(3) is None
        server.stop()
