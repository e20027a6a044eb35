"""`twinbus pair status` shows every sender, what it holds for down, why and since when, and what is parked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.pairing_node.reporter import report
from twinbus.cli.main import app

if TYPE_CHECKING:
    from tests.pairing_node.reporter import Reporter


def status(reporter: Reporter, *options: str) -> Any:  # noqa: ANN401  # click's result
    server = reporter.server
    arguments = ("pair", "status", server.admin_connection_string, "--ca-file", server.ca_file, *options)
    return CliRunner(env={"COLUMNS": "220"}).invoke(app, arguments, prog_name="twinbus")


def row_of(output: str, *words: str) -> str:
    return next(line for line in output.splitlines() if all(word in line for word in words))


def test_a_sender_that_has_failed_over_is_shown_with_all_that_is_known(reporter: Reporter) -> None:
    entities = [
        {"path": "orders", "state": "failed-over", "why": "timed out", "since": "12:01", "next_ping": "12:09"},
        {"path": "news", "state": "failed-over", "why": "refused", "since": "12:02", "next_ping": "12:10"},
        {"path": "fine", "state": "healthy"},
    ]
    backlog = [{"path": "shown/x-servicebus-transfer/0", "count": 1_234}]
    content = report(primary="shown", client="busy", entities=entities, backlog=backlog, alarms=["nothing drains"])
    assert reporter.put(content).status == 204
    assert reporter.put(report(primary="shown", client="calm", entities=[], backlog=[])).status == 204
    result = status(reporter, "--primary", "shown")
    assert result.exit_code == 0, result.output
    first = row_of(result.output, "busy", "orders")
    for word in ("shown", "failed-over", "timed out", "12:01", "12:09", "shown/x-servicebus-transfer/0: 1,234"):
        assert word in first
    assert "refused" in row_of(result.output, "news", "12:02", "12:10")
    assert "all healthy" in row_of(result.output, "calm")
    assert "busy: nothing drains" in result.output
    assert "fine" not in result.output


def test_json_is_the_reports_as_they_came(reporter: Reporter) -> None:
    content = report(primary="as-json", own={"field": 1})
    assert reporter.put(content).status == 204
    [found] = json.loads(status(reporter, "--primary", "as-json", "--json").output)
    assert found.items() >= content.items()


def test_all_pages_are_read(reporter: Reporter) -> None:
    for number in range(30):
        content = report(primary="paged-status", client=f"page-{number}", padding=["x" * 4_000] * 15)
        assert reporter.put(content).status == 204
    assert len(json.loads(status(reporter, "--primary", "paged-status", "--json").output)) == 30


def test_nobody_is_nobody(reporter: Reporter) -> None:
    result = status(reporter, "--primary", "lonely")
    assert result.exit_code == 0
    assert result.output == "No sender has reported lately.\n"


@pytest.mark.parametrize(
    "odd",
    [
        {"entities": "none", "backlog": 7, "alarms": {"a": 1}},
        {"entities": [None, 7, {}, {"state": None}], "backlog": [None, {}, {"path": "p"}], "alarms": [None, {"x": 1}]},
        {"entities": [{"path": "[red]markup[/nothing]", "state": "[bold]", "why": "[/]"}]},
    ],
    ids=str,
)
def test_whatever_a_report_holds_can_be_shown(reporter: Reporter, odd: dict[str, object]) -> None:
    content = {**report(primary="odd", client="odd-one"), **odd}
    assert reporter.put(content).status == 204
    result = status(reporter, "--primary", "odd")
    assert result.exit_code == 0, result.output
    assert "odd-one" in result.output
    if "markup" in str(odd):
        assert "[red]markup[/nothing]" in result.output


def test_who_may_not_read_is_told_so(reporter: Reporter) -> None:
    server = reporter.server
    wrong = server.admin_connection_string.replace(server.key, "d3Jvbmc=")
    result = CliRunner().invoke(app, ("pair", "status", wrong, "--ca-file", server.ca_file))
    assert result.exit_code == 1
    assert "twinbus pair status:" in result.output
    assert "says 401" in result.output


def test_a_server_whose_certificate_is_not_trusted_is_not_spoken_to(reporter: Reporter) -> None:
    result = CliRunner().invoke(app, ("pair", "status", reporter.server.admin_connection_string))
    assert result.exit_code == 1
    assert "certificate" in result.output.lower()
