"""The command of the pair simulation: many runs in several processes, and their summary."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.simulation.pair.run import Result, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROG: Final = "python -m tests.simulation.pair"
PROGRESS_EVERY_S: Final = 10.0
PROBLEMS_SHOWN: Final = 3


def print_line(line: str = "") -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status: 1 if a problem was found."""
    options = _parser().parse_args(arguments)
    if options.replay is not None:
        return _replay(options.replay)
    return _run_seeds(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG, description="Simulate outages of a pair of namespaces, and look for violated guarantees."
    )
    parser.add_argument(
        "--outages",
        type=int,
        default=1_000,
        help="minimum number of outages, in as many runs as needed (default: 1000)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run; the next runs use the next numbers")
    parser.add_argument("--processes", type=int, default=2, help="number of processes (default: 2)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed, and print its log")
    return parser


def _replay(seed: int) -> int:
    result = run(seed, is_tracing=True)
    for line in result.log:
        print_line(line)
    print_line(f"seed {seed}: {result.outages} outages, log {result.digest}, {len(result.problems)} problems")
    for kind, text in result.problems:
        print_line(f"{kind}: {text}")
    return 1 if result.problems else 0


def _run_seeds(options: argparse.Namespace) -> int:
    started = reported = time.monotonic()
    total, runs, failed = Result(options.seed), 0, []
    kinds: Counter[str] = Counter()
    for result in _results(options.seed, options.processes):
        runs += 1
        total.outages += result.outages
        total.faults += result.faults
        total.paths += result.paths
        total.virtual_s += result.virtual_s
        if result.problems:
            failed.append(result.seed)
            _print_problems(result, kinds)
        now = time.monotonic()
        if now - reported >= PROGRESS_EVERY_S:
            reported = now
            rate = f"{total.outages / (now - started):,.0f}/s"
            print_line(
                f"{now - started:,.0f} s: {total.outages:,} outages in {runs:,} runs, {rate}, {len(failed)} failed"
            )
        if total.outages >= options.outages:
            break  # runs in progress in other processes are discarded
    _summarise(total, runs, failed, kinds, time.monotonic() - started)
    return 1 if failed else 0


def _results(seed: int, processes: int) -> Iterator[Result]:
    seeds = itertools.count(seed)
    if processes == 1:
        yield from map(_run_without_log, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap(_run_without_log, seeds)


def _run_without_log(seed: int) -> Result:
    """Run one seed, and drop its log, which is not printed."""
    result = run(seed)
    result.log = []
    return result


def _print_problems(result: Result, kinds: Counter[str]) -> None:
    counts = Counter(kind for kind, _ in result.problems)
    kinds.update(counts)
    print_line(f"FOUND by seed {result.seed}: {', '.join(f'{count} {kind}' for kind, count in counts.items())}")
    shown: Counter[str] = Counter()
    for kind, text in result.problems:
        if shown.total() < PROBLEMS_SHOWN and not shown[kind]:
            shown[kind] += 1
            print_line(f"  {kind}: {text}")
    print_line(f"  once more: {PROG} --replay {result.seed}")


def _summarise(total: Result, runs: int, failed: list[int], kinds: Counter[str], duration_s: float) -> None:
    print_line()
    for title, counts in (("outage", total.faults), ("path, or answer to a sender", total.paths)):
        print_line(f"{title:<40} {'count':>12}")
        for name, count in sorted(counts.items()):
            print_line(f"{name:<40} {count:>12,}")
        print_line()
    if kinds:
        print_line(f"{'problem':<40} {'count':>12}")
        for name, count in sorted(kinds.items()):
            print_line(f"{name:<40} {count:>12,}")
        print_line()
    rate = total.outages / max(duration_s, 0.001)
    print_line(f"{total.virtual_s / 3600:,.1f} simulated hours in {duration_s:,.0f} s, {rate:,.0f} outages/s")
    print_line(f"{total.outages:,} outages in {runs:,} runs from seed {total.seed}: {len(failed)} failed")
