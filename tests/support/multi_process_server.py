"""A server with several worker processes, for tests that address single workers.

    with run_multi_process_server(folder, workers=3) as server:
        assert set(server.workers()) == {0, 1, 2}
        server.request_each("GET", "orders", expected=200)

Owns: the pids of the workers, and the mapping of connections to workers. At the end all processes are gone.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import sqlite3
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.server_process import STOP_TIMEOUT_S, TIMEOUT_S, ServerProcess, wait_until
from twinbus.client import NO_RETRY, MessagingFactory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_CONNECTION_ATTEMPTS = 500
"""Connections to try until each worker has accepted one."""


class MultiProcessServer(ServerProcess):
    """A namespace served by several processes."""

    def __init__(
        self, folder: Path, *options: str, name: str = "contoso", environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, options=options, name=name, environment=environment)
        self._known_pids: set[int] = set()

    @property
    def pid(self) -> int:
        """Pid of the supervisor."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def workers(self) -> dict[int, int]:
        """Return the pids of the running workers, by worker number."""
        pids = {}
        for pid in _children(self.pid):
            with contextlib.suppress(OSError, ValueError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                pids[int(arguments[arguments.index(b"twinbus.server.cluster.worker") + 1])] = pid
        self._known_pids.update(pids.values())
        return pids

    def start(self) -> None:
        super().start()
        self.workers()

    def kill(self) -> None:
        """Kill the supervisor and all workers, in whatever state they are."""
        if self.is_running:
            self.workers()
        super().kill()
        for pid in self._known_pids:
            if is_worker(pid):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(is_worker(pid) for pid in self._known_pids))

    def pause(self) -> None:
        """Send SIGSTOP to all processes."""
        super().pause()
        for pid in self.workers().values():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT to all processes."""
        for pid in self.workers().values():
            os.kill(pid, signal.SIGCONT)
        super().resume()

    @property
    def stores(self) -> dict[int, Path]:
        """Folders of the stores, by store number."""
        return {int(folder.name): folder for folder in (self._data / "stores").iterdir()}

    def entities_pending_cleanup(self) -> int:
        """Return the number of deleted entities whose records are not yet removed from all stores."""
        with contextlib.closing(sqlite3.connect(f"file:{self._data / 'catalogue.db'}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(*) FROM doomed").fetchone()[0])

    def forget_supervisor(self) -> None:
        """Reap the supervisor after the test has killed it."""
        assert self._process is not None
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    # --- one worker --------------------------------------------------------------------------------------------------

    def signal_worker(self, number: int, signal_number: signal.Signals) -> int:
        """Send a signal to a worker, and return its pid."""
        pid = self.workers()[number]
        os.kill(pid, signal_number)
        return pid

    def wait_for_replacement(self, number: int, pid: int, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until a new process has taken over a worker number, and serves."""
        wait_until(lambda: self.workers().get(number, pid) != pid, timeout_s=timeout_s)
        new_pid = self.workers()[number]
        wait_until(lambda: f"worker {number} is serving pid={new_pid}" in self.log, timeout_s=timeout_s)

    def wait_until_healthy(self) -> None:
        """Wait until every worker reports that all stores are available."""
        with self.connect_to_each() as connections:
            for connection in connections.values():
                wait_until(partial(self._is_healthy, connection))

    def _is_healthy(self, connection: http.client.HTTPConnection) -> bool:
        return '"status":"ok"' in self.request_on(connection, "GET", "health", expected=200)

    @contextmanager
    def connect_to_each(self, port: int | None = None) -> Iterator[dict[int, http.client.HTTPConnection]]:
        """Open one connection to each running worker."""
        workers, connections = self.workers(), {}
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_CONNECTION_ATTEMPTS):
                connection = http.client.HTTPConnection(self.host, port or self.http_port, timeout=TIMEOUT_S)
                stack.callback(connection.close)
                connection.connect()
                connection.request("GET", "/health")
                connection.getresponse().read()
                number = self.worker_of_connection(connection)
                if number not in connections:
                    connections[number] = connection
                else:
                    connection.close()
                if connections.keys() == workers.keys():
                    break
            else:
                raise AssertionError(
                    f"of {MAX_CONNECTION_ATTEMPTS} connections none came to {workers.keys() - connections.keys()}"
                )
            yield connections

    def worker_of_connection(self, connection: http.client.HTTPConnection) -> int:
        """Return the number of the worker at the other end of a connection."""
        inode = _inode_of_other_end(connection.sock.getsockname(), connection.sock.getpeername())
        for number, pid in self.workers().items():
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        return number
        raise AssertionError(f"no worker has the socket {inode}")

    def request_each(self, method: str, path: str, body: str | None = None, *, expected: int) -> dict[int, str]:
        """Send the same request to each worker, and return the responses by worker number."""
        with self.connect_to_each() as connections:
            return {
                number: self.request_on(connection, method, path, body, expected=expected)
                for number, connection in connections.items()
            }

    def send(self, entity: str, text: str, connection: http.client.HTTPConnection | None = None) -> None:
        """Send a message over HTTP."""
        self.request_any(connection, "POST", f"{entity}/messages", text, expected=201)

    def receive_and_delete(self, entity: str, connection: http.client.HTTPConnection | None = None) -> str:
        """Receive and delete a message over HTTP."""
        return self.request_any(connection, "DELETE", f"{entity}/messages/head?timeout=10", expected=200)

    def request_any(
        self,
        connection: http.client.HTTPConnection | None,
        method: str,
        path: str,
        body: str | None = None,
        *,
        expected: int,
    ) -> str:
        """Send a request on a given connection, or on a new one to any worker."""
        if connection is not None:
            return self.request_on(connection, method, path, body, expected=expected)
        new_connection = http.client.HTTPConnection(self.host, self.http_port, timeout=TIMEOUT_S)
        with contextlib.closing(new_connection):
            return self.request_on(new_connection, method, path, body, expected=expected)

    def request_on(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: str | None = None,
        *,
        expected: int,
        headers: dict[str, str] | None = None,
    ) -> str:
        """Send a request on an open connection, check the status, and return the body."""
        all_headers = {"Authorization": self.token(""), "Content-Type": "application/atom+xml"} | (headers or {})
        target = path if "?" in path else f"{path}?api-version=2021-05"
        connection.request(method, f"/{target}", body, all_headers)
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == expected, f"{method} {path}: {response.status} {text}"
        return text


