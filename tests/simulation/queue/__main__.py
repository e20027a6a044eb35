"""Command: python -m tests.simulation.queue [--machine] [--runs N] [--steps N] [--minutes M] [--seed S] [--trace]."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[3] / "src")
)  # runs change limits, which are constants in compiled modules

from tests.simulation.queue.run import run
from tests.simulation.queue.state_machine import run_machine
from tests.simulation.seeded_runs import make_parser, print_line, run_command

PROG = "python -m tests.simulation.queue"
EXAMPLES = 100


def machine(steps: int) -> int:
    """Run the state machine. Hypothesis prints the fault that it finds, and the shortest sequence of steps."""
    steps_taken = 0
    while steps_taken < steps:
        steps_taken += run_machine(EXAMPLES)
        print_line(f"{steps_taken:,} steps chosen by Hypothesis: nothing found")
    return 0


def main() -> int:
    parser = make_parser(PROG, "Compare a queue with a reference model.")
    parser.add_argument("--machine", action="store_true", help="let Hypothesis choose the steps (--steps of them)")
    options = parser.parse_args()
    if options.machine:
        return machine(options.steps or 1)
    return run_command(run, PROG, options)


if __name__ == "__main__":
    sys.exit(main())
