"""Several load clients at the same time, with connections to different processes of the server.

    clients = LoadClients(build(folder), server, 2)
    sent = clients.send("orders", 100_000)      # by all of them together
    received = clients.receive("orders", 100_000)

The kernel chooses the process that accepts a connection. So a client connects and waits. If the process that accepted
its connection has that of another client, while another process has none, the client disconnects and a new one tries
again. All clients start when all are connected.

Owns simultaneous runs of the load client, and the server's end of their connections. If several clients receive from a
queue, each gets messages of all senders. The load client cannot detect lost messages then; the benchmark checks the
queue's message count instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.support.server import RUN_TIMEOUT_S, Server
from bench.support.server_processes import ServerProcesses, children_of, connected_worker, ports_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MAX_CONNECTION_ATTEMPTS: Final = 200
"""Maximum number of connections that are closed because their process already has a client."""
HOLD_TIMEOUT_S: Final = 10.0
POLL_INTERVAL_S: Final = 0.002
_ENDED: Final = re.compile(r"(\d+) messages .* from ([\d.]+) to ([\d.]+)")
_DIVIDED: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<MaxSizeInMegabytes>{}</MaxSizeInMegabytes><EnablePartitioning>true</EnablePartitioning>"
    "</QueueDescription></content></entry>"
)


class MultiProcessServer(Server):
    """A server with one or several processes."""

    @property
    def processes(self) -> ServerProcesses:
        """All processes of the server."""
        return ServerProcesses(self.process.pid)

    def create_partitioned_queue(self, name: str, max_size_mb: int = 1024) -> None:
        """Create a partitioned queue that does not exist yet."""
        self._request("PUT", name, _DIVIDED.format(max_size_mb), expected=201)

    def kill(self) -> None:
        """Send SIGKILL to all processes, because workers outlive their supervisor."""
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # so that it does not restart workers meanwhile
        workers = children_of(pid)
        super().kill()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class CombinedRun:
    """The result of a run of several clients."""

    count: int
    """Number of messages of all clients."""
    rate: float
    """Messages per second of all clients, from the first credit or delivery to the last response of any client."""
    holders: int
    """Number of server processes that had the connections."""
    hung_up: int
    """Number of connections that were closed to distribute the clients."""


class LoadClients:
    """Several load clients for one server."""

    def __init__(
        self,
        binary: Path,
        server: MultiProcessServer,
        clients: int,
        size: int = 1024,
        *,
        when_connected: Callable[[], None] | None = None,
    ) -> None:
        """Create the clients. `binary` is the load client; `when_connected` is called when all are connected."""
        self.server = server
        self._when_connected = when_connected
        self._binary = binary
        self._clients = clients
        self._size = size

    def send(self, queue: str, count: int, keys: Sequence[str] = ()) -> CombinedRun:
        """Send `count` messages in equal shares, all accepted; with `keys`, each message gets the next key."""
        return self._run("send", queue, count // self._clients, {"KEY_LIST": ",".join(keys)} if keys else {})

    def receive(self, queue: str, count: int) -> CombinedRun:
        """Receive and accept `count` messages in equal shares."""
        return self._run("recv", queue, count // self._clients, {})

    def receive_second(self, queue: str, count: int) -> CombinedRun:
        """Receive `count` messages like the Azure SDKs, which wait until the server confirms each settlement."""
        return self._run("recv", queue, count // self._clients, {"SECOND": "1"})

    def _run(self, mode: str, queue: str, share: int, environment: dict[str, str]) -> CombinedRun:
        server = self.server
        words = [str(self._binary), mode, "127.0.0.1", str(server.amqp_port), queue, str(share), str(self._size)]
        words += [server.key_name, server.key]
        running: list[subprocess.Popen[str]] = []
        try:
            holders, hung_up = self._connect(words, environment, running)
            if self._when_connected is not None:
                self._when_connected()
            for client in running:
                assert client.stdin is not None
                client.stdin.write("go on\n")
                client.stdin.flush()
            said = [client.communicate(timeout=RUN_TIMEOUT_S)[0] for client in running]
        finally:
            for client in running:
                client.kill()  # no effect if it has ended
                client.wait()
        found = [_ENDED.search(text) for text in said]
        spans = [(float(one[2]), float(one[3])) for one in found if one is not None]
        if len(spans) != self._clients or any(client.returncode for client in running):
            sys.exit(f"{mode} {queue}: {said}\n{server.log_tail()}")
        took_s = max(end for _, end in spans) - min(start for start, _ in spans)
        return CombinedRun(share * self._clients, share * self._clients / took_s, holders, hung_up)

    def _connect(
        self, words: list[str], environment: dict[str, str], running: list[subprocess.Popen[str]]
    ) -> tuple[int, int]:
        """Connect all clients. Return the number of server processes with a client, and of closed connections."""
        workers = self.server.processes.workers
        wanted, used, hung_up = min(len(workers), self._clients), set[int](), 0
        while len(running) < self._clients:
            client = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment, "WAITS": "1"},
            )
            running.append(client)
            assert client.stdout is not None
            if client.stdout.readline() != "open\n":
                sys.exit(f"the load client cannot connect\n{self.server.log_tail()}")
            holder = self._connected_worker(client.pid, workers)
            if holder in used and len(used) < wanted and hung_up < MAX_CONNECTION_ATTEMPTS:
                hung_up += 1
                running.remove(client)
                client.communicate()  # closes its input, which ends the client
            else:
                used.add(holder)
        return len(used), hung_up

    def _connected_worker(self, client: int, workers: list[int]) -> int:
        deadline = time.monotonic() + HOLD_TIMEOUT_S
        while time.monotonic() < deadline:
            for port in ports_of(client, self.server.amqp_port):
                if (holder := connected_worker(port, self.server.amqp_port, workers)) is not None:
                    return holder
            time.sleep(POLL_INTERVAL_S)
        sys.exit(f"no process of the server has the client's connection\n{self.server.log_tail()}")
