"""A fixed range of seeds: nothing that was accepted is lost, nothing that was settled comes back, nobody starves."""

from __future__ import annotations

import pytest

from tests.simulation.broker.run import run
from tests.simulation.seeded_runs import run_seed

EACH = 250
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_find_nothing(part: int) -> None:
    found = [outcome for seed in range(part * EACH, (part + 1) * EACH) if (outcome := run_seed(run, seed)).fault]
    assert not found, f"once more: python -m tests.simulation.broker --seed {found[0].seed} --runs 1 --trace"
