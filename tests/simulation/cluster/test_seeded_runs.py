"""A fixed range of seeds on several processes: no message is lost or locked twice, and no receiver starves."""

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
"""Planted fault: a receiver in another process gets no offer of messages."""


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_find_nothing(part: int) -> None:
    failed = [outcome for seed in range(part * EACH, (part + 1) * EACH) if (outcome := run_seed(run, seed)).fault]
    assert not failed, f"once more: python -m {MODULE} --seed {failed[0].seed} --runs 1 --trace"


def test_a_seed_means_the_same_steps_in_every_process() -> None:
    assert_a_seed_means_the_same_steps_in_every_process(MODULE)


def test_a_run_that_fails_says_how_to_repeat_it() -> None:
    assert_a_run_that_fails_says_how_to_repeat_it(MODULE, PLANTED, runs=20)
