"""The command: python -m tests.outages --outages N [--partitioned] [--seed S] [--keep DIR] [--journals DIR]."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.outages.campaign import Plan, endure


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.outages", description="Lets namespaces of a pair fail under load, and looks for losses."
    )
    parser.add_argument("--outages", type=int, default=30, metavar="N", help="how many")
    parser.add_argument("--partitioned", action="store_true", help="entities of the primary are, and stores fail, too")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of all that is left to chance")
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR", help="leave data, ledgers and logs there")
    parser.add_argument("--journals", type=Path, default=None, metavar="DIR", help="all programs keep journals there")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return run(options, options.keep)
    with tempfile.TemporaryDirectory(prefix="twinbus-outages-") as folder:
        return run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> int:
    """All of it, in a folder; the command's exit status."""
    say(f"seed {options.seed}")
    plan = Plan(seed=options.seed, outages=options.outages, partitioned=options.partitioned, journals=options.journals)
    report = uvloop.run(endure(plan, folder, say))
    for problem in report.problems:
        say(f"PROBLEM: {problem}")
    say(report.table())
    say(report.summary())
    if report.problems:
        kind = " --partitioned" if options.partitioned else ""
        say(f"once more: python -m tests.outages --outages {options.outages}{kind} --seed {options.seed}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped")
