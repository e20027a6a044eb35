"""The command: python -m tests.simulation.processes, with the options of tests.simulation."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))  # compiled files have their limits built in: a run sets them

from tests.seeded.campaign import make_parser, run_command
from tests.simulation.processes.run import run

PROG = "python -m tests.simulation.processes"


def main() -> int:
    parser = make_parser(PROG, "Runs a namespace of several processes that die, are silent, and lose their disks.")
    return run_command(run, PROG, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
