"""Measures what a change costs: processor time per message of this checkout's server beside an earlier one's.

    git worktree add ../before COMMIT && make -C ../before compile
    python -m bench.change --before ../before [--rounds 9] [--count 72000]

Both servers run throughout; in each round they have the same load in short, alternating turns: sends, receives, and
receives with confirmed settlement. A figure is the median of its rounds, a ratio the median of the
rounds' ratios: wall-clock time says little on a machine that does other things, processor time says more. Writes
docs/benchmarks/change.md and change.json; exits 1 where a ratio is above what is allowed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.record import Bar, add_results_option, bars_table, facts, judge, surroundings, write
from bench.serving import Load, Server, build, run

if TYPE_CHECKING:
    from collections.abc import Callable

BEFORE: Final = "before"
AFTER: Final = "after"
MOST: Final = 1.03
WARM_UP: Final = 10_000
TURNS: Final = 6
"""Of each server in a round."""
Steps = dict[str, list[float]]


def steps_of(load: Load, queue: str, count: int) -> list[tuple[str, Callable[[], object]]]:
    """What is measured, in this order: each receive finds what the send before it left."""
    return [
        ("send", lambda: load.send(queue, count)),
        ("receive", lambda: load.receive(queue, count)),
        ("send", lambda: load.send(queue, count)),
        ("receive and settle", lambda: load.receive_second(queue, count)),
    ]


def measure(load: Load, queue: str, count: int) -> dict[str, float]:
    """Microseconds of the server's processor time per message, by step."""
    load.server.make_queue(queue)
    found: dict[str, list[float]] = {}
    for name, step in steps_of(load, queue, count):
        before_s = load.server.process.foreground_cpu_s
        step()
        found.setdefault(name, []).append((load.server.process.foreground_cpu_s - before_s) / count * 1e6)
    return {name: statistics.mean(spent) for name, spent in found.items()}


def compare(loads: dict[str, Load], rounds: int, count: int) -> dict[str, Steps]:
    """All rounds of both servers."""
    found: dict[str, Steps] = {version: {} for version in loads}
    for version, load in loads.items():
        measure(load, f"warm-{version}", WARM_UP)
    for number in range(rounds):
        for version, spent in one_round(loads, f"round-{number}", count).items():
            for name, microseconds in spent.items():
                found[version].setdefault(name, []).append(microseconds)
        print(f"round {number + 1} of {rounds}: {ratios(found)}")
    return found


def one_round(loads: dict[str, Load], name: str, count: int) -> dict[str, dict[str, float]]:
    """Both servers in short turns, so that what slows the machine for seconds slows both."""
    sums: dict[str, dict[str, float]] = {version: {} for version in loads}
    for turn in range(TURNS):
        for version in loads if turn % 2 == 0 else reversed(loads):
            for step, spent in measure(loads[version], f"{name}-{turn}", count // TURNS).items():
                sums[version][step] = sums[version].get(step, 0.0) + spent / TURNS
    return sums


def ratios(found: dict[str, Steps]) -> dict[str, float]:
    """What each step costs now, of what it cost before."""
    return {
        name: round(statistics.median([now / then for now, then in zip(spent, found[BEFORE][name], strict=True)]), 3)
        for name, spent in found[AFTER].items()
    }


def page(found: dict[str, Steps], bars: list[Bar], before: str, asked: argparse.Namespace) -> str:
    """What people read."""
    rows = [
        f"| {name} | {statistics.median(then):.1f} | {statistics.median(found[AFTER][name]):.1f} |"
        for name, then in found[BEFORE].items()
    ]
    measured = (
        f"Processor time of the server per message of 1 KB, without RocksDB's flushes and compactions: commit {before} "
        f"before, this one after. Medians of {asked.rounds} alternating rounds of {asked.count:,} messages "
        "(`python -m bench.change`)."
    )
    return "\n".join(
        [
            "# What a change costs",
            "",
            measured,
            "",
            "| step | before (µs) | after (µs) |",
            "|---|---|---|",
            *rows,
            "",
            bars_table(bars),
            "",
            facts(surroundings()),
            "",
        ]
    )


def pin(*servers: Server) -> None:
    """Keep the servers and the load client on processors of their own: moving between them costs time, too."""
    first, *others = sorted(os.sched_getaffinity(0))
    if others:
        for server in servers:
            for task in Path(f"/proc/{server.process.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {first})
        os.sched_setaffinity(0, others)  # of this process, and of the load clients that it starts


def main() -> int:
    """Run the bench; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.change", description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a compiled checkout of the earlier commit")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=72_000)
    add_results_option(parser)
    asked = parser.parse_args()
    earlier = asked.before.resolve()
    if not (earlier / ".venv" / "bin" / "python").exists():
        sys.exit(f"{earlier} has no .venv: run `make compile` in it first")
    named = ["git", "-C", str(earlier), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="twinbus-change-") as name:
        folder = Path(name)
        binary = build(folder)
        with (
            Server.started(folder / BEFORE, python=str(earlier / ".venv" / "bin" / "python")) as before,
            Server.started(folder / AFTER) as after,
        ):
            pin(before, after)
            loads = {BEFORE: Load(binary, before), AFTER: Load(binary, after)}
            found = compare(loads, asked.rounds, asked.count)
    bars = [
        Bar(f"{step}: processor time, of what it was", ratio, MOST, "x", is_ceiling=True)
        for step, ratio in ratios(found).items()
    ]
    measured = {"found": found, "bars": bars, "before": commit, "surroundings": surroundings()}
    write(asked.results, "change", page(found, bars, commit, asked), measured)
    return judge(bars)


if __name__ == "__main__":
    run(main)
