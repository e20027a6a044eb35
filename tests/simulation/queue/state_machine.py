"""A state machine for Hypothesis: after each action the queue must agree with its reference model."""

from __future__ import annotations

from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.simulation.patched_constants import patched_constants
from tests.simulation.queue.actions import Actions
from tests.simulation.queue.run import finish
from tests.simulation.queue.settings import ORDINARY_WEIGHTS, Settings
from tests.simulation.queue.simulation import QueueSimulation

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 50
"""Steps of one example."""
SEEDS = st.integers(min_value=0, max_value=2**16)
"""Details of an action are drawn from a seed, so that Hypothesis shrinks the number of steps, not the details."""


class QueueStateMachine(RuleBasedStateMachine):
    """The actions of seeded runs, without faults."""

    taken = 0
    """Number of steps of all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation: QueueSimulation
        self.actions: Actions
        self._patches = ExitStack()

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        random = Random(seed)
        run_settings = Settings(random, has_faults=False)
        self._patches.enter_context(patched_constants(run_settings.constants))
        self.simulation = QueueSimulation(random, run_settings)
        self.simulation.start()
        self.actions = Actions(self.simulation)

    def teardown(self) -> None:
        try:
            if hasattr(self, "simulation"):
                finish(self.simulation)
        finally:
            self._patches.close()


def _rule(name: str) -> Callable[[QueueStateMachine, int], None]:
    def act(self: QueueStateMachine, seed: int) -> None:
        QueueStateMachine.taken += 1
        self.actions.do(name, Random(seed))
        self.simulation.check_when_idle()

    act.__name__ = name
    return act


for _name in ORDINARY_WEIGHTS:
    setattr(QueueStateMachine, _name, rule(seed=SEEDS)(_rule(_name)))


def run_machine(examples: int, *, is_repeatable: bool = False) -> int:
    """Let Hypothesis search for a sequence of actions that violates the model, and return the number of steps."""
    before = QueueStateMachine.taken
    run_state_machine_as_test(
        QueueStateMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=is_repeatable,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return QueueStateMachine.taken - before
