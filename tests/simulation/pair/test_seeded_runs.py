"""A fixed range of short runs: nothing is lost, every extra copy is marked, every error is true, order holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.pair.run import run

if TYPE_CHECKING:
    from tests.simulation.pair.settings import Settings

EACH = 6
PARTS = 3


def shorten(settings: Settings) -> None:
    """So that many seeds take little time: a quarter of the outages."""
    settings.outages //= 4


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_find_nothing(part: int) -> None:
    for seed in range(part * EACH, (part + 1) * EACH):
        result = run(seed, change=shorten)
        assert result.outages
        assert not result.problems, f"seed {seed}: {result.problems[0]}"
