"""A fixed range of seeds on a partitioned queue: no accepted message is lost, and available stores stay available."""

from __future__ import annotations

import pytest

from tests.simulation.cluster.run import run_single_process
from tests.simulation.command_checks import (
    assert_a_run_that_fails_says_how_to_repeat_it,
    assert_a_seed_means_the_same_steps_in_every_process,
)
from tests.simulation.seeded_runs import run_seed

EACH = 40
PARTS = 4
MODULE = "tests.simulation.partitioned"
PLANTED = """
from twinbus.broker.intake import partitioner
partitioner._TRY_OTHER_FRAGMENT = ()
"""
"""Planted fault: a message without a key is not sent to another fragment if one refuses it."""


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_find_nothing(part: int) -> None:
    failed = [
        outcome
        for seed in range(part * EACH, (part + 1) * EACH)
        if (outcome := run_seed(run_single_process, seed)).fault
    ]
    assert not failed, f"once more: python -m {MODULE} --seed {failed[0].seed} --runs 1 --trace"


def test_a_seed_means_the_same_steps_in_every_process() -> None:
    assert_a_seed_means_the_same_steps_in_every_process(MODULE)


def test_a_run_that_fails_says_how_to_repeat_it() -> None:
    assert_a_run_that_fails_says_how_to_repeat_it(MODULE, PLANTED, runs=10)
