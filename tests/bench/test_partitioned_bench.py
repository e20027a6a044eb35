"""The bench of partitioned queues runs completely, and its figures are correct."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from defusedxml.ElementTree import fromstring

from bench import partitioned
from bench.partitioned import PARTITIONED, PLAIN, Rates, find_thresholds, keys_of
from bench.support.load_clients import LoadClients, MultiProcessServer
from bench.support.plot import Panel, picture
from bench.support.server import build
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.campaign
@pytest.mark.usefixtures("_load_client")
def test_all_figures_are_measured_written_and_compared(tmp_path: Path) -> None:
    arguments = ["--rounds", "1", "--count", "400", "--grid-count", "200", "--processes", "1"]
    status = partitioned.main([*arguments, "--folder", str(tmp_path), "--results", str(tmp_path / "results")])
    measured = json.loads((tmp_path / "results" / "partitioned.json").read_text())
    page = (tmp_path / "results" / "partitioned.md").read_text()
    assert status == any(not bar["is_met"] for bar in measured["bars"])
    assert all(bar["what"] in page for bar in measured["bars"])
    assert [(cell["processes"], cell["fragments"]) for cell in measured["growth"]] == [
        (1, fragments) for fragments in (None, 1, 2, 4, 8, 16)
    ]
    assert all(cell["send"][0] > 0 and cell["receive"][0] > 0 for cell in measured["growth"])
    fromstring((tmp_path / "results" / "partitioned.svg").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "nothing is left on the disk"


@pytest.mark.campaign
@pytest.mark.usefixtures("_load_client")
def test_load_clients_share_the_sent_and_received_messages(tmp_path: Path) -> None:
    with MultiProcessServer.started(tmp_path / "server") as server:
        assert isinstance(server, MultiProcessServer)
        server.create_partitioned_queue("orders")
        clients = LoadClients(build(tmp_path), server, 3)
        sent = clients.send("orders", 300, keys_of(2))
        assert (sent.count, sent.holders, sent.hung_up) == (300, 1, 0)
        assert server.message_count("orders") == 300
        assert clients.receive("orders", 300).count == 300
        partitioned.wait_until_empty(server, "orders")
        server.stop()


@pytest.mark.parametrize("fragments", [1, 4, 16])
def test_there_is_one_key_for_each_of_the_first_fragments(fragments: int) -> None:
    assert [fragment_of(key.encode()) for key in keys_of(fragments)] == list(range(fragments))


def test_a_ratio_is_the_median_over_the_rounds() -> None:
    slow, fast = Rates([10, 50, 40], [1, 1, 1], [30, 30, 30]), Rates([20, 100, 40], [1, 1, 1], [20, 40, 20])
    plain = Rates([5, 25, 20], [1, 1, 1])
    beside = {PLAIN: fast, PARTITIONED: slow}
    bars = {bar.what: bar for bar in find_thresholds(beside, {1: {None: fast}, 2: {None: slow}}, plain)}
    assert bars["partitioned-send of the plain queue's, one process"].found == 0.5
    assert bars["two processes' total send rate of one's, two clients"].found == 0.5
    assert bars["partitioned send rate of a plain queue's, two processes"].found == 2
    cpu = bars["processor time for a message (send, receive, settle) of two processes, of one's"]
    assert (cpu.found, cpu.is_met) == (1.5, False)
    assert len(find_thresholds(beside, {1: {None: fast}}, Rates())) == 2, (
        "there are no thresholds for measurements that were not run"
    )


def test_a_picture_has_a_line_for_each_name_in_each_panel() -> None:
    lines = {"one": [(1, 5.0), (16, 730.0)], "<two>": [(1, 0.0), (16, 10.0)]}
    root = fromstring(picture([Panel("a", "ms", lines), Panel("b", "s", lines)], "fragments"))
    tag = "{http://www.w3.org/2000/svg}"
    assert len(list(root.iter(f"{tag}polyline"))) == 4
    texts = [text.text for text in root.iter(f"{tag}text")]
    assert texts.count("<two>") == 1
    assert "800" in texts, "the axis ends above the highest value"
