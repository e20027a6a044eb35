"""The workloads that `bench.change` runs on two builds alternately, and their CPU time per message.

    build = Build.at(Path("../before"))
    with started(["plain"], build, folder, binary) as workloads, pinned([*workloads.values()]):
        workloads["plain"].measure("a-new-queue", 12_000)     # {"send": 8.0, "receive": 9.4, ...} in microseconds

Owns the processes of a workload, which of them are measured, and the steps of one turn. `bench.change` decides how
turns alternate, and compares the figures.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import uvloop

from bench.support.load_clients import LoadClients, MultiProcessServer
from bench.support.server import LoadClient, ProcessStats
from bench.syphon import Syphon, make_queues, park_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PLAIN: Final = "plain"
PARTITIONED: Final = "partitioned"
TWO_PROCESSES: Final = "two-processes"
SYPHON: Final = "syphon"
GROUPS: Final = ((PLAIN, PARTITIONED), (TWO_PROCESSES,), (SYPHON,))
"""Groups of workloads that alternate on one server. Each group has its own servers, so that fewer are idle."""
PROCESSES: Final = 2
MAX_STOPPED_S: Final = 4.0
"""The secondary takes the backlog queues away from a host of the syphon that is silent for 5 s."""
_WHERE: Final = "import twinbus; print(twinbus.__path__[0])"


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled checkout."""

    checkout: Path
    python: str
    """The interpreter that has this build of twinbus."""
    commit: str

    @classmethod
    def at(cls, checkout: Path, python: str | None = None) -> Self:
        """Return the build of a checkout (default interpreter: that of its .venv).

        Exits if twinbus is not compiled there, or compiled from other sources than those of the checkout.
        """
        found = python or str(checkout / ".venv" / "bin" / "python")
        if not Path(found).exists():
            sys.exit(f"{checkout} has no .venv: run `make compile` in it first")
        installed = Path(_output(found, "-c", _WHERE, cwd=checkout))
        sources = checkout / "src" / "twinbus"
        changed = [
            file
            for file in sorted(sources.rglob("*.py"))
            if not (copy := installed / file.relative_to(sources)).is_file() or copy.read_bytes() != file.read_bytes()
        ]
        if changed or installed == sources or not list(installed.rglob("*.so")):
            why = f"{changed[0]} is newer" if changed else "it runs from the sources"
            sys.exit(f"twinbus in {found} is not compiled from {checkout} ({why}): run `make compile` there first")
        return cls(checkout, found, _output("git", "rev-parse", "--short", "HEAD", cwd=checkout))


