"""Command: python -m tests.campaigns.cluster_faults --outages N [--sessions] [--seed S] [--workers W] [--keep DIR]."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.campaigns.cluster_faults.campaign import Plan, run_campaign
from tests.campaigns.cluster_faults.scenario import ALL_ENTITIES, ONLY_SESSIONS


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.cluster_faults",
        description="Inject faults into processes and disks of a namespace under load; check losses and delays.",
    )
    parser.add_argument("--outages", type=int, default=100, metavar="N", help="number of faults")
    parser.add_argument("--sessions", action="store_true", help="use entities with sessions only, and more of them")
    parser.add_argument(
        "--workers", type=int, default=4, help="processes; with one process only disk faults are injected"
    )
    parser.add_argument("--stores", type=int, default=4)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="seed of the random choices")
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR", help="keep data and logs in this directory")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return run(options, options.keep)
    with tempfile.TemporaryDirectory(prefix="twinbus-faults-") as folder:
        return run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> int:
    """Run the campaign in a folder, print its report, and return the exit status."""
    print_line(f"seed {options.seed}")
    plan = Plan(
        seed=options.seed,
        fault_count=options.outages,
        workers=options.workers,
        stores=options.stores,
        scenario=ONLY_SESSIONS if options.sessions else ALL_ENTITIES,
    )
    report = uvloop.run(run_campaign(plan, folder, print_line))
    for problem in report.problems:
        print_line(f"PROBLEM: {problem}")
    print_line(report.table())
    print_line(report.summary())
    if report.problems:
        sessions = " --sessions" if options.sessions else ""
        arguments = f"--outages {options.outages}{sessions} --seed {options.seed} --workers {options.workers}"
        print_line(f"to repeat: python -m tests.campaigns.cluster_faults {arguments} --stores {options.stores}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped")
