"""Each bench runs completely with tiny counts and writes its results; the figures themselves mean nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bench import connections, depth, engine, speed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.campaign, pytest.mark.usefixtures("_load_client")]


def read(folder: Path, name: str) -> dict[str, Any]:
    measured: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    page = (folder / f"{name}.md").read_text()
    assert page.startswith("# ")
    for fact in ("date", "machine", "commit"):
        assert f"- {fact}: {measured['surroundings'][fact]}" in page
    for bar in measured.get("bars", []):
        assert bar["what"] in page
    return measured


def test_depth_fills_restarts_kills_and_empties(tmp_path: Path) -> None:
    arguments = ["--messages", "1500", "--chunk", "500", "--rounds", "1", "--still", "0.3"]
    status = depth.main([*arguments, "--folder", str(tmp_path), "--results", str(tmp_path / "results")])
    measured = read(tmp_path / "results", "depth")
    bars = {bar["what"]: bar for bar in measured["bars"]}
    assert status == any(not bar["is_met"] for bar in bars.values())
    assert len(measured["curves"]["fill"]) == len(measured["curves"]["emptying"]) == 3
    for when in ("with 1,500 waiting", "after 1,500 were received"):
        assert bars[f"messages missing or too many, {when}"]["found"] == 0
        assert 10 < bars[f"resident at most, {when}"]["found"] < 1024
        assert 0 < bars[f"restart after SIGKILL, {when}"]["found"] < bars[f"restart, {when}"]["found"] + 60
        assert bars[f"receive rate of an empty queue's, {when}, at rest"]["found"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "nothing is left on the disk"


def test_connections_are_held_counted_and_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--connections", "30", "--queues", "4", "--rounds", "1", "--count", "300", "--watch", "0.2"]
    status = connections.main([*arguments, "--results", str(tmp_path)])
    measured = read(tmp_path, "connections")
    bars = {bar["what"]: bar for bar in measured["bars"]}
    assert status == any(not bar["is_met"] for bar in bars.values())
    assert bars["open files that the server allows itself"]["found"] > 1024
    for name in ("on one queue", "on 4 queues"):
        state = measured["states"][name]
        assert state["lost"] == 0
        assert len(state["send"]) == len(state["receive"]) == len(state["opening_s"]) == len(state["idle_cpu"]) == 1
    assert "round 1, without" in capsys.readouterr().out


def test_speed_compares_with_any_server_on_the_given_port(tmp_path: Path) -> None:
    with engine.run_server(engine.SERVERS["twinbus"]) as port:  # it accepts every address, as RabbitMQ accepts its two
        arguments = ["--rabbitmq-port", str(port), "--rounds", "1", "--count", "300"]
        status = speed.main([*arguments, "--results", str(tmp_path)])
    measured = read(tmp_path, "queue")
    assert status == any(not bar["is_met"] for bar in measured["bars"])
    assert {bar["what"].partition(":")[0] for bar in measured["bars"]} == {"send", "recv", "recv-second", "accept-p99"}
    assert measured["ratios"].keys() >= speed.MIN_RATIOS.keys()
    for name in ("plain send", "plain recv second", "classic recv", "quorum p99 ms"):
        assert measured["figures"][name][0] > 0


def test_engine_compares_with_the_other_engine(tmp_path: Path) -> None:
    engine.main(["--rounds", "1", "--count", "800", "--results", str(tmp_path)])
    measured = read(tmp_path, "engine")
    assert measured["ratios"].keys() == engine.MIN_RATIOS.keys()
    assert len(measured["rates"]["proton send"]) == 1
