"""The command: python -m tests.simulation.cluster, with the options of tests.simulation.broker."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))  # compiled files have their limits built in: a run sets them

from tests.simulation.cluster.run import run
from tests.simulation.seeded_runs import make_parser, run_command

PROG = "python -m tests.simulation.cluster"


def main() -> int:
    parser = make_parser(PROG, "Runs a namespace of several processes that die, are silent, and lose their disks.")
    return run_command(run, PROG, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
