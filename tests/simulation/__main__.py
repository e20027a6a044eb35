"""The command: python -m tests.simulation [--runs N] [--seed S] [--minutes M] [--processes P] [--trace]."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # compiled files have their limits built in: a run sets them

from tests.simulation.run import run, try_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.run import Outcome

PROGRESS_EVERY_S = 10.0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def outcomes(seeds: Iterator[int], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from map(try_seed, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap(try_seed, seeds, chunksize=20)


def campaign(options: argparse.Namespace) -> int:
    started = reported = time.monotonic()
    until = float("inf") if options.minutes is None else started + options.minutes * 60
    runs = steps = 0
    failed = []
    seeds = (
        itertools.count(options.seed)
        if options.runs is None
        else iter(range(options.seed, options.seed + options.runs))
    )
    for outcome in outcomes(itertools.takewhile(lambda _: time.monotonic() < until, seeds), options.processes):
        runs += 1
        steps += outcome.steps
        if outcome.fault is not None:
            failed.append(outcome.seed)
            say(f"FOUND by seed {outcome.seed}: {outcome.fault}")
            say(f"  once more: python -m tests.simulation --seed {outcome.seed} --runs 1 --trace")
        if time.monotonic() - reported >= PROGRESS_EVERY_S:
            reported = time.monotonic()
            say(f"{reported - started:,.0f} s: {runs:,} runs, {len(failed)} failed")
    rate = runs / max(time.monotonic() - started, 0.001)
    say(f"{runs:,} runs of {steps:,} steps, {rate:,.0f} runs/s, {len(failed)} failed, from seed {options.seed}")
    return 1 if failed else 0


def trace(seed: int) -> int:
    try:
        run(seed, is_tracing=True)
    except Exception:  # noqa: BLE001
        say(traceback.format_exc())
        return 1
    say(f"seed {seed}: nothing found")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Runs a whole broker on simulated disks, and looks for losses."
    )
    parser.add_argument("--runs", type=int, help="how many; without it and --minutes: until interrupted")
    parser.add_argument("--minutes", type=float, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next has the next number")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="one run only: print every step")
    options = parser.parse_args()
    return trace(options.seed) if options.trace else campaign(options)


if __name__ == "__main__":
    sys.exit(main())
