"""The page with the measurements of partitioned queues supports what is said of their throughput."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, Final

import pytest

FOLDER: Final = Path(__file__).parents[2] / "docs" / "benchmarks"
PAGE: Final = (FOLDER / "partitioned.md").read_text()
MEASURED: Final[dict[str, Any]] = json.loads((FOLDER / "partitioned.json").read_text())
BARS: Final = {bar["what"]: bar for bar in MEASURED["bars"]}
OF_PLAIN: Final = {"send": "partitioned-send", "receive": "partitioned-recv"}


@pytest.mark.parametrize("what", ["send", "receive"])
def test_r094_r129_the_page_shows_higher_throughput_with_several_broker_processes_than_with_one(what: str) -> None:
    bar = BARS[f"two processes' total {what} rate of one's, two clients"]
    assert bar["needed"] >= 1
    assert bar["found"] > 1, "neither one broker nor one store bounds the rate"
    one, two = (_cell(processes) for processes in (1, 2))
    ratios = [after / before for before, after in zip(one[what], two[what], strict=True)]
    assert bar["found"] == pytest.approx(statistics.median(ratios)), "the bar is that of the rounds"
    assert min(two["holders"]) == 2, "two processes held the clients' connections in every round"
    assert f"| {bar['what']} | {bar['found']:.2f}x | at least 1x | met |" in PAGE
    assert _of_plain(what) > 1, "than a plain queue, which one process serves"


def _of_plain(what: str) -> float:
    """The rate of a partitioned queue of two processes, of that of a plain queue.

    Pages that were made before the two were measured side by side have it by way of one process.
    """
    beside = BARS.get(f"partitioned {what} rate of a plain queue's, two processes")
    if beside is not None:
        return float(beside["found"])
    of_one = BARS[f"two processes' total {what} rate of one's, two clients"]["found"]
    return float(of_one * BARS[f"{OF_PLAIN[what]} of the plain queue's, one process"]["found"])


def _cell(processes: int) -> dict[str, Any]:
    """Round by round, without keys."""
    cells = MEASURED["growth"]
    return next(cell for cell in cells if (cell["processes"], cell["fragments"]) == (processes, None))
