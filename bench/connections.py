"""Measures the cost of idle connections: memory of the server, and speed of a busy sender.

    python -m bench.connections [--connections 5000] [--queues 500] [--rounds 3] [--count 150000]

Each idle connection has a receiver with credit: first all on one queue, then spread over many queues. A busy sender is
measured without idle connections and with both kinds, alternately. A figure is the median of its rounds; a ratio is the
median of the rounds' ratios. A separate process holds the connections (`bench.support.idle_connections`). The server is
started with the open-file limit of a login shell, and must raise it. Writes docs/benchmarks/connections.md and
connections.json; exits with 1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    figures_table,
    thresholds_table,
    write,
)
from bench.support.server import MIB, ROOT, LoadClient, Server, build, run

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_GROWTH_MIB: Final = 1024
MIN_RATIO: Final = 0.8
NO_CONNECTIONS: Final = "without idle connections"
SETTLE_S: Final = 1.0
"""Time between the last attach and the first measurement."""
WATCH_S: Final = 65.0
"""Duration of the measurement of the idle server's CPU time, in the first round. Heartbeats are sent every 60 s."""
CLOSED_S: Final = 30.0


@dataclass
class State:
    """Results with one kind of idle connections, for each round."""

    queues: list[str]
    """Queues of the receivers; empty if there are no idle connections."""
    send: list[float] = field(default_factory=list)
    receive: list[float] = field(default_factory=list)
    growth_mib: list[float] = field(default_factory=list)
    idle_cpu: list[float] = field(default_factory=list)
    """CPU usage of the idle server, as a share of one processor."""
    opening_s: list[float] = field(default_factory=list)
    lost: int = 0

    def ratio(self, reference: State) -> float:
        """Return the speed of the busy sender relative to one without idle connections."""
        return statistics.median(ours / alone for ours, alone in zip(self.send, reference.send, strict=True))


