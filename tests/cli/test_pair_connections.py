"""The commands of a pair take both namespaces from options, variables or local ready files, and from old arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import invoke
from twinbus.cli.output import EXIT_MISUSE

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

WARNING = "a connection string in an argument can be read by other users"


def test_the_secondary_of_a_status_comes_from_a_ready_file_or_a_variable(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_option = json.loads(
        invoke("pair", "status", "--json", "--secondary-ready-file", str(server.ready_file)).output
    )
    assert set(from_option) == {"now", "senders", "backlog_queues"}
    Path("twinbus-data").mkdir()
    Path("twinbus-data/contoso-backup.json").write_bytes(server.ready_file.read_bytes())
    assert set(json.loads(invoke("pair", "status", "--json").output)) == set(from_option)
    Path("twinbus-data/contoso-backup.json").unlink()
    monkeypatch.setenv("TWINBUS_SECONDARY_CONNECTION_STRING", server.connection_string)
    monkeypatch.setenv("TWINBUS_SECONDARY_ADMIN_CONNECTION_STRING", server.admin_connection_string)
    monkeypatch.setenv("TWINBUS_SECONDARY_CA_FILE", server.ca_file)
    assert set(json.loads(invoke("pair", "status", "--json").output)) == set(from_option)


def test_a_connection_string_as_an_argument_still_works_with_a_warning(server: ServerProcess) -> None:
    result = invoke("pair", "status", server.admin_connection_string, "--ca-file", server.ca_file, "--json")
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)) == {"now", "senders", "backlog_queues"}
    assert result.stderr.startswith(f"twinbus pair status: {WARNING}")
    assert server.key not in result.output


def test_a_connection_string_as_the_value_of_an_option_is_no_argument(server: ServerProcess) -> None:
    option = ("--secondary-connection-string", server.admin_connection_string)
    result = invoke("pair", "status", *option, "--ca-file", server.ca_file, "--json")
    assert result.exit_code == 0, result.output
    assert WARNING not in result.output


def test_a_drain_reports_in_json_what_is_left(server: ServerProcess) -> None:
    options = ("--ready-file", str(server.ready_file), "--secondary-ready-file", str(server.ready_file))
    result = invoke("pair", "drain", *options, "--primary-name", "nobody", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"left": 0, "has_timed_out": False, "details": []}


def test_a_rehearsal_reports_in_json_which_senders_reacted(server: ServerProcess, queue: str) -> None:
    options = ("--ready-file", str(server.ready_file), "--secondary-ready-file", str(server.ready_file))
    result = invoke("rehearse", "--entity", queue, "--for", "1", *options, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert (content["path"], content["is_complete"], content["records"]) == (queue, True, [])


@pytest.mark.parametrize(
    "arguments",
    [
        ("pair", "drain"),
        ("rehearse", "--namespace"),
        ("pipeline", "syphon"),
        ("pipeline", "capture", "folder", "orders"),
        ("pipeline", "replay", "folder", "orders"),
    ],
    ids=" ".join,
)
def test_without_a_namespace_the_error_says_how_to_name_one(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.output.count("\n")) == (EXIT_MISUSE, 1)
    assert (
        "no namespace is given: use --ready-file FILE, --profile NAME, set TWINBUS_CONNECTION_STRING" in result.output
    )