def _output(*words: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Workload(ABC):
    """One build under one kind of load."""

    @property
    @abstractmethod
    def measured(self) -> list[int]:
        """Ids of the processes whose CPU time is measured."""

    @property
    def others(self) -> list[int]:
        """Ids of other processes that this workload needs, without the load clients."""
        return []

    @abstractmethod
    def measure(self, name: str, count: int) -> dict[str, float]:
        """Run one turn. Return microseconds of CPU time per message, by step. `name` must be unique."""


# --- queues -----------------------------------------------------------------------------------------------------------


class QueueWorkload(Workload):
    """A queue with one client, on a server with one process."""

    def __init__(self, load: LoadClient, make: Callable[[str], None]) -> None:
        """Create the workload. `make` creates a queue of the measured kind."""
        self._load = load
        self._make = make

    @property
    def measured(self) -> list[int]:
        """The process of the server."""
        return [self._load.server.process.pid]

    def measure(self, name: str, count: int) -> dict[str, float]:
        """Send, receive, and receive with confirmed settlement. Each receive gets the messages of the previous send."""
        self._make(name)
        server, load = self._load.server.process, self._load
        steps: list[tuple[str, Callable[[str, int], object]]] = [
            ("send", load.send),
            ("receive", load.receive),
            ("send", load.send),
            ("receive and settle", load.receive_second),
        ]
        found: dict[str, list[float]] = {}
        for step, run in steps:
            before_s = server.foreground_cpu_s
            run(name, count)
            found.setdefault(step, []).append((server.foreground_cpu_s - before_s) / count * 1e6)
        return {step: statistics.mean(spent) for step, spent in found.items()}


class TwoProcessWorkload(Workload):
    """A partitioned queue with two clients, each connected to a different one of two processes.

    For every build and in every turn, half of the fragments of a client's messages are in the process that has its
    connection, and half in the other process. CPU time is that of the workers and their supervisor, counted once both
    clients are connected, because the number of connections that are closed before that is random.
    """

    def __init__(self, binary: Path, server: MultiProcessServer) -> None:
        """Create the workload. `binary` is the load client."""
        self._server = server
        self._clients = LoadClients(binary, server, PROCESSES, when_connected=self._note)
        self._connected_s = 0.0

    @property
    def measured(self) -> list[int]:
        """The supervisor and its workers."""
        return [process.pid for process in self._server.processes.all]

    def _note(self) -> None:
        self._connected_s = self._server.processes.foreground_cpu_s

    def measure(self, name: str, count: int) -> dict[str, float]:
        """Run the steps of a plain queue with both clients at the same time."""
        self._server.create_partitioned_queue(name)
        clients = self._clients
        steps = [
            ("send", clients.send),
            ("receive", clients.receive),
            ("send", clients.send),
            ("receive and settle", clients.receive_second),
        ]
        found: dict[str, list[float]] = {}
        for step, run in steps:
            done = run(name, count)
            spent_s = self._server.processes.foreground_cpu_s - self._connected_s
            if done.holders != PROCESSES:
                sys.exit(f"one process of the server had the connections of all clients\n{self._server.log_tail()}")
            found.setdefault(step, []).append(spent_s / done.count * 1e6)
        if left := self._server.message_count(name):
            sys.exit(f"{name} holds {left} messages after all were received\n{self._server.log_tail()}")
        return {step: statistics.mean(spent) for step, spent in found.items()}


# --- the syphon -------------------------------------------------------------------------------------------------------


class SyphonWorkload(Workload):
    """A host of the syphon, between two servers of the same build.

    The host is stopped (SIGSTOP) while messages are parked, and then continued to move them all. Every turn therefore
    moves a backlog of the same size, without the start of the host.
    """

    def __init__(
        self, syphon: Syphon, host: subprocess.Popen[bytes], primary: MultiProcessServer, secondary: MultiProcessServer
    ) -> None:
        """Create the workload with a running host."""
        self._syphon = syphon
        self._host = host
        self._primary = primary
        self._secondary = secondary

    @property
    def measured(self) -> list[int]:
        """The host of the syphon."""
        return [self._host.pid]

    @property
    def others(self) -> list[int]:
        """The processes of the servers."""
        return [self._primary.process.pid, self._secondary.process.pid]

    def measure(self, name: str, count: int) -> dict[str, float]:
        """Park `count` messages, and let the host move them."""
        del name
        wanted, process = self._syphon.arrived() + count, ProcessStats(self._host.pid)
        self._host.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        try:
            uvloop.run(park_messages(self._secondary, count))
        finally:  # a stopped host would not react to SIGTERM
            before_s, started_s = process.foreground_cpu_s, time.monotonic()
            self._host.send_signal(signal.SIGCONT)
        if (took_s := started_s - stopped_s) > MAX_STOPPED_S:
            sys.exit(
                f"parking {count:,} messages took {took_s:.1f} s, and the host lost its queues: use a lower --count"
            )
        self._syphon.wait(
            started_s, self._host, lambda: self._syphon.arrived() >= wanted and self._syphon.parked() == 0
        )
        return {"move": (process.foreground_cpu_s - before_s) / count * 1e6}


# --- starting ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(names: Sequence[str], build: Build, folder: Path, binary: Path) -> Iterator[dict[str, Workload]]:
    """Start the workloads of one group on one build. Their processes end with the block."""
    with ExitStack() as stack:

        def serve(name: str, *options: str) -> MultiProcessServer:
            server = stack.enter_context(MultiProcessServer.started(folder / name, *options, python=build.python))
            assert isinstance(server, MultiProcessServer)
            return server

        if names[0] == SYPHON:
            primary, secondary = serve("primary"), serve("secondary")
            uvloop.run(make_queues(primary, secondary))
            syphon = Syphon(primary, secondary, build.checkout, build.python)
            host = stack.enter_context(syphon.run_host())
            yield {SYPHON: SyphonWorkload(syphon, host, primary, secondary)}
        elif names[0] == TWO_PROCESSES:
            yield {TWO_PROCESSES: TwoProcessWorkload(binary, serve("server", f"--workers={PROCESSES}"))}
        else:
            server = serve("server")
            load = LoadClient(binary, server)
            kinds = {PLAIN: server.create_queue, PARTITIONED: server.create_partitioned_queue}
            yield {name: QueueWorkload(load, kinds[name]) for name in names}


@contextlib.contextmanager
def pinned(workloads: Sequence[Workload]) -> Iterator[None]:
    """Pin the measured processes to one processor and all others elsewhere, because migration costs time."""
    all_processors = os.sched_getaffinity(0)
    first, *others = sorted(all_processors)
    if others:
        for workload in workloads:
            for pid in workload.measured:
                _pin(pid, {first})
            for pid in workload.others:
                _pin(pid, set(others))
        os.sched_setaffinity(0, others)  # also for the load clients that this process starts
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_processors)


def _pin(pid: int, processors: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(task.name), processors)
