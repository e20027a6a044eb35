"""The command: python -m tests.fuzz [--minutes N] [--inputs N] [--seed S] [--processes P], or --replay FILE."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import queue
import resource
import secrets
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz.campaign import FuzzStatistics, replay, run

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    Reports = Queue[tuple[int, FuzzStatistics, bool]]

PROGRESS_EVERY_S = 30.0
MAX_MEMORY_BYTES = 2 * 1024**3
"""Of one process: an input that makes the engine take more is a finding, too, and must not cost the machine."""


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def fuzz_process(options: argparse.Namespace, process: int, until: float, reports: Reports) -> None:
    """One process. The inputs are dealt out to them in turn."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    reported = time.monotonic()

    def report(tally: FuzzStatistics) -> None:
        nonlocal reported
        if time.monotonic() - reported >= PROGRESS_EVERY_S:
            reported = time.monotonic()
            reports.put((process, tally, False))

    tally = run(
        options.seed,
        itertools.islice(itertools.count(process, options.processes), inputs_per_process(options)),
        until=until,
        findings=options.findings,
        max_findings=options.max_findings,
        on_check=report,
    )
    reports.put((process, tally, True))


def inputs_per_process(options: argparse.Namespace) -> int | None:
    return None if options.inputs is None else -(-options.inputs // options.processes)


def campaign(options: argparse.Namespace) -> int:
    """Run all processes to their end; the command's exit status."""
    until = float("inf") if options.minutes is None else time.monotonic() + options.minutes * 60
    print_line(f"seed {options.seed}, {options.processes} processes")
    reports: Reports = multiprocessing.Queue()
    workers = {
        number: multiprocessing.Process(target=fuzz_process, args=(options, number, until, reports))
        for number in range(options.processes)
    }
    for worker in workers.values():
        worker.start()
    tallies: dict[int, FuzzStatistics] = {}
    died = []
    while workers:
        try:
            number, tallies[number], is_last = next_report(reports)
        except queue.Empty:
            died += [number for number, worker in workers.items() if not worker.is_alive()]
            workers = {number: worker for number, worker in workers.items() if number not in died}
            continue
        print_line(progress(sum_tallies(tallies)))
        if is_last:
            workers.pop(number).join()
    whole = sum_tallies(tallies)
    for line in summary(whole):
        print_line(line)
    for number in died:
        print_line(f"FOUND: process {number} died without a word")
    print_line(f"{progress(whole)}, seed {options.seed}")
    return 1 if whole.findings or died else 0


def next_report(reports: Reports) -> tuple[int, FuzzStatistics, bool]:
    return reports.get(timeout=PROGRESS_EVERY_S + 30)


def sum_tallies(tallies: dict[int, FuzzStatistics]) -> FuzzStatistics:
    whole = FuzzStatistics()
    for tally in tallies.values():
        whole.add(tally)
    return whole


def progress(tally: FuzzStatistics) -> str:
    rate = tally.inputs / max(tally.seconds, 0.001)
    return (
        f"{tally.seconds:,.0f} s: {tally.inputs:,} inputs, {rate:,.0f}/s, memory +{tally.growth_bytes // 1024:,} KB, "
        f"{len(tally.findings)} findings"
    )


def summary(tally: FuzzStatistics) -> list[str]:
    seen = [f"{count:14,}  {what}" for what, count in sorted(tally.seen.items())]
    found = [f"FOUND: {path}  once more: python -m tests.fuzz --replay {path}" for path in tally.findings]
    return ["", *seen, "", *found]


def replay_file(path: Path) -> int:
    fault = replay(path)
    print_line("nothing found" if fault is None else "".join(traceback.format_exception(fault)))
    return 0 if fault is None else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Tries mutated conversations on the engine."
    )
    parser.add_argument("--minutes", type=float, help="how long; without it and --inputs: until interrupted")
    parser.add_argument("--inputs", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="the same seed, the same inputs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--max-findings", type=int, default=1, help="of each process, before it stops")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), help="the folder to keep them in")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try a finding once more")
    options = parser.parse_args()
    return campaign(options) if options.replay is None else replay_file(options.replay)


if __name__ == "__main__":
    sys.exit(main())
