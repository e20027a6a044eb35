"""A plan covers every kind of outage on both sides, and a seed repeats it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.outages.kinds import OF_EITHER, OF_STORES, OF_WORKERS, Kind, Plan


@pytest.mark.parametrize(("partitioned", "workers"), [(False, 1), (True, 1), (True, 2)])
def test_a_hundred_outages_cover_every_kind_and_both_namespaces(*, partitioned: bool, workers: int) -> None:
    plan = Plan(seed=1, outages=100, partitioned=partitioned, workers=workers).outages_of(random.Random(1))
    impossible = {*(() if partitioned else OF_STORES), *(() if workers > 1 else OF_WORKERS)}
    assert {planned.kind for planned in plan} == set(Kind) - impossible
    assert {planned.kind for planned in plan if planned.side == 1} == {*OF_EITHER, *OF_WORKERS} - impossible
    counts = Counter(planned.kind for planned in plan)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert 20 < sum(planned.overlaps for planned in plan) < 60


def test_a_seed_repeats_the_plan() -> None:
    plans = [Plan(seed=7, outages=50).outages_of(random.Random(seed)) for seed in (7, 7, 8)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


def test_a_plan_of_one_kind_has_no_other() -> None:
    plan = Plan(seed=1, outages=5, kinds=(Kind.RESET,)).outages_of(random.Random(1))
    assert {planned.kind for planned in plan} == {Kind.RESET}
