"""Measures what a change costs: processor time per message of this checkout's build beside an earlier one's.

    git worktree add ../before COMMIT && make -C ../before compile && make compile
    python -m bench.change --before ../before [--rounds 9] [--count 72000] [--only WORKLOAD]

Four workloads (`bench/workloads.py`): a plain queue, a partitioned queue, a partitioned queue of a server with two
processes, and the syphon. Both builds run throughout a workload; in each round they have the same load in short,
alternating turns. A figure is the median of its rounds, a ratio the median of the rounds' ratios: wall-clock time says
little on a machine that does other things, processor time says more. Writes docs/benchmarks/change.md and change.json;
exits 1 where a ratio is above what is allowed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.record import Bar, add_results_option, bars_table, facts, judge, surroundings, write
from bench.serving import ROOT, build, run
from bench.workloads import GROUPS, PARTITIONED, PLAIN, Build, pinned, started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.workloads import Workload

BEFORE: Final = "before"
AFTER: Final = "after"
MOST: Final = 1.03
WARM_UP: Final = 10_000
TURNS: Final = 6
"""Of each build in a round."""
Steps = dict[str, list[float]]
"""Microseconds of each round, by workload and step."""


def compare(builds: dict[str, dict[str, Workload]], rounds: int, count: int) -> dict[str, Steps]:
    """Run all rounds of one group of workloads."""
    found: dict[str, Steps] = {version: {} for version in builds}
    for version, workloads in builds.items():
        for workload in workloads.values():
            workload.measure(f"warm-{version}-{id(workload)}", WARM_UP)
    for number in range(rounds):
        for version, spent in one_round(builds, f"round-{number}", count).items():
            for name, microseconds in spent.items():
                found[version].setdefault(name, []).append(microseconds)
        print(f"round {number + 1} of {rounds}: {ratios(found)}", flush=True)
    return found


def one_round(builds: dict[str, dict[str, Workload]], name: str, count: int) -> dict[str, dict[str, float]]:
    """Run both builds in short turns, so that what slows the machine for seconds slows both."""
    sums: dict[str, dict[str, float]] = {version: {} for version in builds}
    names = list(builds[BEFORE])
    for turn in range(TURNS):
        for workload in names:
            for version in builds if turn % 2 == 0 else reversed(builds):
                spent = builds[version][workload].measure(f"{workload}-{name}-{turn}", count // TURNS)
                for step, microseconds in spent.items():
                    key = f"{workload}: {step}"
                    sums[version][key] = sums[version].get(key, 0.0) + microseconds / TURNS
    return sums


def ratios(found: dict[str, Steps]) -> dict[str, float]:
    """Return what each step costs now, of what it cost before."""
    return {
        name: round(statistics.median(_quotients(spent, found[BEFORE][name])), 3)
        for name, spent in found[AFTER].items()
    }


def spreads(found: dict[str, Steps]) -> dict[str, tuple[float, float]]:
    """Return the lowest and the highest ratio of any round, by step."""
    all_ratios = {name: _quotients(spent, found[BEFORE][name]) for name, spent in found[AFTER].items()}
    return {name: (min(each), max(each)) for name, each in all_ratios.items()}


def of_plain(steps: Steps) -> Steps:
    """Return what each step costs on a partitioned queue, of what it costs on a plain one, round by round."""
    partitioned = {name.removeprefix(f"{PARTITIONED}: "): spent for name, spent in steps.items()}
    return {
        step: _quotients(partitioned[step], spent)
        for name, spent in steps.items()
        if (step := name.removeprefix(f"{PLAIN}: ")) != name and step in partitioned
    }


def _quotients(these: list[float], those: list[float]) -> list[float]:
    return [one / other for one, other in zip(these, those, strict=True)]


def find_bars(found: dict[str, Steps]) -> list[Bar]:
    """Return what is needed of every ratio."""
    bars = [
        Bar(f"{name}: processor time, of what it was", ratio, MOST, "x", is_ceiling=True)
        for name, ratio in ratios(found).items()
    ]
    beside_plain = {version: of_plain(steps) for version, steps in found.items()}
    return bars + [
        Bar(f"{step}: partitioned to plain, of what it was", ratio, MOST, "x", is_ceiling=True)
        for step, ratio in ratios(beside_plain).items()
    ]


def page(found: dict[str, Steps], bars: list[Bar], before: Build, asked: argparse.Namespace) -> str:
    """Write what people read."""
    spread = spreads(found)
    rows = [
        f"| {name} | {statistics.median(then):.1f} | {statistics.median(found[AFTER][name]):.1f} | "
        f"{spread[name][0]:.3f} to {spread[name][1]:.3f} |"
        for name, then in found[BEFORE].items()
    ]
    then, now = of_plain(found[BEFORE]), of_plain(found[AFTER])
    beside = [
        f"| {step} | {statistics.median(then[step]):.2f}x | {statistics.median(now[step]):.2f}x |" for step in then
    ]
    measured = (
        f"Processor time per message of 1 KB, without RocksDB's flushes and compactions: commit {before.commit} "
        f"before, this one after. Medians of {asked.rounds} alternating rounds of {asked.count:,} messages "
        "(`python -m bench.change`). With two processes it is the sum over the server's processes; of the syphon, "
        "that of the process that hosts it."
    )
    return "\n".join(
        [
            "# What a change costs",
            "",
            measured,
            "",
            "| step | before (µs) | after (µs) | ratios of the rounds |",
            "|---|---|---|---|",
            *rows,
            "",
            *(["| partitioned to plain | before | after |", "|---|---|---|", *beside, ""] if beside else []),
            bars_table(bars),
            "",
            facts(surroundings()),
            "",
        ]
    )


def measure(
    builds: dict[str, Build], folder: Path, names: Sequence[str], asked: argparse.Namespace
) -> dict[str, Steps]:
    """Run the workloads with these names, group by group."""
    binary = build(folder)
    found: dict[str, Steps] = {version: {} for version in builds}
    for number, group in enumerate(GROUPS):
        if chosen := [name for name in group if name in names]:
            with ExitStack() as stack:
                running = {
                    version: stack.enter_context(started(chosen, which, folder / f"{version}-{number}", binary))
                    for version, which in builds.items()
                }
                stack.enter_context(pinned([one for workloads in running.values() for one in workloads.values()]))
                for version, steps in compare(running, asked.rounds, asked.count).items():
                    found[version] |= steps
    return found


def main(words: list[str] | None = None) -> int:
    """Run the bench; the exit code."""
    known = [name for group in GROUPS for name in group]
    parser = argparse.ArgumentParser(prog="python -m bench.change", description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a compiled checkout of the earlier commit")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=72_000, help="messages of one step in a round")
    parser.add_argument("--only", choices=known, action="append", help="a workload (default: all; may be repeated)")
    add_results_option(parser)
    asked = parser.parse_args(words)
    builds = {BEFORE: Build.at(asked.before.resolve()), AFTER: Build.at(ROOT, sys.executable)}
    with tempfile.TemporaryDirectory(prefix="twinbus-change-") as name:
        found = measure(builds, Path(name), asked.only or known, asked)
    bars = find_bars(found)
    measured = {
        "found": found,
        "partitioned to plain": {version: of_plain(steps) for version, steps in found.items()},
        "bars": bars,
        "before": builds[BEFORE].commit,
        "surroundings": surroundings(),
    }
    write(asked.results, "change", page(found, bars, builds[BEFORE], asked), measured)
    return judge(bars)


if __name__ == "__main__":
    run(main)
