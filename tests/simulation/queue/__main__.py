"""Command: python -m tests.simulation.queue [--machine] [--runs N] [--steps N] [--minutes M] [--seed S] [--trace]."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))  # compiled files have their limits built in: a run sets them

from tests.simulation.queue.run import run
from tests.simulation.queue.state_machine import run_machine
from tests.simulation.seeded_runs import make_parser, print_line, run_command

PROG = "python -m tests.simulation.queue"
EXAMPLES = 100


def machine(steps: int) -> int:
    """Hypothesis says itself what it found, and how few steps are needed for it."""
    taken = 0
    while taken < steps:
        taken += run_machine(EXAMPLES)
        print_line(f"{taken:,} steps that hypothesis chose: nothing found")
    return 0


def main() -> int:
    parser = make_parser(PROG, "Compares a queue with a plain description of what a queue should do.")
    parser.add_argument("--machine", action="store_true", help="let hypothesis choose the steps, --steps of them")
    options = parser.parse_args()
    if options.machine:
        return machine(options.steps or 1)
    return run_command(run, PROG, options)


if __name__ == "__main__":
    sys.exit(main())
