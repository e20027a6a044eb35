"""A queue agrees with its reference model after every sequence of actions that Hypothesis tries."""

from __future__ import annotations

from tests.simulation.queue.state_machine import run_machine


def test_a_queue_does_what_the_model_says() -> None:
    assert run_machine(20, is_repeatable=True) > 300
