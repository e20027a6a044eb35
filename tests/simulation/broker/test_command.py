"""The command prints which seed failed and how to repeat it, and a seed gives the same steps in every process."""

from __future__ import annotations

from tests.simulation.command_checks import (
    assert_a_run_that_fails_says_how_to_repeat_it,
    assert_a_seed_means_the_same_steps_in_every_process,
    run_python,
)

PLANTED = """
from twinbus.broker.fragment.window import Window
Window.requeue = lambda self, sequence, record: self.ready.append((sequence, record))
"""


def test_a_seed_means_the_same_steps_in_every_process() -> None:
    assert_a_seed_means_the_same_steps_in_every_process("tests.simulation.broker")


def test_runs_without_violations_report_zero_failures() -> None:
    completed = run_python("-m", "tests.simulation.broker", "--runs", "20", "--seed", "20000", "--processes", "2")
    assert completed.stdout.splitlines()[-1].startswith("20 runs of ")
    assert "0 failed, from seed 20000" in completed.stdout


def test_a_run_that_fails_says_how_to_repeat_it() -> None:
    assert_a_run_that_fails_says_how_to_repeat_it("tests.simulation.broker", PLANTED, runs=20)
