"""The benches of the client and of the pair run completely, and compare their results with thresholds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import paired, sdk, syphon
from bench.sdk import ClientRun
from bench.support.sdk_use_cases import CLIENTS, OURS, UseCase, offers
from bench.support.server import Server
from bench.support.shovel import Moved, QueueLayout

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.campaign
def test_every_library_is_measured_in_every_use_it_supports(tmp_path: Path) -> None:
    status = sdk.main(["--rounds", "1", "--count", "100", "--results", str(tmp_path)])
    measured = json.loads((tmp_path / "sdk.json").read_text())
    assert status == any(not bar["is_met"] for bar in measured["bars"])
    assert {use: set(found) for use, found in measured["uses"].items()} == {
        use.value: {client for client in CLIENTS if offers(client, use)} for use in UseCase
    }
    assert all(ran["rate"] > 0 for found in measured["uses"].values() for runs in found.values() for ran in runs)


def test_our_rate_is_compared_with_the_faster_of_the_others() -> None:
    runs = {
        OURS: [ClientRun(50, 1), ClientRun(60, 1), ClientRun(900, 1)],
        "azure sync": [ClientRun(10, 1)],
        "azure aio": [ClientRun(20, 1)],
    }
    results = {use: dict(runs) for use in UseCase}
    results[UseCase.SEND_ONE] = {OURS: [ClientRun(1, 1)], "azure sync": [ClientRun(30, 1)]}
    assert sdk.ratio_of(results[UseCase.SEND_LISTS]) == 3
    found = {bar.what: bar.found for bar in sdk.find_thresholds(results)}
    assert found["send, each in its fastest use"] == 2
    assert found["receive and complete, each in its fastest use"] == 3


@pytest.mark.campaign
def test_paired_and_unpaired_senders_take_turns(tmp_path: Path) -> None:
    status = paired.main(["--runs", "2", "--count", "1000", "--results", str(tmp_path)])
    measured = json.loads((tmp_path / "paired.json").read_text())
    assert status == (not measured["bars"][0]["is_met"])
    assert [len(measured[kind]) for kind in ("paired", "unpaired")] == [2, 2]
    assert all(run["cpu_us"] > 0 for kind in ("paired", "unpaired") for run in measured[kind])


def test_the_cost_of_pairing_is_the_difference_of_the_medians() -> None:
    runs = {"unpaired": [20.0, 10.0, 90.0], "paired": [21.0, 5.0, 95.0]}
    found = {kind: [{"cpu_us": value, "rate": 1.0} for value in values] for kind, values in runs.items()}
    (bar,) = paired.find_thresholds(found)
    assert bar.found == pytest.approx(5.0)
    assert bar.what.startswith("processor time")


@pytest.mark.campaign
def test_the_syphon_moves_all_parked_messages(tmp_path: Path) -> None:
    with Server.started(tmp_path / "primary") as primary, Server.started(tmp_path / "secondary") as secondary:
        moved, cpu_s = syphon.Syphon(primary, secondary).move(400)
        assert [primary.message_count(path) for path in syphon.DESTINATIONS] == [200, 200]
    assert moved.count == 400
    assert 0 < moved.moving_s < moved.whole_s
    assert cpu_s > 0


def test_the_syphon_is_compared_with_the_best_arrangement_of_the_shovel() -> None:
    measured = syphon.SyphonMeasurement(
        syphon=[Moved(100, 1.0, 2.0)],
        host_cpu_s=[0.5],
        shovels={str(QueueLayout(10, 1)): [Moved(100, 4.0, 4.0)], str(QueueLayout(1, 1)): [Moved(100, 2.0, 2.0)]},
    )
    assert measured.best == "1 queue to 1"
    assert measured.thresholds[0].found == 2
    page = syphon.make_page(measured, {"date": "today"}, 100)
    assert "| shovel, 10 queues to 1 | 25 | 25 | 25 |" in page
    assert "which is\n1 queue to 1." in page
