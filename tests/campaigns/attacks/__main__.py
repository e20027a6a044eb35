"""Command: python -m tests.campaigns.attacks [--minutes M] [--only ATTACK]... [--keep DIR]."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.campaigns.attacks.attack import ATTACKS
from tests.campaigns.attacks.campaign import run_campaign


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.attacks",
        description="Run all known attacks on one server at the same time, while an honest client sends and receives.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="duration (default: 10)")
    parser.add_argument(
        "--only", action="append", default=[], choices=list(ATTACKS), help="run this attack only; repeatable"
    )
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR", help="keep data and log in this directory")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return run(options, options.keep)
    with tempfile.TemporaryDirectory(prefix="twinbus-attacks-") as folder:
        return run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> int:
    """Run the campaign, print its report, and return the exit status."""
    report = run_campaign(folder, options.minutes * 60, print_line, options.only)
    report.judge_waits()
    print_line(report.table())
    for problem in report.problems:
        print_line(f"PROBLEM: {problem}")
    print_line(report.summary())
    return 1 if report.problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
