"""Run a simulation with many seeds in several processes: the command line of all simulations."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class RunOutcome(NamedTuple):
    seed: int
    steps: int
    fault: str | None


def run_seed(run: Callable[[int], int], seed: int) -> RunOutcome:
    """Run one seed, and report any exception as a fault: raising is as wrong as losing a message."""
    try:
        return RunOutcome(seed, run(seed), None)
    except Exception as error:  # noqa: BLE001
        return RunOutcome(seed, 0, describe_error(error))


def describe_error(error: Exception) -> str:
    """Describe the fault that a run found; of several in an exception group, the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


PROGRESS_EVERY_S = 10.0


class SeededRun(Protocol):
    """A run that is determined by its seed. Raises the fault that it finds, and returns the number of steps."""

    def __call__(self, seed: int, *, is_tracing: bool = False) -> int: ...


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def make_parser(prog: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument(
        "--runs", type=int, help="number of runs (default without --steps and --minutes: until interrupted)"
    )
    parser.add_argument("--steps", type=int, help="minimum number of steps, in as many runs as needed")
    parser.add_argument("--minutes", type=float, help="duration")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run; the next runs use the next numbers")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="run one seed, and print every step")
    return parser


def run_command(run: SeededRun, prog: str, options: argparse.Namespace) -> int:
    """Run the command, and return its exit code: 1 if a run failed."""
    return _trace(run, options.seed) if options.trace else _run_seeds(run, prog, options)


def _run_seeds(run: SeededRun, prog: str, options: argparse.Namespace) -> int:
    started = reported = time.monotonic()
    until = float("inf") if options.minutes is None else started + options.minutes * 60
    runs = steps = 0
    failed = []
    seeds = itertools.count(options.seed) if options.runs is None else range(options.seed, options.seed + options.runs)
    for outcome in _run_in_processes(run, iter(seeds), options.processes):
        runs += 1
        steps += outcome.steps
        if outcome.fault is not None:
            failed.append(outcome.seed)
            print_line(f"FOUND by seed {outcome.seed}: {outcome.fault}")
            print_line(f"  once more: {prog} --seed {outcome.seed} --runs 1 --trace")
        if time.monotonic() - reported >= PROGRESS_EVERY_S:
            reported = time.monotonic()
            print_line(f"{reported - started:,.0f} s: {runs:,} runs, {steps:,} steps, {len(failed)} failed")
        if time.monotonic() >= until or steps >= (options.steps or float("inf")):
            break  # runs in progress in other processes are discarded
    rate = steps / max(time.monotonic() - started, 0.001)
    print_line(f"{runs:,} runs of {steps:,} steps, {rate:,.0f} steps/s, {len(failed)} failed, from seed {options.seed}")
    return 1 if failed else 0


def _run_in_processes(run: SeededRun, seeds: Iterator[int], processes: int) -> Iterator[RunOutcome]:
    run_one = partial(run_seed, run)
    if processes == 1:
        yield from map(run_one, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap(run_one, seeds, chunksize=10)


def _trace(run: SeededRun, seed: int) -> int:
    try:
        run(seed, is_tracing=True)
    except Exception:  # noqa: BLE001
        print_line(traceback.format_exc())
        return 1
    print_line(f"seed {seed}: nothing found")
    return 0
