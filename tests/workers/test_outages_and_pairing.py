"""Outages on purpose hold for all workers, and every worker tells what paired clients have reported to any."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.pairing_node.reporter import report
from tests.workers.crew import crew
from twinbus.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.workers.crew import Crew


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with crew(tmp_path_factory.mktemp("crew"), workers=3) as server:
        yield server


@pytest.fixture
def server(running: Crew) -> Iterator[Crew]:
    yield running
    running.ask_any(None, "DELETE", "$outage", expected=200)
    running.check_log()


def twinbus(*arguments: str) -> Any:  # noqa: ANN401  # click's result
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, prog_name="twinbus")


def test_an_outage_begun_at_one_worker_is_there_in_all_and_ended_at_another(server: Crew) -> None:
    queue = server.make_queue()
    with server.connected_to_each() as connections:
        begun = json.loads(
            server.ask_on(connections[0], "PUT", f"$outage?path={queue}&seconds=60&kind=busy", expected=201)
        )
        for connection in connections.values():
            assert json.loads(server.ask_on(connection, "GET", "$outage", expected=200)) == {"outages": [begun]}
            assert "too busy" in server.ask_on(connection, "POST", f"{queue}/messages", "x", expected=503)
        ended = server.ask_on(connections[1], "DELETE", f"$outage?path={queue}", expected=200)
        assert json.loads(ended) == {"outages": [begun]}
        for connection in connections.values():
            assert json.loads(server.ask_on(connection, "GET", "$outage", expected=200)) == {"outages": []}
            server.send(queue, "x", connection)


def test_an_outage_that_cannot_be_is_refused(server: Crew) -> None:
    assert "could not be found" in server.ask_any(None, "PUT", "$outage?path=nothing&seconds=5", expected=404)
    queue = server.make_queue()
    assert "it can last" in server.ask_any(None, "PUT", f"$outage?path={queue}&seconds=99999", expected=400)
    assert "kind is 'odd'" in server.ask_any(None, "PUT", f"$outage?path={queue}&seconds=5&kind=odd", expected=400)


def test_a_worker_that_comes_back_has_the_outages_that_are_on(server: Crew) -> None:
    server.ask_any(None, "PUT", "$outage?path=*&seconds=600", expected=201)
    pid = server.strike(1, signal.SIGKILL)
    server.wait_for_another(1, pid)
    server.wait_until_well()
    found = {number: json.loads(text) for number, text in server.ask_each("GET", "$outage", expected=200).items()}
    assert found[0]["outages"][0]["path"] == "*"
    assert found[0] == found[1] == found[2]


def test_twinbus_rehearse_makes_an_outage_in_all_workers_and_ends_it(server: Crew) -> None:
    queue = server.make_queue()
    namespace = server.admin_connection_string
    result = twinbus("rehearse", namespace, "--entity", queue, "--for", "1.5", "--ca-file", server.ca_file)
    assert result.exit_code == 0, result.output
    assert server.log.count(f"an outage was switched on entity={queue} ") == 3
    with server.connected_to_each() as connections:
        for connection in connections.values():
            server.send(queue, "x", connection)


def test_reports_to_any_worker_are_told_by_all(server: Crew) -> None:
    with server.connected_to_each() as connections:
        for number, connection in connections.items():
            content = report(client=f"client-{number}", primary="Told", own=[1, 2.5, None, {"deep": "\u00e9"}])
            body = json.dumps(content)
            server.ask_on(connection, "PUT", f"$pairing/client-{number}?", body, expected=204)
        for connection in connections.values():
            page = json.loads(server.ask_on(connection, "GET", "$pairing?primary=told", expected=200))
            assert [one["client"] for one in page["reports"]] == ["client-0", "client-1", "client-2"]
            assert page["reports"][0]["own"] == [1, 2.5, None, {"deep": "\u00e9"}]
            assert page["next"] is None
            first = json.loads(server.ask_on(connection, "GET", "$pairing?primary=told&$top=2", expected=200))
            assert (len(first["reports"]), first["next"]) == (2, 2)


def test_twinbus_pair_status_shows_them(server: Crew) -> None:
    for number in range(6):
        content = report(client=f"sender-{number}", primary="shown")
        server.ask_any(None, "PUT", f"$pairing/sender-{number}?", json.dumps(content), expected=204)
    result = twinbus(
        "pair", "status", server.admin_connection_string, "--ca-file", server.ca_file, "--primary", "shown"
    )
    assert result.exit_code == 0, result.output
    assert all(f"sender-{number}" in result.output for number in range(6))
    assert not any(f"client-{number}" in result.output for number in range(3))
