"""The simulation finds what it is there to find: each fault planted in the pairing code is seen by the right check."""

from __future__ import annotations

import pytest

from tests.simulation.pair.planted_faults import FAULTS, PlantedFault
from tests.simulation.pair.run import run

ENOUGH = 12
"""Small runs in which a fault must show. That whole runs find nothing without one is the test of seeded runs."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.apply.__name__)
def test_a_planted_fault_is_found(fault: PlantedFault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.apply(monkeypatch)
    for seed in range(fault.first, fault.first + ENOUGH):
        if fault.check in {kind for kind, _ in run(seed, change=fault.change).problems}:
            return
    pytest.fail(f"no {fault.check} in {ENOUGH} runs")
