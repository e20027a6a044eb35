"""The processes of one server, and which of them holds a client's connection or a store.

    family = Family(server.process.pid)         # the supervisor, or the only process
    family.cpu_s, family.resident_bytes         # of all of them together
    holder_of(client_port, server_port)         # who has accepted that connection

Owns: what the kernel tells of processes, sockets and open files (/proc). Knows nothing of what they are for.
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
"""RocksDB has this file open for as long as it has the store."""


@dataclass(frozen=True, slots=True)
class ServerProcesses:
    """A server: the process that was started, and its children."""

    pid: int

    @property
    def workers(self) -> list[int]:
        """Those that serve: the children; where there are none, the process itself."""
        return children_of(self.pid) or [self.pid]

    @property
    def all(self) -> list[ProcessStats]:
        """Supervisor and workers."""
        return [ProcessStats(pid) for pid in sorted({self.pid, *self.workers})]

    @property
    def cpu_s(self) -> float:
        """Processor time of all threads of all of them. What a child had that has ended is not in it."""
        return sum(process.cpu_s for process in self.all)

    @property
    def foreground_cpu_s(self) -> float:
        """Processor time of all threads of all processes, without RocksDB's flushes and compactions."""
        return sum(process.foreground_cpu_s for process in self.all)

    @property
    def resident_bytes(self) -> int:
        """Memory of all of them; what two share is counted twice."""
        return sum(process.resident_bytes for process in self.all)

    @property
    def background(self) -> BackgroundUsage:
        """What the threads of RocksDB have done, in all of them."""
        found = [process.background for process in self.all]
        return BackgroundUsage(sum(one.cpu_s for one in found), sum(one.bytes for one in found))

    def worker_of_store(self, store: int) -> int | None:
        """Who has that store open; None while nobody has."""
        return next((pid for pid in self.workers if store in stores_of(pid)), None)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended, in the order of their ids."""
    found = []
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)


def is_alive(pid: int) -> bool:
    """It has not ended, whether or not anybody has taken notice of its end."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stores_of(pid: int) -> set[int]:
    """The numbers of the stores that a process has open."""
    names = [_STORE.search(target) for target in _open_files(pid)]
    return {int(found[1]) for found in names if found is not None}


def connected_worker(client_port: int, server_port: int, among: list[int]) -> int | None:
    """Which of these processes has the server's end of a connection; None while nobody has accepted it."""
    inode = next((inode for near, far, inode in _connections() if (near, far) == (server_port, client_port)), 0)
    return next((pid for pid in among if inode and inode in _sockets(pid)), None)


def connected_workers(server_port: int, among: list[int]) -> dict[int, int]:
    """Who holds which connection to a port, by the client's port: many at once."""
    owners = {inode: pid for pid in among for inode in _sockets(pid)}
    return {far: owners[inode] for near, far, inode in _connections() if near == server_port and inode in owners}


def ports_of(pid: int, server_port: int) -> list[int]:
    """The ports on a client's side of its connections to a server's."""
    own = _sockets(pid)
    return [near for near, far, inode in _connections() if far == server_port and inode in own]


def _connections() -> Iterator[tuple[int, int, int]]:
    """Both ports and the inode of every connection over IPv4."""
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
        with contextlib.suppress(OSError):  # closed meanwhile
            yield str(descriptor.readlink())
