"""A server of several processes, for tests that look at each of them.

    with crew(folder, workers=3) as server:
        assert set(server.workers()) == {0, 1, 2}
        server.ask_each("GET", "orders", expected=200)

Owns: which process is which worker, and which of them a connection is to. At the end no process of it is left.
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
"""Connections, until each worker has accepted one."""


class MultiProcessServer(ServerProcess):
    """One namespace, in several processes."""

    def __init__(
        self, folder: Path, *options: str, name: str = "contoso", environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, options=options, name=name, environment=environment)
        self._known_pids: set[int] = set()

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def workers(self) -> dict[int, int]:
        """The processes that there are now: pids, by the workers' numbers."""
        found = {}
        for pid in _children(self.pid):
            with contextlib.suppress(OSError, ValueError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found[int(arguments[arguments.index(b"twinbus.server.cluster.worker") + 1])] = pid
        self._known_pids.update(found.values())
        return found

    def start(self) -> None:
        super().start()
        self.workers()

    def kill(self) -> None:
        """However they are: nothing of them is left."""
        if self.is_running:
            self.workers()
        super().kill()
        for pid in self._known_pids:
            if is_worker(pid):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(is_worker(pid) for pid in self._known_pids))

    def pause(self) -> None:
        """SIGSTOP to all of them."""
        super().pause()
        for pid in self.workers().values():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to all of them."""
        for pid in self.workers().values():
            os.kill(pid, signal.SIGCONT)
        super().resume()

    @property
    def stores(self) -> dict[int, Path]:
        """The folders of the stores, by their numbers."""
        return {int(folder.name): folder for folder in (self._data / "stores").iterdir()}

    def entities_pending_cleanup(self) -> int:
        """Entities that were deleted, and are not yet removed from all their stores."""
        with contextlib.closing(sqlite3.connect(f"file:{self._data / 'catalogue.db'}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(*) FROM doomed").fetchone()[0])

    def forget_supervisor(self) -> None:
        """The supervisor was killed by the test itself."""
        assert self._process is not None
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    # --- one worker ---------------------------------------------------------------------------------------------------

    def signal_worker(self, number: int, signal_number: signal.Signals) -> int:
        """Send a signal to one of them; its pid."""
        pid = self.workers()[number]
        os.kill(pid, signal_number)
        return pid

    def wait_for_replacement(self, number: int, pid: int, *, timeout_s: float = TIMEOUT_S) -> None:
        """Until another process is that worker, and serves."""
        wait_until(lambda: self.workers().get(number, pid) != pid, timeout_s=timeout_s)
        new = self.workers()[number]
        wait_until(lambda: f"worker {number} serves pid={new}" in self.log, timeout_s=timeout_s)

    def wait_until_healthy(self) -> None:
        """Until every worker finds all stores at work."""
        with self.connect_to_each() as connections:
            for connection in connections.values():
                wait_until(partial(self._is_healthy, connection))

    def _is_healthy(self, connection: http.client.HTTPConnection) -> bool:
        return '"status":"ok"' in self.request_on(connection, "GET", "health", expected=200)

    @contextmanager
    def connect_to_each(self, port: int | None = None) -> Iterator[dict[int, http.client.HTTPConnection]]:
        """A connection to each worker that accepts any."""
        wanted, found = self.workers(), {}
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_CONNECTION_ATTEMPTS):
                connection = http.client.HTTPConnection(self.host, port or self.http_port, timeout=TIMEOUT_S)
                stack.callback(connection.close)
                connection.connect()
                connection.request("GET", "/health")
                connection.getresponse().read()
                number = self.worker_of_connection(connection)
                if number not in found:
                    found[number] = connection
                else:
                    connection.close()
                if found.keys() == wanted.keys():
                    break
            else:
                raise AssertionError(
                    f"of {MAX_CONNECTION_ATTEMPTS} connections none came to {wanted.keys() - found.keys()}"
                )
            yield found

    def worker_of_connection(self, connection: http.client.HTTPConnection) -> int:
        """The worker at the other end."""
        inode = _inode_of_other_end(connection.sock.getsockname(), connection.sock.getpeername())
        for number, pid in self.workers().items():
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        return number
        raise AssertionError(f"no worker has the socket {inode}")

    def request_each(self, method: str, path: str, body: str | None = None, *, expected: int) -> dict[int, str]:
        """The same request to each worker; the answers."""
        with self.connect_to_each() as connections:
            return {
                number: self.request_on(connection, method, path, body, expected=expected)
                for number, connection in connections.items()
            }

    def send(self, entity: str, text: str, connection: http.client.HTTPConnection | None = None) -> None:
        """Send a message, over HTTP."""
        self.request_any(connection, "POST", f"{entity}/messages", text, expected=201)

    def receive_and_delete(self, entity: str, connection: http.client.HTTPConnection | None = None) -> str:
        """Receive a message, and delete it."""
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
        """A request to any worker, or to that at the other end of a connection."""
        if connection is not None:
            return self.request_on(connection, method, path, body, expected=expected)
        own = http.client.HTTPConnection(self.host, self.http_port, timeout=TIMEOUT_S)
        with contextlib.closing(own):
            return self.request_on(own, method, path, body, expected=expected)

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
        """A request on a connection that is there."""
        shown = {"Authorization": self.token(""), "Content-Type": "application/atom+xml"} | (headers or {})
        target = path if "?" in path else f"{path}?api-version=2021-05"
        connection.request(method, f"/{target}", body, shown)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == expected, f"{method} {path}: {answer.status} {text}"
        return text


@contextmanager
def run_multi_process_server(folder: Path, *options: str, workers: int = 2) -> Iterator[MultiProcessServer]:
    """From its start to its clean stop."""
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
    """A client with one connection, which one of the workers accepts. It tries nothing twice."""
    return MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY)


def stores_of(server: MultiProcessServer) -> dict[int, set[int]]:
    """Which stores' files each worker has open, by the workers' numbers."""
    found: dict[int, set[int]] = {}
    for number, pid in server.workers().items():
        files = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
        found[number] = {int(Path(name).parent.name) for name in files if Path(name).parent.parent.name == "stores"}
    return found


def connected_workers(server: MultiProcessServer) -> set[int]:
    """The workers that have accepted AMQP connections."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[1].endswith(f":{server.amqp_port:04X}") and row[3] == "01"}
    found = set()
    for number, pid in server.workers().items():
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if str(one.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                    found.add(number)
    return found


def connected_worker(server: MultiProcessServer) -> int:
    """The worker that has accepted the only AMQP connection."""
    wait_until(lambda: len(connected_workers(server)) == 1)
    return next(iter(connected_workers(server)))


def is_worker(pid: int) -> bool:
    """There is such a process, and it is a worker."""
    try:
        return b"twinbus.server.cluster.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, thread.read_text().split())
    return found


def _inode_of_other_end(near: tuple[str, int], far: tuple[str, int]) -> str:
    ends = f"{_proc_net_address(far)} {_proc_net_address(near)}"
    for line in Path("/proc/net/tcp").read_text().splitlines():
        if ends in line:
            return re.split(r"\s+", line.strip())[9]
    raise AssertionError(f"no connection from {near} to {far}")


def _proc_net_address(address: tuple[str, int]) -> str:
    octets = bytes(map(int, address[0].split(".")))
    return f"{octets[::-1].hex().upper()}:{address[1]:04X}"
