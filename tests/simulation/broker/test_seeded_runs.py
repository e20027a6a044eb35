"""A fixed range of seeds: no accepted message is lost, no settled message comes back, no receiver starves."""

from __future__ import annotations

import pytest

from tests.simulation.broker.run import run
from tests.simulation.seeded_runs import run_seed

EACH = 250
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_find_nothing(part: int) -> None:
    failed = [outcome for seed in range(part * EACH, (part + 1) * EACH) if (outcome := run_seed(run, seed)).fault]
    assert not failed, f"once more: python -m tests.simulation.broker --seed {failed[0].seed} --runs 1 --trace"
