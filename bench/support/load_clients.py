"""Several load clients side by side, their connections held by different processes of the server.

    clients = Clients(build(folder), server, 2)
    sent = clients.send("orders", 100_000)      # by all of them together
    taken = clients.receive("orders", 100_000)

Which process accepts a connection is the kernel's choice. So a client connects and waits; if its connection is held by
a process that has another client's while one has none, it hangs up, and another one tries. All start when all wait.

Owns: the runs of the load client that belong together, and the server's end of them. A queue that several clients
receive from has messages of all: the load client cannot tell a loss then, and the queue's count is looked at instead.
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
"""Connections that may hang up because they are held where another is already."""
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
    """A server of one or several processes."""

    @property
    def processes(self) -> ServerProcesses:
        """All of them."""
        return ServerProcesses(self.process.pid)

    def create_partitioned_queue(self, name: str, max_size_mb: int = 1024) -> None:
        """A partitioned queue that was not there before."""
        self._request("PUT", name, _DIVIDED.format(max_size_mb), expected=201)

    def kill(self) -> None:
        """SIGKILL, all of them: workers outlive their supervisor."""
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # so that it starts no other meanwhile
        workers = children_of(pid)
        super().kill()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class CombinedRun:
    """One run of several clients."""

    count: int
    """Messages of all."""
    rate: float
    """Messages a second of all, from the first credit or delivery of any to the last answer of any."""
    holders: int
    """So many processes held their connections."""
    hung_up: int
    """So many connections were given up for that."""


class LoadClients:
    """So many at a time, pointed at a server."""

    def __init__(
        self,
        binary: Path,
        server: MultiProcessServer,
        clients: int,
        size: int = 1024,
        *,
        when_connected: Callable[[], None] | None = None,
    ) -> None:
        """`binary` is the load client; `when_connected` is called when all clients of a run wait for their start."""
        self.server = server
        self._when_connected = when_connected
        self._binary = binary
        self._clients = clients
        self._size = size

    def send(self, queue: str, count: int, keys: Sequence[str] = ()) -> CombinedRun:
        """Send so many messages, by equal shares; all were accepted. With keys: one of these, by turns."""
        return self._run("send", queue, count // self._clients, {"KEY_LIST": ",".join(keys)} if keys else {})

    def receive(self, queue: str, count: int) -> CombinedRun:
        """Receive and accept so many, by equal shares."""
        return self._run("recv", queue, count // self._clients, {})

    def receive_second(self, queue: str, count: int) -> CombinedRun:
        """Receive so many as the Azure SDKs do: done when the server has confirmed each settlement."""
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
                client.kill()  # of no effect on one that has ended
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
        """Start all clients, up to where they wait: how many processes hold them, how many hung up."""
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
                client.communicate()  # its input ends, and with it the client
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
        sys.exit(f"no process of the server holds the client's connection\n{self.server.log_tail()}")
