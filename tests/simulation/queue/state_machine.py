"""One thing after the other, as hypothesis chooses: after each, the queue is what the model says it should be."""

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
"""Of one example."""
SEEDS = st.integers(min_value=0, max_value=2**16)
"""Details are drawn from a seed: what hypothesis makes smaller is the number of steps, and that is what helps."""


class QueueStateMachine(RuleBasedStateMachine):
    """The same actions as in runs from a seed, without faults."""

    taken = 0
    """Steps, of all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation: QueueSimulation
        self.actions: Actions
        self._patches = ExitStack()

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        random = Random(seed)
        chosen = Settings(random, has_faults=False)
        self._patches.enter_context(patched_constants(chosen.constants))
        self.simulation = QueueSimulation(random, chosen)
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
    """Let hypothesis look for a sequence of actions after which something is wrong. How many it took in all."""
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
