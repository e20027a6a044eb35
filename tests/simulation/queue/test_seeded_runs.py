"""A fixed range of seeds: the queue agrees with its reference model, even if its store fails and its clock jumps."""

from __future__ import annotations

import pytest

from tests.simulation.queue.run import run
from tests.simulation.seeded_runs import run_seed

EACH = 20
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_find_nothing(part: int) -> None:
    failed = [outcome for seed in range(part * EACH, (part + 1) * EACH) if (outcome := run_seed(run, seed)).fault]
    assert not failed, f"once more: python -m tests.simulation.queue --seed {failed[0].seed} --runs 1 --trace"
