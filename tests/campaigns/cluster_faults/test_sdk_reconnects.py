"""After the process of its connection is killed, the official SDK reconnects within its first retry."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage

from bench.support.server_processes import ServerProcesses, connected_worker, is_alive, ports_of
from tests.sdk.bus import AsyncDriver, Bus, SyncDriver, receive
from tests.support.server_process import AMQPS_PORT, run_server, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from azure.servicebus import ServiceBusReceiver, ServiceBusSender

    from tests.support.server_process import ServerProcess

WORKERS = 2
RETRIES: dict[str, Any] = {"retry_total": 1}
"""One retry, after the SDK's own pause."""
RECONNECT_TIMEOUT_S = 5.0
"""The SDK's pause, half a second for opening a connection, and margin for a busy machine."""


@pytest.fixture(autouse=True)
def sockets_of_the_sdk() -> Iterator[None]:
    """Collect sockets that the blocking SDK leaves open after a lost connection, before the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Processes:
    """Processes of a server."""

    def __init__(self, supervisor: int) -> None:
        self._supervisor = supervisor

    @property
    def workers(self) -> list[int]:
        return ServerProcesses(self._supervisor).workers

    def connected_workers(self, port: int) -> dict[int, int]:
        """Return the worker of each connection of this program to a server port, by local port."""
        workers = self.workers
        worker_by_port = {
            local_port: connected_worker(local_port, port, workers) for local_port in ports_of(os.getpid(), port)
        }
        return {local_port: worker for local_port, worker in worker_by_port.items() if worker is not None}

    def kill(self, worker: int) -> None:
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not is_alive(worker))

    def wait_until_complete(self) -> None:
        wait_until(lambda: len(self.workers) == WORKERS)


@contextmanager
def run_cluster(folder: Path) -> Iterator[tuple[ServerProcess, Processes]]:
    """Run a server of several processes; kill its workers if the test fails."""
    with run_server(folder, f"--workers={WORKERS}") as server:
        processes = Processes(json.loads((folder / "ready.json").read_text())["pid"])
        try:
            yield server, processes
        except BaseException:
            for worker in processes.workers:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
            raise


class Clients:
    """A sender and a receiver of one client, each with its own connection."""

    def __init__(self, bus: Bus, server: ServerProcess, processes: Processes, port: int) -> None:
        self.queue = server.create_queue(EnablePartitioning="true", LockDuration="PT5S")
        self._processes, self._port = processes, port
        client = bus.client(**RETRIES)
        before = processes.connected_workers(port)
        self.sender: ServiceBusSender = bus.sender(self.queue, client=client)
        self.sender.send_messages(ServiceBusMessage("before", message_id="before"))
        (self._sender_port,) = processes.connected_workers(port).keys() - before.keys()
        before = processes.connected_workers(port)
        self.receiver: ServiceBusReceiver = bus.receiver(self.queue, client=client)
        (message,) = receive(self.receiver, 1)
        self.receiver.complete_message(message)
        (self._receiver_port,) = processes.connected_workers(port).keys() - before.keys()

    def kill_process_of(self, connection: int) -> None:
        """Kill the process of a connection."""
        self._processes.kill(self._processes.connected_workers(self._port)[connection])

    def send_and_receive(self) -> None:
        """Send and receive after lost connections; one killed process may have held both connections."""
        self.kill_process_of(self._sender_port)
        began_s = time.monotonic()
        self.sender.send_messages(ServiceBusMessage("after", message_id="after"))
        assert time.monotonic() - began_s < RECONNECT_TIMEOUT_S
        self._processes.wait_until_complete()
        if self._receiver_port in self._processes.connected_workers(self._port):
            self.kill_process_of(self._receiver_port)
        began_s = time.monotonic()
        messages = receive(self.receiver, 1)
        assert time.monotonic() - began_s < RECONNECT_TIMEOUT_S
        assert {message.message_id for message in messages} == {"after"}


# The SDK leaves the socket of a lost connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_aio", [False, True], ids=["sync", "aio"])
def test_the_sdk_reconnects_within_its_first_retry(tmp_path: Path, *, is_aio: bool) -> None:
    with run_cluster(tmp_path) as (server, processes):
        loop = AsyncDriver() if is_aio else None
        bus = Bus(loop or SyncDriver(), server, tls=is_aio)
        clients = Clients(bus, server, processes, AMQPS_PORT if is_aio else server.amqp_port)
        clients.send_and_receive()
        for closing in bus.close_in_background():
            closing.result(20)
        if loop is not None:
            loop.stop()
