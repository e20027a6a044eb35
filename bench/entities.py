"""Measures the start time and the idle memory of a namespace with the maximum number of entities.

    python -m bench.entities [--partitioned 100] [--entities 10000] [--workers 1 ...] [--folder DIR]

Creates a hundred partitioned queues of sixteen fragments, and the maximum number of plain queues, through the HTTP API.
One more of each must be refused with QuotaExceeded. Then the server is restarted, once for each number of processes,
and measured after it has been idle for a while. Writes docs/benchmarks/entities.md and entities.json; exits with 1 if a
threshold is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

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
from bench.support.server import MIB, Server, run
from bench.support.server_processes import ServerProcesses
from twinbus.client.management import NamespaceManager, QueueDescription
from twinbus.model.errors import QuotaExceeded

MAX_START_S: Final = 15.0
MAX_RESIDENT_MIB: Final = 1024
CONCURRENT_REQUESTS: Final = 8
"""Number of concurrent requests."""
IDLE_S: Final = 5.0
WATCH_S: Final = 10.0
PROGRESS_EVERY: Final = 1_000


@dataclass
class ServerRun:
    """The result of one start of the full namespace."""

    workers: int
    start_s: float = 0.0
    stop_s: float = 0.0
    resident_mib: list[float] = field(default_factory=list)
    """Resident memory of each idle process, the supervisor first."""
    idle_cpu: float = 0.0
    entities: int = 0


async def make_queues(server: Server, names: list[str], description: QueueDescription) -> float:
    """Create all queues, and return the seconds that this took."""
    waiting, started, made = iter(names), time.monotonic(), 0
    async with NamespaceManager.from_connection_string(server.management_string) as manager:

        async def work() -> None:
            nonlocal made
            for name in waiting:
                await manager.create_queue(name, description)
                made += 1
                if made % PROGRESS_EVERY == 0:
                    print(f"{made:,} queues created in {time.monotonic() - started:,.0f} s", flush=True)

        await asyncio.gather(*[work() for _ in range(CONCURRENT_REQUESTS)])
    return time.monotonic() - started


async def refusal(server: Server, name: str, description: QueueDescription) -> str | None:
    """Create one queue too many. Return the error text, or None if the error is not QuotaExceeded."""
    async with NamespaceManager.from_connection_string(server.management_string) as manager:
        try:
            await manager.create_queue(name, description)
        except QuotaExceeded as error:
            return str(error).partition(" TrackingId:")[0]
    return None


async def count_entities(server: Server) -> int:
    """Return the number of entities that the server lists."""
    async with NamespaceManager.from_connection_string(server.management_string) as manager:
        return len([queue async for queue in manager.get_queues()])


async def fill(server: Server, arguments: argparse.Namespace, figures: dict[str, str]) -> list[Threshold]:
    """Create the maximum number of entities, and try to create one more of each kind."""
    plain, partitioned = QueueDescription(), QueueDescription(enable_partitioning=True)
    names = [f"partitioned-{number}" for number in range(arguments.partitioned)]
    took_s = await make_queues(server, names, partitioned)
    figures[f"{arguments.partitioned:,} partitioned queues created"] = f"in {took_s:,.1f} s"
    over_partitioned = await refusal(server, "partitioned-more", partitioned)
    rest = arguments.entities - arguments.partitioned
    took_s = await make_queues(server, [f"plain-{number}" for number in range(rest)], plain)
    figures[f"{rest:,} plain queues created"] = f"in {took_s:,.1f} s"
    over_plain = await refusal(server, "plain-more", plain)
    for what, said in (("one more partitioned queue", over_partitioned), ("one more entity", over_plain)):
        figures[what] = f"refused: {said}" if said is not None else "not refused with QuotaExceeded"
    return [
        Threshold(
            f"partitioned queue {arguments.partitioned + 1:,}: refused with QuotaExceeded",
            over_partitioned is not None,
            1,
        ),
        Threshold(f"entity {arguments.entities + 1:,}: refused with QuotaExceeded", over_plain is not None, 1),
    ]


def run_server(folder: Path, workers: int, idle_s: float, watch_s: float) -> ServerRun:
    """Start the server on the existing data, measure it, and stop it."""
    life = ServerRun(workers)
    server = Server(folder, *options_of(workers))
    life.start_s = server.start()
    try:
        life.entities = uvloop.run(count_entities(server))
        time.sleep(idle_s)
        family = ServerProcesses(server.process.pid)
        before_s = family.cpu_s
        time.sleep(watch_s)
        life.idle_cpu = (family.cpu_s - before_s) / watch_s
        processes = sorted(family.all, key=lambda one: one.pid != family.pid)
        life.resident_mib = [process.resident_bytes / MIB for process in processes]
        life.stop_s = server.stop()
    except BaseException:
        server.kill()
        raise
    return life


def options_of(workers: int) -> list[str]:
    """Return the options for a number of processes; one is the default."""
    return [] if workers == 1 else ["--workers", str(workers)]


def check_run(life: ServerRun, entities: int) -> list[Threshold]:
    """Return the thresholds of one start."""
    who = "one process" if life.workers == 1 else f"{life.workers} processes"
    return [
        Threshold(f"start, {who}", life.start_s, MAX_START_S, " s", is_ceiling=True),
        Threshold(f"idle memory, {who}", sum(life.resident_mib), MAX_RESIDENT_MIB, " MiB", is_ceiling=True),
        Threshold(f"entities after the start, {who}", life.entities, entities),
    ]


def measure(folder: Path, arguments: argparse.Namespace) -> tuple[list[Threshold], list[ServerRun], dict[str, str]]:
    """Fill the namespace, then start it with each number of processes."""
    figures: dict[str, str] = {}
    with Server.started(folder) as server:
        bars = uvloop.run(fill(server, arguments, figures))
        figures["resident memory after creation"] = f"{server.process.resident_bytes / MIB:,.0f} MiB"
        server.stop()
    lives = []
    for workers in arguments.workers:
        life = run_server(folder, workers, arguments.idle, arguments.watch)
        lives.append(life)
        bars += check_run(life, arguments.entities)
        who = "one process" if workers == 1 else f"{workers} processes"
        figures[f"resident memory, {who}"] = ", ".join(f"{size:,.0f} MiB" for size in life.resident_mib)
        figures[f"CPU usage while idle, {who}"] = f"{100 * life.idle_cpu:.1f} %"
        figures[f"clean stop, {who}"] = f"{life.stop_s:.1f} s"
        print(f"{who}: {life.start_s:.1f} s to start, {sum(life.resident_mib):,.0f} MiB", flush=True)
    return bars, lives, figures


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, write the results, and return the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--partitioned", type=int, default=100)
    cli.add_argument("--entities", type=int, default=10_000, help="total number of entities")
    cli.add_argument("--workers", type=int, nargs="+", default=[1], help="number of processes of each start")
    cli.add_argument("--idle", type=float, default=IDLE_S, help="seconds between the start and the measurement")
    cli.add_argument("--watch", type=float, default=WATCH_S, help="seconds of idle time to measure")
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as name:
        bars, lives, figures = measure(Path(name), asked)
    where = environment_facts("uvloop", "rocksdict")
    page = (
        "# Benchmark: the maximum number of entities\n\n"
        f"Generated by `python -m bench.entities`. The benchmark creates {asked.partitioned:,} partitioned queues (16\n"
        f"fragments each) and {asked.entities - asked.partitioned:,} plain queues over HTTP, and restarts the server.\n"
        f"Memory is the resident memory of all processes {asked.idle + asked.watch:.0f} s after the start, without\n"
        "any client.\n\n"
        f"{thresholds_table(bars)}\n\n{figures_table(figures)}\n\n{environment_lines(where)}\n"
    )
    measured: dict[str, Any] = {
        "partitioned": asked.partitioned,
        "entities": asked.entities,
        "bars": bars,
        "lives": [vars(life) for life in lives],
        "figures": figures,
        "surroundings": where,
    }
    write(asked.results, "entities", page, measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
