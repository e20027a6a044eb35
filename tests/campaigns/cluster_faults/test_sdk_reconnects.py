"""The official SDK, whose connection's process is killed, is back within its first retry."""

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
"""With the SDK's own pause before it."""
RECONNECT_TIMEOUT_S = 5.0
"""That pause, half a second in which the SDK opens a connection, and a machine that has other things to do."""


@pytest.fixture(autouse=True)
def sockets_of_the_sdk() -> Iterator[None]:
    """The SDK, without asyncio, does not close the socket of a connection that it lost: here, not in another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Processes:
    """Those of a server."""

    def __init__(self, supervisor: int) -> None:
        self._supervisor = supervisor

    @property
    def workers(self) -> list[int]:
        return ServerProcesses(self._supervisor).workers

    def connected_workers(self, port: int) -> dict[int, int]:
        """Who holds which of this program's connections to a port of the server, by the port on this side."""
        workers = self.workers
        found = {own: connected_worker(own, port, workers) for own in ports_of(os.getpid(), port)}
        return {own: holder for own, holder in found.items() if holder is not None}

    def kill(self, worker: int) -> None:
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not is_alive(worker))

    def wait_until_complete(self) -> None:
        wait_until(lambda: len(self.workers) == WORKERS)


@contextmanager
def run_cluster(folder: Path) -> Iterator[tuple[ServerProcess, Processes]]:
    """A server of several processes, of which nothing is left at the end."""
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
    """A sender and a receiver of one client, each with a connection of its own."""

    def __init__(self, bus: Bus, server: ServerProcess, processes: Processes, port: int) -> None:
        self.queue = server.create_queue(EnablePartitioning="true", LockDuration="PT5S")
        self._processes, self._port = processes, port
        client = bus.client(**RETRIES)
        before = processes.connected_workers(port)
        self.sender: ServiceBusSender = bus.sender(self.queue, client=client)
        self.sender.send_messages(ServiceBusMessage("before", message_id="before"))
        (self._sends,) = processes.connected_workers(port).keys() - before.keys()
        before = processes.connected_workers(port)
        self.receiver: ServiceBusReceiver = bus.receiver(self.queue, client=client)
        (message,) = receive(self.receiver, 1)
        self.receiver.complete_message(message)
        (self._receives,) = processes.connected_workers(port).keys() - before.keys()

    def lose(self, connection: int) -> None:
        """Its process is killed."""
        self._processes.kill(self._processes.connected_workers(self._port)[connection])

    def send_and_receive(self) -> None:
        """Both calls are tried once more at most; what one loses, the other may have lost as well."""
        self.lose(self._sends)
        began_s = time.monotonic()
        self.sender.send_messages(ServiceBusMessage("after", message_id="after"))
        assert time.monotonic() - began_s < RECONNECT_TIMEOUT_S
        self._processes.wait_until_complete()
        if self._receives in self._processes.connected_workers(self._port):
            self.lose(self._receives)
        began_s = time.monotonic()
        found = receive(self.receiver, 1)
        assert time.monotonic() - began_s < RECONNECT_TIMEOUT_S
        assert {message.message_id for message in found} == {"after"}


# The SDK leaves the socket of a lost connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_aio", [False, True], ids=["sync", "aio"])
def test_the_sdk_is_back_within_its_first_retry(tmp_path: Path, *, is_aio: bool) -> None:
    with run_cluster(tmp_path) as (server, processes):
        loop = AsyncDriver() if is_aio else None
        bus = Bus(loop or SyncDriver(), server, tls=is_aio)
        clients = Clients(bus, server, processes, AMQPS_PORT if is_aio else server.amqp_port)
        clients.send_and_receive()
        for closing in bus.close_in_background():
            closing.result(20)
        if loop is not None:
            loop.stop()
