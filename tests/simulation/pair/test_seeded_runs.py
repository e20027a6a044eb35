"""A fixed range of short runs: no message is lost, every extra copy is marked, errors are true, order is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.pair.run import run

if TYPE_CHECKING:
    from tests.simulation.pair.settings import Settings

EACH = 6
PARTS = 3


def shorten(settings: Settings) -> None:
    """Reduce the outages to a quarter, so that many seeds take little time."""
    settings.outages //= 4


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_find_nothing(part: int) -> None:
    for seed in range(part * EACH, (part + 1) * EACH):
        result = run(seed, change=shorten)
        assert result.outages
        assert not result.problems, f"seed {seed}: {result.problems[0]}"
