"""The benchmark of the syphon on Spark compares the medians of both variants."""

from __future__ import annotations

import pytest

from bench import pipeline_syphon
from bench.support.shovel import Moved


def test_the_ratio_is_the_ratio_of_the_medians() -> None:
    rates = {"in_process": (10.0, 1_000.0, 20.0), "on_spark": (1.0, 15.0, 16.0)}
    moves = {name: [Moved(100, 100 / rate, 200 / rate) for rate in values] for name, values in rates.items()}
    measured = pipeline_syphon.SparkSyphonMeasurement(**moves)
    (threshold,) = measured.thresholds
    assert threshold.found == pytest.approx(0.75)
    assert threshold.is_met
    few = pipeline_syphon.SparkSyphonMeasurement(in_process=[Moved(50, 1, 2)], on_spark=[Moved(50, 2, 4)])
    page = pipeline_syphon.make_page({100: measured, 50: few}, {"machine": "a slow one"}, 100, "local[2,4]")
    assert "| on Spark | 15 | 8 | 1, 15, 16 |" in page
    assert "its first message took 6.7 s" in page
    assert "| 50 | 50 | 25 | 0.50x | 12 |\n| 100 | 20 | 15 | 0.75x | 8 |" in page