@contextmanager
def run_multi_process_server(folder: Path, *options: str, workers: int = 2) -> Iterator[MultiProcessServer]:
    """Start a server, and stop it cleanly at the end."""
    server = MultiProcessServer(folder, f"--workers={workers}", *options)
    try:
        server.start()
        yield server
        if server.is_running:
            pids = server.workers().values()
            server.stop()
            assert not any(is_worker(pid) for pid in pids)
        server.check_log()
    finally:
        server.kill()


def connect_client(server: MultiProcessServer) -> MessagingFactory:
    """Return a client without retries; its single connection is accepted by one of the workers."""
    return MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY)


def stores_of(server: MultiProcessServer) -> dict[int, set[int]]:
    """Return the numbers of the stores whose files each worker has open, by worker number."""
    stores: dict[int, set[int]] = {}
    for number, pid in server.workers().items():
        files = [
            str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir() if descriptor.is_symlink()
        ]
        stores[number] = {int(Path(name).parent.name) for name in files if Path(name).parent.parent.name == "stores"}
    return stores


def connected_workers(server: MultiProcessServer) -> set[int]:
    """Return the workers that have accepted AMQP connections."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[1].endswith(f":{server.amqp_port:04X}") and row[3] == "01"}
    connected = set()
    for number, pid in server.workers().items():
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # the descriptor was closed meanwhile
                if str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                    connected.add(number)
    return connected


def connected_worker(server: MultiProcessServer) -> int:
    """Return the worker that has accepted the only AMQP connection."""
    wait_until(lambda: len(connected_workers(server)) == 1)
    return next(iter(connected_workers(server)))


def is_worker(pid: int) -> bool:
    """Whether a process exists and is a worker."""
    try:
        return b"twinbus.server.cluster.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += map(int, thread.read_text().split())
    return pids


def _inode_of_other_end(near: tuple[str, int], far: tuple[str, int]) -> str:
    ends = f"{_proc_net_address(far)} {_proc_net_address(near)}"
    for line in Path("/proc/net/tcp").read_text().splitlines():
        if ends in line:
            return re.split(r"\s+", line.strip())[9]
    raise AssertionError(f"no connection from {near} to {far}")


def _proc_net_address(address: tuple[str, int]) -> str:
    octets = bytes(map(int, address[0].split(".")))
    return f"{octets[::-1].hex().upper()}:{address[1]:04X}"
