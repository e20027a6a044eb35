"""The bench of the data source runs completely, and compares its results with thresholds."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.pipeline_read import BROWSING, DELETING, IN_C, SPARK, ReadRun, find_thresholds, growth_table

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.campaign
def test_every_reader_gets_every_message_and_has_a_rate(tmp_path: Path) -> None:
    arguments = ["--rounds", "1", "--count", "2000", "--sizes", "500", "--results", str(tmp_path)]
    # In its own process: at its end it stops the Spark session, which other tests in this process may use.
    result = subprocess.run([sys.executable, "-m", "bench.pipeline_read", *arguments], capture_output=True, check=False)
    assert (tmp_path / "pipeline_read.json").exists(), result.stderr.decode()
    measured = json.loads((tmp_path / "pipeline_read.json").read_text())
    assert result.returncode == any(not bar["is_met"] for bar in measured["bars"])
    (runs,) = measured["rounds"]
    assert [(ran["who"], ran["count"]) for ran in runs] == [
        (SPARK, 500),
        (SPARK, 2000),
        (BROWSING, 2000),
        (DELETING, 2000),
        (IN_C, 2000),
    ]


def test_spark_is_compared_with_the_faster_way_of_our_client_round_by_round() -> None:
    def run(spark_s: float) -> list[ReadRun]:
        others = [ReadRun(BROWSING, 100, 2.0, 1), ReadRun(DELETING, 100, 1.0, 1), ReadRun(IN_C, 100, 0.5, 1)]
        return [ReadRun(SPARK, 50, 1.0, 3.0), ReadRun(SPARK, 100, spark_s, 2.0), *others]

    rounds = [run(1.0), run(2.0), run(4.0)]
    assert [bar.found for bar in find_thresholds(rounds, 100)] == [0.5, 0.25]
    assert "| 100 | 2.0 s | 50 | 2.0 us |" in growth_table(rounds)
