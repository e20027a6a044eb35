"""Measures a namespace that is full of entities: how soon it serves, and what memory it takes while nothing happens.

    python -m bench.entities [--partitioned 100] [--entities 10000] [--workers 1 ...] [--folder DIR]

Makes a hundred partitioned queues of sixteen fragments and as many plain ones as a namespace may have, through the HTTP
API. One more of each is asked for on the way, and has to be refused with QuotaExceeded. Then the server is stopped and
started again, once for each number of processes, and looked at when it has been idle for a while. Writes
docs/benchmarks/entities.md and entities.json; exits 1 where a bar is missed.
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
"""Requests under way at a time."""
IDLE_S: Final = 5.0
WATCH_S: Final = 10.0
PROGRESS_EVERY: Final = 1_000


@dataclass
class ServerRun:
    """One start of the full namespace, with so many processes."""

    workers: int
    start_s: float = 0.0
    stop_s: float = 0.0
    resident_mib: list[float] = field(default_factory=list)
    """When it has been idle for a while; of each process, the supervisor first."""
    idle_cpu: float = 0.0
    entities: int = 0


async def make_queues(server: Server, names: list[str], description: QueueDescription) -> float:
    """Make them all; the seconds that took."""
    waiting, started, made = iter(names), time.monotonic(), 0
    async with NamespaceManager.from_connection_string(server.management_string) as manager:

        async def work() -> None:
            nonlocal made
            for name in waiting:
                await manager.create_queue(name, description)
                made += 1
                if made % PROGRESS_EVERY == 0:
                    print(f"{made:,} queues made in {time.monotonic() - started:,.0f} s", flush=True)

        await asyncio.gather(*[work() for _ in range(CONCURRENT_REQUESTS)])
    return time.monotonic() - started


async def refusal(server: Server, name: str, description: QueueDescription) -> str | None:
    """What is said to one too many; None if it was made, or refused with something else."""
    async with NamespaceManager.from_connection_string(server.management_string) as manager:
        try:
            await manager.create_queue(name, description)
        except QuotaExceeded as error:
            return str(error).partition(" TrackingId:")[0]
    return None


async def count_entities(server: Server) -> int:
    """As listed by the server."""
    async with NamespaceManager.from_connection_string(server.management_string) as manager:
        return len([queue async for queue in manager.get_queues()])


async def fill(server: Server, arguments: argparse.Namespace, figures: dict[str, str]) -> list[Threshold]:
    """All that a namespace may have, and one more of each kind."""
    plain, partitioned = QueueDescription(), QueueDescription(enable_partitioning=True)
    names = [f"partitioned-{number}" for number in range(arguments.partitioned)]
    took_s = await make_queues(server, names, partitioned)
    figures[f"{arguments.partitioned:,} partitioned queues made"] = f"in {took_s:,.1f} s"
    over_partitioned = await refusal(server, "partitioned-more", partitioned)
    rest = arguments.entities - arguments.partitioned
    took_s = await make_queues(server, [f"plain-{number}" for number in range(rest)], plain)
    figures[f"{rest:,} plain queues made"] = f"in {took_s:,.1f} s"
    over_plain = await refusal(server, "plain-more", plain)
    for what, said in (("one partitioned more", over_partitioned), ("one entity more", over_plain)):
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
    """Start what is there, look at it, and stop it."""
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
    """Nothing is said of workers where there is one: that is the default."""
    return [] if workers == 1 else ["--workers", str(workers)]


def check_run(life: ServerRun, entities: int) -> list[Threshold]:
    """What is needed of it."""
    who = "one process" if life.workers == 1 else f"{life.workers} processes"
    return [
        Threshold(f"start, {who}", life.start_s, MAX_START_S, " s", is_ceiling=True),
        Threshold(f"idle memory, {who}", sum(life.resident_mib), MAX_RESIDENT_MIB, " MiB", is_ceiling=True),
        Threshold(f"entities after the start, {who}", life.entities, entities),
    ]


def measure(folder: Path, arguments: argparse.Namespace) -> tuple[list[Threshold], list[ServerRun], dict[str, str]]:
    """Fill it, then start it with each number of processes."""
    figures: dict[str, str] = {}
    with Server.started(folder) as server:
        bars = uvloop.run(fill(server, arguments, figures))
        figures["resident after all were made"] = f"{server.process.resident_bytes / MIB:,.0f} MiB"
        server.stop()
    lives = []
    for workers in arguments.workers:
        life = run_server(folder, workers, arguments.idle, arguments.watch)
        lives.append(life)
        bars += check_run(life, arguments.entities)
        who = "one process" if workers == 1 else f"{workers} processes"
        figures[f"resident, {who}"] = ", ".join(f"{size:,.0f} MiB" for size in life.resident_mib)
        figures[f"processor while nothing happens, {who}"] = f"{100 * life.idle_cpu:.1f} %"
        figures[f"clean stop, {who}"] = f"{life.stop_s:.1f} s"
        print(f"{who}: {life.start_s:.1f} s to start, {sum(life.resident_mib):,.0f} MiB", flush=True)
    return bars, lives, figures


def main(argv: list[str] | None = None) -> int:
    """Measure, write, judge."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--partitioned", type=int, default=100)
    cli.add_argument("--entities", type=int, default=10_000, help="in all")
    cli.add_argument("--workers", type=int, nargs="+", default=[1], help="processes of each start")
    cli.add_argument("--idle", type=float, default=IDLE_S, help="seconds between the start and the look")
    cli.add_argument("--watch", type=float, default=WATCH_S, help="seconds of doing nothing")
    cli.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    add_results_option(cli)
    asked = cli.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=asked.folder) as name:
        bars, lives, figures = measure(Path(name), asked)
    where = environment_facts("uvloop", "rocksdict")
    page = (
        "# A namespace full of entities, measured\n\n"
        f"Made by `python -m bench.entities`: {asked.partitioned:,} partitioned queues (16 fragments each) and\n"
        f"{asked.entities - asked.partitioned:,} plain ones, made over HTTP; then the server is started anew. Memory\n"
        f"is what all processes have resident {asked.idle + asked.watch:.0f} s after the start; no client is there.\n\n"
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
