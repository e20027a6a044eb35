"""Fuzzer command: python -m tests.fuzz [--minutes N] [--inputs N] [--seed S] [--processes P], or --replay FILE."""

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
"""Memory limit of one process: an input that exceeds it is a finding, and must not exhaust the machine."""


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def fuzz_process(options: argparse.Namespace, process: int, until: float, reports: Reports) -> None:
    """Run one process; inputs are assigned to the processes in turn."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    reported = time.monotonic()

    def report(statistics: FuzzStatistics) -> None:
        nonlocal reported
        if time.monotonic() - reported >= PROGRESS_EVERY_S:
            reported = time.monotonic()
            reports.put((process, statistics, False))

    statistics = run(
        options.seed,
        itertools.islice(itertools.count(process, options.processes), inputs_per_process(options)),
        until=until,
        findings=options.findings,
        max_findings=options.max_findings,
        on_check=report,
    )
    reports.put((process, statistics, True))


def inputs_per_process(options: argparse.Namespace) -> int | None:
    return None if options.inputs is None else -(-options.inputs // options.processes)


def campaign(options: argparse.Namespace) -> int:
    """Run all processes to their end; return the exit status."""
    until = float("inf") if options.minutes is None else time.monotonic() + options.minutes * 60
    print_line(f"seed {options.seed}, {options.processes} processes")
    reports: Reports = multiprocessing.Queue()
    workers = {
        number: multiprocessing.Process(target=fuzz_process, args=(options, number, until, reports))
        for number in range(options.processes)
    }
    for worker in workers.values():
        worker.start()
    statistics_by_process: dict[int, FuzzStatistics] = {}
    died = []
    while workers:
        try:
            number, statistics_by_process[number], is_last = next_report(reports)
        except queue.Empty:
            died += [number for number, worker in workers.items() if not worker.is_alive()]
            workers = {number: worker for number, worker in workers.items() if number not in died}
            continue
        print_line(progress(sum_statistics(statistics_by_process)))
        if is_last:
            workers.pop(number).join()
    total = sum_statistics(statistics_by_process)
    for line in summary(total):
        print_line(line)
    for number in died:
        print_line(f"FOUND: process {number} ended without a report")
    print_line(f"{progress(total)}, seed {options.seed}")
    return 1 if total.findings or died else 0


def next_report(reports: Reports) -> tuple[int, FuzzStatistics, bool]:
    return reports.get(timeout=PROGRESS_EVERY_S + 30)


def sum_statistics(statistics_by_process: dict[int, FuzzStatistics]) -> FuzzStatistics:
    total = FuzzStatistics()
    for statistics in statistics_by_process.values():
        total.add(statistics)
    return total


def progress(total: FuzzStatistics) -> str:
    rate = total.inputs / max(total.seconds, 0.001)
    return (
        f"{total.seconds:,.0f} s: {total.inputs:,} inputs, {rate:,.0f}/s, memory +{total.growth_bytes // 1024:,} KB, "
        f"{len(total.findings)} findings"
    )


def summary(statistics: FuzzStatistics) -> list[str]:
    seen = [f"{count:14,}  {event}" for event, count in sorted(statistics.seen.items())]
    findings = [f"FOUND: {path}  once more: python -m tests.fuzz --replay {path}" for path in statistics.findings]
    return ["", *seen, "", *findings]


def replay_file(path: Path) -> int:
    fault = replay(path)
    print_line("nothing found" if fault is None else "".join(traceback.format_exception(fault)))
    return 0 if fault is None else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz the AMQP engine with mutated conversations."
    )
    parser.add_argument("--minutes", type=float, help="duration (default: until interrupted)")
    parser.add_argument("--inputs", type=int, help="number of inputs (default: no limit)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="seed of the inputs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--max-findings", type=int, default=1, help="findings after which a process stops")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), help="folder for findings")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the input of a finding again")
    options = parser.parse_args()
    return campaign(options) if options.replay is None else replay_file(options.replay)


if __name__ == "__main__":
    sys.exit(main())
