"""A server of several processes starts and stops as one, and says why if it cannot start."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.multi_process_server import is_worker, run_multi_process_server
from tests.support.server_process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.multi_process_server import MultiProcessServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `running_server`."""
    return tmp_path_factory.mktemp("crew")


@pytest.fixture(scope="module")
def running_server(folder: Path) -> Iterator[MultiProcessServer]:
    with run_multi_process_server(folder, workers=3) as server:
        yield server


def test_the_ready_file_exists_once_all_workers_serve(running_server: MultiProcessServer) -> None:
    workers = running_server.workers()
    assert set(workers) == {0, 1, 2}
    assert all(
        re.search(rf"worker {number} is serving pid={pid}\b", running_server.log) for number, pid in workers.items()
    )
    assert running_server.pid not in workers.values()
    ports = {running_server.amqp_port, running_server.http_port, running_server.https_port}
    assert len(ports) == 3
    assert all(json.loads(running_server.request_each("GET", "health", expected=200)[number]) for number in workers)


def test_every_listener_accepts_connections(running_server: MultiProcessServer) -> None:
    context = ssl.create_default_context(cafile=running_server.ca_file)
    for port, is_secure, greeting in (
        (running_server.amqp_port, False, b"AMQP\x00\x01\x00\x00"),
        (5671, True, b"AMQP\x00\x01\x00\x00"),
        (running_server.http_port, False, b"GET /health HTTP/1.0\r\n\r\n"),
        (running_server.https_port, True, b"GET /health HTTP/1.0\r\n\r\n"),
    ):
        with socket.create_connection((running_server.host, port), timeout=10) as plain:
            sock = context.wrap_socket(plain, server_hostname=running_server.host) if is_secure else plain
            sock.sendall(greeting)
            assert sock.recv(4) in (b"AMQP", b"HTTP")
            sock.close()


def test_a_second_server_is_refused(folder: Path, running_server: MultiProcessServer) -> None:
    output = serve(folder / "data", "--workers=1")
    assert f"is in use by process {running_server.pid}, workers " in output


def test_sigterm_leaves_no_process_no_folder_and_no_ready_file(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=3) as server:
        workers = server.workers().values()
        folder = Path((tmp_path / "data" / "run").read_text().strip())
        assert sorted(file.name for file in folder.iterdir()) == ["0.sock", "1.sock", "2.sock"]
        assert folder.stat().st_mode & 0o777 == 0o700
        server.stop()
        assert not any(is_worker(pid) for pid in workers)
        assert not folder.exists()
        assert not (tmp_path / "data" / "run").exists()


def test_a_worker_whose_store_is_broken_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path) as server:
        server.stop()
    store = tmp_path / "data" / "stores" / "1"
    shutil.rmtree(store)
    store.write_text("no directory")
    output = serve(tmp_path / "data", "--workers=2")
    assert "store 1 is missing" in output
    store.unlink()
    store.mkdir()
    (store / "CURRENT").write_text("MANIFEST-000007\n")
    output = serve(tmp_path / "data", "--workers=2")
    assert "twinbus serve: a store cannot be opened: " in output
    assert "Traceback" not in output


def test_more_workers_than_stores_are_refused(tmp_path: Path) -> None:
    output = serve(tmp_path, "--workers=5")
    reason = f"each worker needs a store of its own, but {tmp_path} gets 4: give --stores 5, or fewer workers"
    assert f"--workers 5: {reason}" in output


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        output = serve(tmp_path, "--workers=2", f"--amqp-port={port}")
    assert f"--amqp-port {port}: cannot listen on it" in output


def test_log_records_of_workers_name_the_worker(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--log-format=json") as server:
        server.create_queue()
        created = [json.loads(line) for line in server.log.splitlines() if "created" in line]
        assert sorted(record["worker"] for record in created if record["message"] == "queue created") == [0, 1]
        first = json.loads(server.log.splitlines()[0])
        assert "worker" not in first


def test_entities_of_the_configuration_exist_once_the_server_is_ready(tmp_path: Path) -> None:
    config = tmp_path / "twinbus.toml"
    config.write_text(
        """
        [[queues]]
        name = "orders"
        max_delivery_count = 3
        enable_partitioning = true
        [[topics]]
        name = "news"
        [[topics.subscriptions]]
        name = "all"
        [[topics.subscriptions.rules]]
        name = "red"
        sql = "colour = 'red'"
        """
    )
    with run_multi_process_server(tmp_path, f"--config={config}") as server:
        for answer in server.request_each("GET", "orders", expected=200).values():
            assert "MaxDeliveryCount>3<" in answer
        for answer in server.request_each("GET", "news/Subscriptions/all/Rules", expected=200).values():
            assert "colour = 'red'" in answer
        server.stop()
        config.write_text('[[queues]]\nname = "orders"\nmax_delivery_count = 4')
        server.start()
        for answer in server.request_each("GET", "orders", expected=200).values():
            assert "MaxDeliveryCount>4<" in answer


def test_sigterm_during_startup_stops_the_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "twinbus", "serve", "contoso", f"--data={tmp_path / 'data'}", "--workers=2"]
    ports = [f"--{protocol}-port=0" for protocol in ("amqp", "amqps", "http", "https")]
    ready = f"--ready-file={tmp_path / 'ready'}"
    with subprocess.Popen([*command, *ports, ready], stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: "workers" in lock_file(tmp_path))  # the workers are starting
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert not (tmp_path / "ready").exists()
    assert not (tmp_path / "data" / "run").exists()


def test_ctrl_c_stops_all_processes_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "twinbus", "serve", "contoso", f"--data={tmp_path / 'data'}", "--workers=2"]
    ports = [f"--{protocol}-port=0" for protocol in ("amqp", "amqps", "http", "https")]
    ready = tmp_path / "ready"
    with subprocess.Popen(
        [*command, *ports, f"--ready-file={ready}"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        wait_until(ready.exists, timeout_s=40)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, output = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert "restarting worker" not in output
    assert output.splitlines()[-1].endswith("stopped")


def lock_file(folder: Path) -> str:
    try:
        return (folder / "data" / "lock").read_text()
    except OSError:
        return ""


def serve(data: Path, *options: str) -> str:
    """Run a server that cannot start, and return its error output."""
    command = [sys.executable, "-m", "twinbus", "serve", "contoso", f"--data={data}", "--min-free=0"]
    ports = [f"--{protocol}-port=0" for protocol in ("amqp", "amqps", "http", "https")]
    done = subprocess.run(
        [*command, *ports, *options], capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ)
    )
    assert done.returncode in (1, 2), done.stderr
    return done.stderr
