"""The command: python -m tests.simulation.partitioned, with the options of tests.simulation."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))  # compiled files have their limits built in: a run sets them

from tests.seeded.campaign import carry_out, parser_for
from tests.simulation.processes.run import run_alone

PROG = "python -m tests.simulation.partitioned"


def main() -> int:
    parser = parser_for(PROG, "Runs a partitioned queue on simulated disks that fail, hang and crash one by one.")
    return carry_out(run_alone, PROG, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
