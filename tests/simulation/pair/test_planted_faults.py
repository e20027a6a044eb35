"""The simulation finds each fault that is planted in the pairing code, with the right check."""

from __future__ import annotations

import pytest

from tests.simulation.pair.planted_faults import FAULTS, PlantedFault
from tests.simulation.pair.run import run

ENOUGH = 12
"""Number of small runs within which a fault must be found. test_seeded_runs.py runs without planted faults."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.apply.__name__)
def test_a_planted_fault_is_found(fault: PlantedFault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.apply(monkeypatch)
    for seed in range(fault.first, fault.first + ENOUGH):
        if fault.check in {kind for kind, _ in run(seed, change=fault.change).problems}:
            return
    pytest.fail(f"no {fault.check} in {ENOUGH} runs")
