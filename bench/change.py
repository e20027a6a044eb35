"""Measures the cost of a change: CPU time per message of this checkout, compared with an earlier one.

    git worktree add ../before COMMIT && make -C ../before compile && make compile
    python -m bench.change --before ../before [--rounds 9] [--count 72000] [--only WORKLOAD]

There are four workloads (`bench/support/workloads.py`): a plain queue, a partitioned queue, a partitioned queue of a
server with two processes, and the syphon. In each round, new processes of both builds have the same load at the same
time and share one processor, in time slices of milliseconds. A figure is the median of its rounds; a ratio is the
median of the rounds' ratios. CPU time is used because wall-clock time is unreliable on a shared machine. Writes
docs/benchmarks/change.md and change.json; exits with 1 if a ratio is too high.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.support.results import (
    Threshold,
    add_results_option,
    check_thresholds,
    environment_facts,
    environment_lines,
    thresholds_table,
    write,
)
from bench.support.server import ROOT, build, run
from bench.support.workloads import GROUPS, PARTITIONED, PLAIN, Build, pinned, started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.support.workloads import Workload

BEFORE: Final = "before"
AFTER: Final = "after"
MAX_RATIO: Final = 1.03
WARM_UP: Final = 10_000
ROUND_ORDER_PERIOD: Final = 6
"""Number of turns of each build in a round."""
Steps = dict[str, list[float]]
"""Microseconds per message of each round, by workload and step."""


class Arguments(argparse.Namespace):
    """Options of the program."""

    before: Path
    rounds: int
    count: int
    only: list[str] | None
    results: Path


def compare(
    builds: dict[str, Build], names: Sequence[str], folder: Path, binary: Path, arguments: Arguments
) -> dict[str, Steps]:
    """Run all rounds of one group of workloads, each round with new processes of both builds.

    The memory layout of a process changes its speed by a few percent for its whole life. With the same processes in all
    rounds, one build would have that advantage in all of them.
    """
    found: dict[str, Steps] = {version: {} for version in builds}
    for number in range(arguments.rounds):
        with ExitStack() as stack:
            running = {
                version: stack.enter_context(started(names, builds[version], folder / f"{version}-{number}", binary))
                for version in in_turn(number)
            }
            stack.enter_context(pinned([one for workloads in running.values() for one in workloads.values()]))
            for workloads in running.values():
                for name, workload in workloads.items():
                    workload.measure(f"{name}-warm", WARM_UP)
            spent = one_round(running, names, arguments.count)
        for version, steps in spent.items():
            for name, microseconds in steps.items():
                found[version].setdefault(name, []).append(microseconds)
        latest = {name: round(rounds[-1] / found[BEFORE][name][-1], 3) for name, rounds in found[AFTER].items()}
        print(f"round {number + 1} of {arguments.rounds}: {latest}", flush=True)
    return found


def in_turn(number: int) -> tuple[str, str]:
    """Return the builds in the order in which they start this turn."""
    return (BEFORE, AFTER) if number % 2 == 0 else (AFTER, BEFORE)


def one_round(builds: dict[str, dict[str, Workload]], names: Sequence[str], count: int) -> dict[str, dict[str, float]]:
    """Run one round: both builds have the same load at the same time, in several turns.

    Both share one processor, and the kernel switches between them every few milliseconds, so that anything that slows
    down the machine slows down both. In this way, the ratio of two equal builds varies by 4 to 8 % between turns. With
    alternating turns of half a second, it varied by 10 to 24 %.
    """
    sums: dict[str, dict[str, float]] = {version: {} for version in (BEFORE, AFTER)}
    with ThreadPoolExecutor(len(sums)) as pool:
        for turn, workload in itertools.product(range(ROUND_ORDER_PERIOD), names):
            running = {
                version: pool.submit(
                    builds[version][workload].measure, f"{workload}-{turn}", count // ROUND_ORDER_PERIOD
                )
                for version in in_turn(turn)
            }
            for version, spent in running.items():
                for step, microseconds in spent.result().items():
                    key = f"{workload}: {step}"
                    sums[version][key] = sums[version].get(key, 0.0) + microseconds / ROUND_ORDER_PERIOD
    return sums


def ratios(found: dict[str, Steps]) -> dict[str, float]:
    """Return the cost of each step after the change, relative to its cost before."""
    return {
        name: round(statistics.median(_quotients(spent, found[BEFORE][name])), 3)
        for name, spent in found[AFTER].items()
    }


def spreads(found: dict[str, Steps]) -> dict[str, tuple[float, float]]:
    """Return the lowest and the highest ratio of all rounds, by step."""
    all_ratios = {name: _quotients(spent, found[BEFORE][name]) for name, spent in found[AFTER].items()}
    return {name: (min(each), max(each)) for name, each in all_ratios.items()}


def relative_to_plain(steps: Steps) -> Steps:
    """Return the cost of each step on a partitioned queue relative to a plain queue, for each round."""
    partitioned = {name.removeprefix(f"{PARTITIONED}: "): spent for name, spent in steps.items()}
    return {
        step: _quotients(partitioned[step], spent)
        for name, spent in steps.items()
        if (step := name.removeprefix(f"{PLAIN}: ")) != name and step in partitioned
    }


def _quotients(these: list[float], those: list[float]) -> list[float]:
    return [one / other for one, other in zip(these, those, strict=True)]


def find_bars(found: dict[str, Steps]) -> list[Threshold]:
    """Return the thresholds of all ratios."""
    bars = [
        Threshold(f"{name}: processor time, of what it was", ratio, MAX_RATIO, "x", is_ceiling=True)
        for name, ratio in ratios(found).items()
    ]
    beside_plain = {version: relative_to_plain(steps) for version, steps in found.items()}
    return bars + [
        Threshold(f"{step}: partitioned to plain, of what it was", ratio, MAX_RATIO, "x", is_ceiling=True)
        for step, ratio in ratios(beside_plain).items()
    ]


def page(found: dict[str, Steps], thresholds: list[Threshold], before: Build, arguments: Arguments) -> str:
    """Return the page."""
    spread = spreads(found)
    rows = [
        f"| {name} | {statistics.median(then):.1f} | {statistics.median(found[AFTER][name]):.1f} | "
        f"{spread[name][0]:.3f} to {spread[name][1]:.3f} |"
        for name, then in found[BEFORE].items()
    ]
    then, now = relative_to_plain(found[BEFORE]), relative_to_plain(found[AFTER])
    beside = [
        f"| {step} | {statistics.median(then[step]):.2f}x | {statistics.median(now[step]):.2f}x |" for step in then
    ]
    measured = (
        "Generated by `python -m bench.change`. The benchmark compares the CPU time per message of 1 KB of commit "
        f"{before.commit} (before) and of the commit below (after), without RocksDB's flushes and compactions. Figures "
        f"are medians of {arguments.rounds} rounds of {arguments.count:,} messages, in which both builds have the same "
        "load and share a processor. For two processes, the CPU time is the sum over the server's processes; for the "
        'syphon, it is that of the process that hosts it. In the last table, "of what it was" means relative to before.'
    )
    return "\n".join(
        [
            "# Benchmark: cost of a change",
            "",
            measured,
            "",
            "| step | before (µs) | after (µs) | ratios of the rounds |",
            "|---|---|---|---|",
            *rows,
            "",
            *(["| partitioned to plain | before | after |", "|---|---|---|", *beside, ""] if beside else []),
            thresholds_table(thresholds),
            "",
            environment_lines(environment_facts()),
            "",
        ]
    )


def measure(builds: dict[str, Build], folder: Path, arguments: Arguments) -> dict[str, Steps]:
    """Run the selected workloads, group by group."""
    binary = build(folder)
    found: dict[str, Steps] = {version: {} for version in builds}
    for number, group in enumerate(GROUPS):
        if chosen := [name for name in group if name in (arguments.only or group)]:
            for version, steps in compare(builds, chosen, folder / str(number), binary, arguments).items():
                found[version] |= steps
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    known = [name for group in GROUPS for name in group]
    parser = argparse.ArgumentParser(prog="python -m bench.change", description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a compiled checkout of the earlier commit")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=72_000, help="messages per step in a round")
    parser.add_argument("--only", choices=known, action="append", help="a workload (default: all; may be repeated)")
    add_results_option(parser)
    asked = parser.parse_args(argv, Arguments())
    builds = {BEFORE: Build.at(asked.before.resolve()), AFTER: Build.at(ROOT, sys.executable)}
    with tempfile.TemporaryDirectory(prefix="twinbus-change-") as name:
        found = measure(builds, Path(name), asked)
    bars = find_bars(found)
    measured = {
        "found": found,
        "partitioned to plain": {version: relative_to_plain(steps) for version, steps in found.items()},
        "bars": bars,
        "before": builds[BEFORE].commit,
        "surroundings": environment_facts(),
    }
    write(asked.results, "change", page(found, bars, builds[BEFORE], asked), measured)
    return check_thresholds(bars)


if __name__ == "__main__":
    run(main)
