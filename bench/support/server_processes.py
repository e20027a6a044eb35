"""The processes of a server, and which of them has a client's connection or a store.

    processes = ServerProcesses(server.process.pid)                     # the supervisor, or the only process
    processes.cpu_s, processes.resident_bytes                           # of all processes together
    connected_worker(client_port, server_port, processes.workers)       # the process that accepted the connection

Owns reading of processes, sockets and open files from /proc. Knows nothing of their purpose.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.support.server import BackgroundUsage, ProcessStats

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC: Final = Path("/proc")
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED: Final = "01"
_STORE: Final = re.compile(r"/stores/(\d+)/LOCK$")
"""File that RocksDB keeps open while the store is open."""


@dataclass(frozen=True, slots=True)
class ServerProcesses:
    """The processes of a server: the one that was started, and its children."""

    pid: int

    @property
    def workers(self) -> list[int]:
        """Processes that serve clients: the children, or the process itself if there are none."""
        return children_of(self.pid) or [self.pid]

    @property
    def all(self) -> list[ProcessStats]:
        """The supervisor and its workers."""
        return [ProcessStats(pid) for pid in sorted({self.pid, *self.workers})]

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads of all processes, without children that have ended."""
        return sum(process.cpu_s for process in self.all)

    @property
    def foreground_cpu_s(self) -> float:
        """CPU time of all threads of all processes, without RocksDB's flushes and compactions."""
        return sum(process.foreground_cpu_s for process in self.all)

    @property
    def resident_bytes(self) -> int:
        """Resident memory of all processes; shared memory is counted for each of them."""
        return sum(process.resident_bytes for process in self.all)

    @property
    def background(self) -> BackgroundUsage:
        """Work of RocksDB's background threads in all processes."""
        found = [process.background for process in self.all]
        return BackgroundUsage(sum(one.cpu_s for one in found), sum(one.bytes for one in found))

    def worker_of_store(self, store: int) -> int | None:
        """Return the process that has a store open, or None."""
        return next((pid for pid in self.workers if store in stores_of(pid)), None)


def children_of(pid: int) -> list[int]:
    """Return the running children of a process, sorted by id."""
    found = []
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)


def is_alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stores_of(pid: int) -> set[int]:
    """Return the numbers of the stores that a process has open."""
    names = [_STORE.search(target) for target in _open_files(pid)]
    return {int(found[1]) for found in names if found is not None}


def connected_worker(client_port: int, server_port: int, among: list[int]) -> int | None:
    """Return the process that has the server's end of a connection, or None if it is not accepted yet."""
    inode = next((inode for near, far, inode in _connections() if (near, far) == (server_port, client_port)), 0)
    return next((pid for pid in among if inode and inode in _sockets(pid)), None)


def connected_workers(server_port: int, among: list[int]) -> dict[int, int]:
    """Return the process of each connection to a port, by the client's port."""
    owners = {inode: pid for pid in among for inode in _sockets(pid)}
    return {far: owners[inode] for near, far, inode in _connections() if near == server_port and inode in owners}


def ports_of(pid: int, server_port: int) -> list[int]:
    """Return the local ports of a client's connections to a server port."""
    own = _sockets(pid)
    return [near for near, far, inode in _connections() if far == server_port and inode in own]


def _connections() -> Iterator[tuple[int, int, int]]:
    """Yield both ports and the inode of every IPv4 connection."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _ESTABLISHED:
            yield int(fields[1].partition(":")[2], 16), int(fields[2].partition(":")[2], 16), int(fields[9])


def _sockets(pid: int) -> set[int]:
    found = [_SOCKET.fullmatch(target) for target in _open_files(pid)]
    return {int(one[1]) for one in found if one is not None}


def _open_files(pid: int) -> Iterator[str]:
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except OSError:  # the process has ended
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # the file was closed meanwhile
            yield str(descriptor.readlink())
