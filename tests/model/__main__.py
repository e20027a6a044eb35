"""The command: python -m tests.model [--runs N] [--steps N] [--minutes M] [--seed S] [--trace] [--machine N]."""

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

from tests.model.machine import STEPS, run_machine
from tests.model.run import run, try_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.run import Outcome

PROGRESS_EVERY_S = 10.0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def outcomes(seeds: Iterator[int], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from map(try_seed, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap(try_seed, seeds, chunksize=10)


def campaign(options: argparse.Namespace) -> int:
    started = reported = time.monotonic()
    until = float("inf") if options.minutes is None else started + options.minutes * 60
    runs = steps = 0
    failed = []
    seeds = itertools.count(options.seed) if options.runs is None else range(options.seed, options.seed + options.runs)

    for outcome in outcomes(iter(seeds), options.processes):
        runs += 1
        steps += outcome.steps
        if outcome.fault is not None:
            failed.append(outcome.seed)
            say(f"FOUND by seed {outcome.seed}: {outcome.fault}")
            say(f"  once more: python -m tests.model --seed {outcome.seed} --runs 1 --trace")
        if time.monotonic() - reported >= PROGRESS_EVERY_S:
            reported = time.monotonic()
            say(f"{reported - started:,.0f} s: {runs:,} runs, {steps:,} steps, {len(failed)} failed")
        if time.monotonic() >= until or steps >= (options.steps or float("inf")):
            break  # and those under way in other processes are for nothing
    took_s = max(time.monotonic() - started, 0.001)
    rate = f"{steps / took_s:,.0f} steps/s"
    say(f"{runs:,} runs of {steps:,} steps, {rate}, {len(failed)} failed, from seed {options.seed}")
    return 1 if failed else 0


def trace(seed: int) -> int:
    try:
        run(seed, is_tracing=True)
    except Exception:  # noqa: BLE001
        say(traceback.format_exc())
        return 1
    say(f"seed {seed}: nothing found")
    return 0


def machine(examples: int) -> int:
    """Hypothesis says itself what it found, and how few steps are needed for it."""
    run_machine(examples)
    say(f"{examples:,} examples of up to {STEPS} steps: nothing found")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.model", description="Compares a queue with a plain description of what a queue should do."
    )
    parser.add_argument("--runs", type=int, help="how many; without it, --steps and --minutes: until interrupted")
    parser.add_argument("--steps", type=int, help="how many at least, in as many runs as it takes")
    parser.add_argument("--minutes", type=float, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next has the next number")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="one run only: print every step")
    parser.add_argument("--machine", type=int, metavar="N", help="let hypothesis choose the steps, of N examples")
    options = parser.parse_args()
    if options.machine is not None:
        return machine(options.machine)
    return trace(options.seed) if options.trace else campaign(options)


if __name__ == "__main__":
    sys.exit(main())
