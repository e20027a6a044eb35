"""A fixed range of seeds on several processes: nothing is lost, nobody gets what another has, and nobody starves."""

from __future__ import annotations

import pytest

from tests.simulation.cluster.run import run
from tests.simulation.command_checks import (
    assert_a_run_that_fails_says_how_to_repeat_it,
    assert_a_seed_means_the_same_steps_in_every_process,
)
from tests.simulation.seeded_runs import run_seed

EACH = 30
PARTS = 4
MODULE = "tests.simulation.cluster"
PLANTED = """
from twinbus.broker.remote.remote_consumer import RemoteConsumer
RemoteConsumer.available_credit = property(lambda self: self._credit)
"""
"""A receiver of another process is not told that there is something for it."""


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_find_nothing(part: int) -> None:
    found = [outcome for seed in range(part * EACH, (part + 1) * EACH) if (outcome := run_seed(run, seed)).fault]
    assert not found, f"once more: python -m {MODULE} --seed {found[0].seed} --runs 1 --trace"


def test_a_seed_means_the_same_steps_in_every_process() -> None:
    assert_a_seed_means_the_same_steps_in_every_process(MODULE)


def test_a_run_that_fails_says_how_to_repeat_it() -> None:
    assert_a_run_that_fails_says_how_to_repeat_it(MODULE, PLANTED, runs=20)
