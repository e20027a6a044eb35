"""The command: python -m tests.faults [--features | --transfers] --kills N | --cuts N | --slow-disk [--seed S] ..."""

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

from tests.faults.features.scene import Features
from tests.faults.harness import Death, Plan, endure
from tests.faults.slow_disk import LONG, suffer
from tests.faults.transfers.scene import Transfers

if TYPE_CHECKING:
    from tests.faults.harness import Scene


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Lets servers die under load, and looks at what is left."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kills", type=int, metavar="N", help="kill the server N times")
    what.add_argument("--cuts", type=int, metavar="N", help="cut its power N times")
    what.add_argument("--slow-disk", action="store_true", help="make one of four disks slow, then sick")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of all that is left to chance")
    parser.add_argument("--minutes", type=float, default=None, help="no more deaths after this time")
    parser.add_argument("--failing-syncs", action="store_true", help="with --cuts: some syncs fail before")
    scene = parser.add_mutually_exclusive_group()
    scene.add_argument(
        "--features",
        action="store_true",
        help="with --kills or --cuts: sessions, schedules, duplicates, expiry and deferral instead of plain queues",
    )
    scene.add_argument(
        "--transfers",
        action="store_true",
        help="with --kills or --cuts: transactions, forwarding and topics instead of plain queues",
    )
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR", help="leave data and log of the server there")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return run(options, options.keep)
    with tempfile.TemporaryDirectory(prefix="twinbus-faults-") as folder:
        return run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> int:
    """All of it, in a folder; the command's exit status."""
    repeat = "python -m tests.faults " + " ".join(sys.argv[1:])
    if "--seed" not in repeat:
        repeat += f" --seed {options.seed}"
    say(f"seed {options.seed}")
    if options.slow_disk:
        report = uvloop.run(suffer(LONG, folder, say))
        problems, summary = report.problems, report.summary()
    else:
        problems, summary = uvloop.run(live(options, folder))
    for problem in problems:
        say(f"PROBLEM: {problem}")
    say(summary)
    if problems:
        say(f"once more: {repeat}")
    return 1 if problems else 0


async def live(options: argparse.Namespace, folder: Path) -> tuple[list[str], str]:
    """Kills or power cuts; the problems and a line with figures."""
    until = float("inf") if options.minutes is None else time.monotonic() + options.minutes * 60
    plan = Plan(
        seed=options.seed,
        death=Death.KILL if options.kills is not None else Death.POWER_CUT,
        deaths=options.kills if options.kills is not None else options.cuts,
        until=until,
        fails_syncs=options.failing_syncs,
        slows_syncs=options.features or options.transfers,
    )
    report = await endure(plan, folder, say, choose_scene(options))
    return report.problems, report.summary()


def choose_scene(options: argparse.Namespace) -> Scene | None:
    """None: plain queues."""
    if options.features:
        return Features(options.seed)
    return Transfers(options.seed) if options.transfers else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped")
