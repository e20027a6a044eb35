"""The measurements of partitioned queues support the claims about their throughput."""

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


@pytest.mark.parametrize("what", ["send", "receive"])
def test_r094_the_page_shows_that_two_broker_processes_serve_a_queue_faster_than_one(what: str) -> None:
    bar = BARS[f"two processes' total {what} rate of one's, two clients"]
    assert bar["needed"] >= 1
    assert bar["found"] > 1, "neither one broker nor one store bounds the rate"
    one, two = (_cell(processes) for processes in (1, 2))
    ratios = [after / before for before, after in zip(one[what], two[what], strict=True)]
    assert bar["found"] == pytest.approx(statistics.median(ratios)), "the bar is that of the rounds"
    assert min(two["holders"]) == 2, "two processes held the clients' connections in every round"
    assert f"| {bar['what']} | {bar['found']:.2f}x | at least 1x | met |" in PAGE


def test_r129_the_page_shows_higher_throughput_than_that_of_a_plain_queue_on_the_same_two_processes() -> None:
    bar = BARS["partitioned queue's throughput of a plain queue's, two processes"]
    divided, plain = _cell(2), MEASURED["plain queue, two processes"]
    ratios = [after / before for before, after in zip(_through(plain), _through(divided), strict=True)]
    assert bar["found"] == pytest.approx(statistics.median(ratios)), "the bar is that of the rounds"
    assert bar["found"] > 1
    assert f"| {bar['what']} | {bar['found']:.2f}x | at least 1x | met |" in PAGE
    steps = [BARS[f"partitioned {what} rate of a plain queue's, two processes"] for what in ("send", "receive")]
    assert all(f"| {step['what']} | {step['found']:.2f}x |" in PAGE for step in steps), "each step is shown, met or not"


def _through(rates: dict[str, list[float]]) -> list[float]:
    return [1 / (1 / send + 1 / receive) for send, receive in zip(rates["send"], rates["receive"], strict=True)]


def _cell(processes: int) -> dict[str, Any]:
    """Return the measurement without keys, for a number of processes."""
    cells = MEASURED["growth"]
    return next(cell for cell in cells if (cell["processes"], cell["fragments"]) == (processes, None))
