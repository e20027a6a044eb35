"""Command: python -m tests.simulation.partitioned, with the options of tests.simulation.broker."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[3] / "src")
)  # runs change limits, which are constants in compiled modules

from tests.simulation.cluster.run import run_single_process
from tests.simulation.seeded_runs import make_parser, run_command

PROG = "python -m tests.simulation.partitioned"


def main() -> int:
    parser = make_parser(PROG, "Run a partitioned queue on simulated disks that fail, hang and crash one by one.")
    return run_command(run_single_process, PROG, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
