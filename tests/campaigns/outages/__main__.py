"""Command: python -m tests.campaigns.outages --outages N [--partitioned] [--workers N] [--only KIND]... [--seed S]."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.campaigns.outages.campaign import run_campaign
from tests.campaigns.outages.plan import OutageKind, Plan


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def option_name(kind: OutageKind) -> str:
    return kind.name.lower().replace("_", "-")


def main() -> int:
    kinds = {option_name(kind): kind for kind in OutageKind}
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.outages",
        description="Cause outages of a pair under load, and check that every guarantee holds.",
        epilog=f"Kinds of outage: {', '.join(kinds)}.",
    )
    parser.add_argument("--outages", type=int, default=30, metavar="N", help="number of outages (default: 30)")
    parser.add_argument("--partitioned", action="store_true", help="partition the primary's entities; stores fail, too")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes of each namespace (default: 1)")
    parser.add_argument("--only", action="append", choices=kinds, metavar="KIND", help="only this kind; repeatable")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10**6), help="seed of the plan, to repeat an earlier run"
    )
    parser.add_argument(
        "--keep", type=Path, default=None, metavar="DIR", help="keep data, ledgers and logs in this directory"
    )
    parser.add_argument(
        "--journals",
        type=Path,
        default=None,
        metavar="DIR",
        help="write the journals of all programs to this directory",
    )
    options = parser.parse_args()
    chosen = None if options.only is None else tuple(kinds[name] for name in options.only)
    plan = Plan(
        seed=options.seed,
        outage_count=options.outages,
        partitioned=options.partitioned,
        workers=options.workers,
        kinds=chosen,
        journals=options.journals,
    )
    if plan.unavailable_kinds & set(chosen or ()):
        parser.error("stores fail only with --partitioned, and single workers only with --workers 2 or more")
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return run(plan, options.keep)
    with tempfile.TemporaryDirectory(prefix="twinbus-outages-") as folder:
        return run(plan, Path(folder))


def run(plan: Plan, folder: Path) -> int:
    """Run the plan in a folder, print its report, and return the exit status."""
    print_line(f"seed {plan.seed}")
    report = uvloop.run(run_campaign(plan, folder, print_line))
    print_line("")
    for problem in report.problems:
        print_line(f"PROBLEM: {problem}")
    print_line(report.table())
    print_line(f"\n{report.statistics()}\n")
    print_line(report.summary())
    if report.problems:
        more = " --partitioned" if plan.partitioned else ""
        more += f" --workers {plan.workers}" if plan.workers > 1 else ""
        more += "".join(f" --only {option_name(kind)}" for kind in plan.kinds or ())
        print_line(
            f"to repeat: python -m tests.campaigns.outages --outages {plan.outage_count}{more} --seed {plan.seed}"
        )
    return 1 if report.problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped")
