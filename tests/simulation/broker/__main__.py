"""Command: python -m tests.simulation.broker [--runs N] [--steps N] [--minutes M] [--seed S] [--trace]."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[3] / "src")
)  # runs change limits, which are constants in compiled modules

from tests.simulation.broker.run import run
from tests.simulation.seeded_runs import make_parser, run_command

PROG = "python -m tests.simulation.broker"


def main() -> int:
    parser = make_parser(PROG, "Run a whole broker on simulated disks, and look for violations of its guarantees.")
    return run_command(run, PROG, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
