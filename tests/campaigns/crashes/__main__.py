"""Command: python -m tests.campaigns.crashes [--features | --transfers] --kills N | --cuts N | --slow-disk"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign
from tests.campaigns.crashes.features.scenario import FeatureScenario
from tests.campaigns.crashes.slow_disk import LONG, run_scenario
from tests.campaigns.crashes.transfers.scenario import TransferScenario

if TYPE_CHECKING:
    from tests.campaigns.crashes.campaign import Scenario


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.crashes", description="Crash servers under load, and check what is left."
    )
    crash_kind = parser.add_mutually_exclusive_group(required=True)
    crash_kind.add_argument("--kills", type=int, metavar="N", help="kill the server N times")
    crash_kind.add_argument("--cuts", type=int, metavar="N", help="cut its power N times")
    crash_kind.add_argument("--slow-disk", action="store_true", help="make one of four disks slow, then faulty")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="seed of the random choices")
    parser.add_argument("--minutes", type=float, default=None, help="no more crashes after this time")
    parser.add_argument("--failing-syncs", action="store_true", help="with --cuts: some syncs fail before the cut")
    scenario = parser.add_mutually_exclusive_group()
    scenario.add_argument(
        "--features",
        action="store_true",
        help="with --kills or --cuts: sessions, schedules, duplicates, expiry and deferral instead of plain queues",
    )
    scenario.add_argument(
        "--transfers",
        action="store_true",
        help="with --kills or --cuts: transactions, forwarding and topics instead of plain queues",
    )
    parser.add_argument(
        "--keep", type=Path, default=None, metavar="DIR", help="keep data and log of the server in this directory"
    )
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return run(options, options.keep)
    with tempfile.TemporaryDirectory(prefix="twinbus-faults-") as folder:
        return run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> int:
    """Run the campaign in a folder, print its report, and return the exit status."""
    repeat = "python -m tests.campaigns.crashes " + " ".join(sys.argv[1:])
    if "--seed" not in repeat:
        repeat += f" --seed {options.seed}"
    print_line(f"seed {options.seed}")
    if options.slow_disk:
        report = uvloop.run(run_scenario(LONG, folder, print_line))
        problems, summary = report.problems, report.summary()
    else:
        problems, summary = uvloop.run(run_crashes(options, folder))
    for problem in problems:
        print_line(f"PROBLEM: {problem}")
    print_line(summary)
    if problems:
        print_line(f"to repeat: {repeat}")
    return 1 if problems else 0


async def run_crashes(options: argparse.Namespace, folder: Path) -> tuple[list[str], str]:
    """Run kills or power cuts; return the problems and a summary line."""
    until = float("inf") if options.minutes is None else time.monotonic() + options.minutes * 60
    plan = Plan(
        seed=options.seed,
        crash_kind=CrashKind.KILL if options.kills is not None else CrashKind.POWER_CUT,
        crash_count=options.kills if options.kills is not None else options.cuts,
        until=until,
        fails_syncs=options.failing_syncs,
        slows_syncs=options.features or options.transfers,
    )
    report = await run_campaign(plan, folder, print_line, choose_scenario(options))
    return report.problems, report.summary()


def choose_scenario(options: argparse.Namespace) -> Scenario | None:
    """Return the scenario; None for plain queues."""
    if options.features:
        return FeatureScenario(options.seed)
    return TransferScenario(options.seed) if options.transfers else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped")
