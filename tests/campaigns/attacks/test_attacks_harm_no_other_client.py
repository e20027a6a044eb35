"""Short campaign: all attacks at once while an honest client sends and receives.

The waits of the client are checked only in the long campaign (`python -m tests.campaigns.attacks`), because other tests
run at the same time as this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.attacks.campaign import run_campaign

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 8.0


@pytest.mark.timeout(180)
def test_under_attack_an_honest_client_loses_nothing_and_memory_stays_bounded(tmp_path: Path) -> None:
    report = run_campaign(tmp_path, SECONDS, print, other_keys=20)
    assert report.problems == []
    assert report.honest_client["accepted"] > 0
