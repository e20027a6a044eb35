"""The bench of changes runs the same load on two builds in turn, and compares their costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import change
from bench.change import AFTER, BEFORE, find_bars, ratios, relative_to_plain
from bench.support.server import ROOT
from bench.support.workloads import Build
from tests.conftest import installed_is_current

if TYPE_CHECKING:
    from pathlib import Path

MEASURED = {
    BEFORE: {
        "plain: send": [8.0, 10.0, 4.0],
        "partitioned: send": [12.0, 15.0, 6.0],
        "syphon: move": [20.0, 20.0, 20.0],
    },
    AFTER: {"plain: send": [8.0, 5.0, 4.0], "partitioned: send": [16.0, 10.0, 8.0], "syphon: move": [20.6, 20.0, 30.0]},
}


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    assert ratios(MEASURED) == {"plain: send": 1.0, "partitioned: send": 1.333, "syphon: move": 1.03}


def test_partitioned_is_compared_with_plain_round_by_round() -> None:
    assert relative_to_plain(MEASURED[BEFORE]) == {"send": [1.5, 1.5, 1.5]}
    assert relative_to_plain(MEASURED[AFTER]) == {"send": [2.0, 2.0, 2.0]}
    assert relative_to_plain({"plain: send": [1.0]}) == relative_to_plain({"partitioned: send": [1.0]}) == {}


def test_a_step_that_costs_more_misses_its_bar() -> None:
    assert {bar.what: bar.is_met for bar in find_bars(MEASURED)} == {
        "plain: send: processor time, of what it was": True,
        "partitioned: send: processor time, of what it was": False,
        "syphon: move: processor time, of what it was": True,
        "send: partitioned to plain, of what it was": False,
    }


def test_a_checkout_that_is_not_compiled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no \.venv: run `make compile`"):
        Build.at(tmp_path)


@pytest.mark.campaign
@pytest.mark.usefixtures("_load_client")
@pytest.mark.parametrize("workloads", [["plain", "partitioned"], ["two-processes"], ["syphon"]])
def test_each_workload_is_measured_on_both_builds(tmp_path: Path, workloads: list[str]) -> None:
    if not installed_is_current():
        pytest.skip("compiled files alone are compared, and `make compile` is older than the sources")
    chosen = [argument for name in workloads for argument in ("--only", name)]
    arguments = ["--before", str(ROOT), "--rounds", "1", "--count", "600", *chosen]
    status = change.main([*arguments, "--results", str(tmp_path)])
    measured = json.loads((tmp_path / "change.json").read_text())
    assert status == any(not bar["is_met"] for bar in measured["bars"])
    steps = ["move"] if workloads == ["syphon"] else ["send", "receive", "receive and settle"]
    for version in (BEFORE, AFTER):
        steps_measured = measured["found"][version]
        assert list(steps_measured) == [f"{name}: {step}" for name in workloads for step in steps]
        assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in steps_measured.values())
