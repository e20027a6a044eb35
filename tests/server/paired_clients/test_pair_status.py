"""`twinbus pair status`: pages, rights, and unexpected replies.

`tests/client/pairing/processes/test_pair_status.py` tests it with reports of real clients.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.server.paired_clients.client_reports import report_of
from tests.server.paired_clients.reporter import make_report
from twinbus.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.paired_clients.reporter import Reporter


def status(reporter: Reporter, *options: str, columns: int = 220) -> Any:  # noqa: ANN401  # click's result
    server = reporter.server
    connection = ("--secondary-connection-string", server.admin_connection_string, "--ca-file", server.ca_file)
    arguments = ("pair", "status", *connection, *options)
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, arguments, prog_name="twinbus")


def test_all_pages_are_read(reporter: Reporter) -> None:
    for number in range(30):
        content = make_report(primary="paged-status", client=f"page-{number}", padding=["x" * 4_000] * 15)
        assert reporter.put_report(content).status == 204
    assert len(json.loads(status(reporter, "--primary", "paged-status", "--json").output)["senders"]) == 30


def test_no_line_break_splits_a_duration_in_80_columns(reporter: Reporter) -> None:
    assert (
        reporter.put_report(report_of("shop", failed_over=("orders", "invoices/paid")) | {"primary": "wide"}).status
        == 204
    )
    one_line = r"  orders  failed over for .*, since .* UTC, next ping in \d+ s$"
    assert re.search(one_line, status(reporter, "--primary", "wide").output, re.MULTILINE)
    narrow = status(reporter, "--primary", "wide", columns=80).output
    assert re.search(r"invoices/paid  failed over for .*,\n +since .* UTC, next ping in \d+ s\n", narrow)
    assert not re.search(r"\d\s*\n\s*(s|min|h|d)\b", narrow)


def test_without_senders_and_backlog_queues_the_command_says_so(reporter: Reporter) -> None:
    result = status(reporter, "--primary", "lonely")
    assert result.exit_code == 0
    address = f"{reporter.server.host}:{reporter.server.https_port}"
    text = f"No paired client of 'lonely' reports to {address}, and it has no backlog queues of 'lonely'."
    assert result.output == f"{text} Leave out --primary to see all primaries.\n"


@pytest.mark.parametrize(
    "odd",
    [
        {"entities": "none", "backlog": 7, "alarms": {"a": 1}, "at": 7, "since": "yesterday", "pid": None},
        {"entities": [None, 7, {}, {"state": None}], "backlog": [None, {}, {"path": "p"}], "alarms": [None, {"x": 1}]},
        {"entities": [{"path": "[red]markup[/nothing]", "state": "[bold]", "why": "[/]"}]},
        {"at": "0001-01-01T00:00:00Z", "entities": [{"path": "far", "state": "x", "since": "9999-12-31T00:00:00Z"}]},
        {"entities": [{"path": "far", "state": "x", "since": "0001-01-01T00:00:00+23:00"}], "healthy": 1.7e308},
        {"healthy": "many", "backlog_queues": [], "report_interval_s": 5, "instance": None, "host": None},
    ],
    ids=str,
)
def test_a_report_of_another_client_version_is_shown_without_an_error(
    reporter: Reporter, odd: dict[str, object]
) -> None:
    content = make_report(primary="odd", client="odd-one", **odd)
    assert reporter.put_report(content).status == 204
    result = status(reporter, "--primary", "odd")
    assert result.exit_code == 0, result.output
    assert "odd-one" in result.output
    if "markup" in str(odd):
        assert "[red]markup[/nothing]" in result.output


def test_a_wrong_key_is_reported_with_status_401(reporter: Reporter) -> None:
    server = reporter.server
    wrong = server.admin_connection_string.replace(server.key, "d3Jvbmc=")
    result = CliRunner().invoke(app, ("pair", "status", wrong, "--ca-file", server.ca_file))
    assert result.exit_code == 1
    assert "twinbus pair status:" in result.output
    assert "answered 401" in result.output


def test_a_server_with_an_untrusted_certificate_is_refused(reporter: Reporter) -> None:
    result = CliRunner().invoke(app, ("pair", "status", reporter.server.admin_connection_string))
    assert result.exit_code == 1
    assert "has an untrusted certificate" in result.output
    assert "give its CA certificate with --ca-file FILE" in result.output


def test_a_connection_string_for_the_amqps_port_is_refused_with_advice(reporter: Reporter) -> None:
    server = reporter.server
    over_tls = server.admin_connection_string.replace(f":{server.https_port}", f":{server.amqps_port}")
    result = CliRunner().invoke(app, ("pair", "status", over_tls, "--ca-file", server.ca_file))
    assert result.exit_code == 1
    assert f"use HTTP over TLS on port {server.https_port}" in result.output


def test_a_connection_string_for_the_one_port_is_enough(reporter: Reporter) -> None:
    result = CliRunner().invoke(app, ("pair", "status", reporter.server.connection_string))
    assert result.exit_code == 0, result.output


def test_an_unreadable_ca_file_is_named(reporter: Reporter, tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.touch()
    for file, reason in ((missing, "No such file or directory"), (empty, "it is not a certificate in PEM format")):
        result = CliRunner().invoke(
            app, ("pair", "status", reporter.server.admin_connection_string, "--ca-file", str(file))
        )
        assert result.exit_code == 1
        assert f"--ca-file {file} cannot be read: {reason}" in result.output
