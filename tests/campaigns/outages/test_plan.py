"""A plan covers every kind of outage on both namespaces, and a seed repeats it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.campaigns.outages.plan import NAMESPACE_KINDS, STORE_KINDS, WORKER_KINDS, OutageKind, Plan


@pytest.mark.parametrize(("partitioned", "workers"), [(False, 1), (True, 1), (True, 2)])
def test_a_hundred_outages_cover_every_kind_and_both_namespaces(*, partitioned: bool, workers: int) -> None:
    plan = Plan(seed=1, outage_count=100, partitioned=partitioned, workers=workers).make_outages(random.Random(1))
    unavailable = {*(() if partitioned else STORE_KINDS), *(() if workers > 1 else WORKER_KINDS)}
    assert {planned.kind for planned in plan} == set(OutageKind) - unavailable
    assert {planned.kind for planned in plan if planned.side == 1} == {*NAMESPACE_KINDS, *WORKER_KINDS} - unavailable
    counts = Counter(planned.kind for planned in plan)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert 20 < sum(planned.overlaps for planned in plan) < 60


def test_a_seed_repeats_the_plan() -> None:
    plans = [Plan(seed=7, outage_count=50).make_outages(random.Random(seed)) for seed in (7, 7, 8)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


def test_a_plan_of_one_kind_has_no_other() -> None:
    plan = Plan(seed=1, outage_count=5, kinds=(OutageKind.RESET,)).make_outages(random.Random(1))
    assert {planned.kind for planned in plan} == {OutageKind.RESET}
