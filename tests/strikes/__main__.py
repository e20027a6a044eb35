"""The command: python -m tests.strikes --outages N [--sessions] [--seed S] [--workers W] [--keep DIR]."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.strikes.campaign import Plan, endure
from tests.strikes.scene import EVERYTHING, ONLY_SESSIONS


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.strikes",
        description="Strikes at processes and disks of a namespace under load, and looks for losses and delays.",
    )
    parser.add_argument("--outages", type=int, default=100, metavar="N", help="how many")
    parser.add_argument("--sessions", action="store_true", help="sessions only, and more of them")
    parser.add_argument("--workers", type=int, default=4, help="processes; of one alone only disks are struck")
    parser.add_argument("--stores", type=int, default=4)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of all that is left to chance")
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR", help="leave data and logs there")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return run(options, options.keep)
    with tempfile.TemporaryDirectory(prefix="twinbus-strikes-") as folder:
        return run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> int:
    """All of it, in a folder; the command's exit status."""
    say(f"seed {options.seed}")
    plan = Plan(
        seed=options.seed,
        strikes=options.outages,
        workers=options.workers,
        stores=options.stores,
        scene=ONLY_SESSIONS if options.sessions else EVERYTHING,
    )
    report = uvloop.run(endure(plan, folder, say))
    for problem in report.problems:
        say(f"PROBLEM: {problem}")
    say(report.table())
    say(report.summary())
    if report.problems:
        sessions = " --sessions" if options.sessions else ""
        again = f"--outages {options.outages}{sessions} --seed {options.seed} --workers {options.workers}"
        say(f"once more: python -m tests.strikes {again} --stores {options.stores}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped")