@contextlib.contextmanager
def hold_connections(server: Server, connections: int, state: State) -> Iterator[None]:
    """Hold idle connections for the duration of the block."""
    asked: dict[str, Any] = {"port": server.amqp_port, "key_name": server.key_name, "key": server.key}
    asked |= {"connections": connections, "queues": state.queues}
    words = [sys.executable, "-m", "bench.support.idle_connections"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            holder.stdin.write(json.dumps(asked) + "\n")
            holder.stdin.flush()
            state.opening_s.append(_said(holder.stdout.readline(), server)["took_s"])
            if server.process.open_files < connections:
                sys.exit(f"the server has only {server.process.open_files} files open: not all are connected")
            yield
            holder.stdin.close()
            ended = _said(holder.stdout.readline(), server)
            state.lost += ended["lost"]
            if ended["lost"]:
                print(f"{ended['lost']} connections were lost: {ended['first_reason']}")
            holder.wait(CLOSED_S)
        finally:
            holder.kill()  # no effect if it has ended


def _said(line: str, server: Server) -> dict[str, Any]:
    if not line:
        sys.exit(f"the idle connections could not be opened; log of the server:\n{server.log_tail()}")
    said: dict[str, Any] = json.loads(line)
    return said


def watch(server: Server, load: LoadClient, count: int, base_bytes: int, state: State, watch_s: float) -> None:
    """Measure one round of one state."""
    time.sleep(SETTLE_S)
    process = server.process
    if watch_s:
        before_s = process.cpu_s
        time.sleep(watch_s)
        state.idle_cpu.append((process.cpu_s - before_s) / watch_s)
    state.growth_mib.append((process.resident_bytes - base_bytes) / MIB)
    state.send.append(load.send("busy", count).rate)
    state.receive.append(load.receive("busy", count).rate)


def measure(folder: Path, arguments: argparse.Namespace) -> tuple[dict[str, State], dict[str, str], int]:
    """Run all rounds. Return the states, further figures, and the server's open-file limit."""
    many = [f"idle-{number}" for number in range(arguments.queues)]
    states = {
        NO_CONNECTIONS: State([]),
        "on one queue": State(["idle"]),
        f"on {arguments.queues} queues": State(many),
    }
    with Server.started(folder / "server") as server:
        for name in ("busy", "idle", *many):
            server.create_queue(name)
        load = LoadClient(build(folder), server, arguments.size)
        for _ in range(2):  # warm-up, after which the memory for the busy sender is allocated
            load.send("busy", arguments.count)
            load.receive("busy", arguments.count)
        base_bytes = server.process.resident_bytes
        for number in range(arguments.rounds):
            for name, state in states.items():
                with (
                    hold_connections(server, arguments.connections, state) if state.queues else contextlib.nullcontext()
                ):
                    watch(server, load, arguments.count, base_bytes, state, arguments.watch if number == 0 else 0)
                rate, growth = state.send[-1], state.growth_mib[-1]
                print(f"round {number + 1}, {name}: {rate:,.0f} sends/s, {growth:+,.0f} MiB", flush=True)
        figures = {
            "resident memory before the idle connections": f"{base_bytes / MIB:,.0f} MiB",
            "resident memory after they were closed": f"{server.process.resident_bytes / MIB:,.0f} MiB",
            "peak resident memory": f"{server.process.peak_resident_bytes / MIB:,.0f} MiB",
            "warnings in the server's log": str(len(server.log_errors())),
        }
        return states, figures, server.process.max_open_files


def find_thresholds(states: dict[str, State], connections: int, max_open_files: int) -> list[Threshold]:
    """Return the thresholds."""
    alone = states[NO_CONNECTIONS]
    bars = [Threshold("open files that the server allows itself", max_open_files, connections)]
    for name, state in states.items():
        if state is not alone:
            growth = max(state.growth_mib)
            bars += [
                Threshold(
                    f"memory of {connections:,} idle connections {name}",
                    growth,
                    MAX_GROWTH_MIB,
                    " MiB",
                    is_ceiling=True,
                ),
                Threshold(f"speed of the busy sender, {name}", state.ratio(alone), MIN_RATIO, "x"),
                Threshold(f"connections lost, {name}", state.lost, 0, is_ceiling=True),
            ]
    return bars


def describe(states: dict[str, State]) -> dict[str, str]:
    """Return further figures, which explain the thresholds."""
    rows = {}
    for name, state in states.items():
        rates = ", ".join(f"{rate:,.0f}" for rate in state.send)
        rows[f"sends/s {name}"] = f"{statistics.median(state.send):,.0f} (rounds: {rates})"
        rows[f"receives/s {name}"] = f"{statistics.median(state.receive):,.0f}"
        rows[f"CPU usage while all are idle, {name}"] = f"{100 * max(state.idle_cpu, default=0):.1f} %"
        if state.opening_s:
            rows[f"time to open the connections, {name}"] = f"{statistics.median(state.opening_s):.1f} s"
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--connections", type=int, default=5000)
    cli.add_argument("--queues", type=int, default=500)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--count", type=int, default=150_000)
    cli.add_argument("--size", type=int, default=1024)
    cli.add_argument("--watch", type=float, default=WATCH_S, help="seconds of idle time to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder:
        states, figures, max_open_files = measure(Path(folder), asked)
    bars, figures = find_thresholds(states, asked.connections, max_open_files), describe(states) | figures
    where = environment_facts("uvloop", "rocksdict")
    page = (
        "# Benchmark: idle connections\n\n"
        f"Generated by `python -m bench.connections`. The server has {asked.connections:,} idle connections, each\n"
        f"with a receiver. A busy sender of {asked.size}-byte messages is measured with and without them,\n"
        f"alternately. The receivers are on one queue, or spread over {asked.queues} queues.\n\n"
        f"{thresholds_table(bars)}\n\n{figures_table(figures)}\n\n{environment_lines(where)}\n"
    )
    measured = {
        "connections": asked.connections,
        "bars": bars,
        "states": {name: vars(state) | {"queues": len(state.queues)} for name, state in states.items()},
        "figures": figures,
        "surroundings": where,
    }
    write(asked.results, "connections", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
