"""The workloads that `bench.change` gives to two builds by turns, and the processor time that each takes per message.

    build = Build.at(Path("../before"))
    with started(["plain"], build, folder, binary) as workloads, pinned([*workloads.values()]):
        workloads["plain"].measure("a-new-queue", 12_000)     # {"send": 8.0, "receive": 9.4, ...} in microseconds

Owns: the processes of a workload, which of them are measured, and the steps of one turn. How turns alternate and what
their figures are compared with is `bench.change`'s.
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
"""Workloads that take turns with each other on one server. Each group has servers of its own: fewer are idle then."""
PROCESSES: Final = 2
MAX_STOPPED_S: Final = 4.0
"""The secondary takes the backlog queues from a host of the syphon that is silent for 5 s."""
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
            why = f"{changed[0]} is newer" if changed else "it runs the sources"
            sys.exit(f"twinbus of {found} is not compiled from {checkout} ({why}): run `make compile` there first")
        return cls(checkout, found, _output("git", "rev-parse", "--short", "HEAD", cwd=checkout))


def _output(*words: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Workload(ABC):
    """One build under one load."""

    @property
    @abstractmethod
    def measured(self) -> list[int]:
        """The ids of the processes whose processor time counts."""

    @property
    def others(self) -> list[int]:
        """The ids of other processes that this workload needs, beside the load clients."""
        return []

    @abstractmethod
    def measure(self, name: str, count: int) -> dict[str, float]:
        """Run one turn; microseconds of processor time per message, by step. No other turn has this name."""


# --- queues -----------------------------------------------------------------------------------------------------------


class QueueWorkload(Workload):
    """One client and one process of the server."""

    def __init__(self, load: LoadClient, make: Callable[[str], None]) -> None:
        """`make` creates a queue of the kind that is measured."""
        self._load = load
        self._make = make

    @property
    def measured(self) -> list[int]:
        """The server."""
        return [self._load.server.process.pid]

    def measure(self, name: str, count: int) -> dict[str, float]:
        """Send, receive, and receive with confirmed settlement: each receive finds what the send before it left."""
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
    """Two clients, each connected to another one of two processes, on one partitioned queue.

    Half of the fragments that a client's messages go to are in the process that holds its connection, half in the
    other one, for every build and in every turn. Processor time is that of the workers and of their supervisor, from
    the moment at which both clients are connected: how many connections hung up until then is chance.
    """

    def __init__(self, binary: Path, server: MultiProcessServer) -> None:
        """`binary` is the load client."""
        self._server = server
        self._clients = LoadClients(binary, server, PROCESSES, when_connected=self._note)
        self._connected_s = 0.0

    @property
    def measured(self) -> list[int]:
        """Supervisor and workers."""
        return [process.pid for process in self._server.processes.all]

    def _note(self) -> None:
        self._connected_s = self._server.processes.foreground_cpu_s

    def measure(self, name: str, count: int) -> dict[str, float]:
        """Run the steps of a plain queue, by both clients at a time."""
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
                sys.exit(f"one process of the server held the connections of all clients\n{self._server.log_tail()}")
            found.setdefault(step, []).append(spent_s / done.count * 1e6)
        if left := self._server.message_count(name):
            sys.exit(f"{name} holds {left} messages after all were received\n{self._server.log_tail()}")
        return {step: statistics.mean(spent) for step, spent in found.items()}


# --- the syphon -------------------------------------------------------------------------------------------------------


class SyphonWorkload(Workload):
    """A host of the syphon, between two servers of its own build.

    The host is stopped (SIGSTOP) while messages are parked, and continued to move them all: so every turn moves a
    backlog of the same size, and the start of the host is in none.
    """

    def __init__(
        self, syphon: Syphon, host: subprocess.Popen[bytes], primary: MultiProcessServer, secondary: MultiProcessServer
    ) -> None:
        """The host runs."""
        self._syphon = syphon
        self._host = host
        self._primary = primary
        self._secondary = secondary

    @property
    def measured(self) -> list[int]:
        """The host."""
        return [self._host.pid]

    @property
    def others(self) -> list[int]:
        """The servers."""
        return [self._primary.process.pid, self._secondary.process.pid]

    def measure(self, name: str, count: int) -> dict[str, float]:
        """Park so many messages and have them moved."""
        del name
        wanted, process = self._syphon.arrived() + count, ProcessStats(self._host.pid)
        self._host.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        try:
            uvloop.run(park_messages(self._secondary, count))
        finally:  # a stopped host would not end when it is told to
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
    """Start the workloads of one group on one build; their processes end with the block."""
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
    """Keep what is measured on one processor and all else on the others: moving between them costs time, too."""
    all_processors = os.sched_getaffinity(0)
    first, *others = sorted(all_processors)
    if others:
        for workload in workloads:
            for pid in workload.measured:
                _pin(pid, {first})
            for pid in workload.others:
                _pin(pid, set(others))
        os.sched_setaffinity(0, others)  # of this process, and of the load clients that it starts
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_processors)


def _pin(pid: int, processors: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), processors)
