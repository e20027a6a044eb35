"""Command: python -m tests.simulation.cluster, with the options of tests.simulation.broker."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[3] / "src")
)  # runs change limits, which are constants in compiled modules

from tests.simulation.cluster.run import run
from tests.simulation.seeded_runs import make_parser, run_command

PROG = "python -m tests.simulation.cluster"


def main() -> int:
    parser = make_parser(
        PROG, "Run a namespace of several processes that are killed, become silent, and lose their disks."
    )
    return run_command(run, PROG, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
