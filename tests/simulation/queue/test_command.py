"""The command prints which seed failed and how to repeat it, and a seed gives the same steps in every process."""

from __future__ import annotations

from tests.simulation.command_checks import (
    assert_a_run_that_fails_says_how_to_repeat_it,
    assert_a_seed_means_the_same_steps_in_every_process,
)

PLANTED = """
from twinbus.broker.fragment.session_lock import LocalSessionLock
LocalSessionLock.requeue = lambda self, sequence, record: self.ready.append((sequence, record))
"""


def test_a_seed_means_the_same_steps_in_every_process() -> None:
    assert_a_seed_means_the_same_steps_in_every_process("tests.simulation.queue")


def test_a_run_that_fails_says_how_to_repeat_it() -> None:
    assert_a_run_that_fails_says_how_to_repeat_it("tests.simulation.queue", PLANTED, runs=60)
