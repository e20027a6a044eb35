"""`twinbus rehearse` switches an outage on a real server, and always ends it.

`tests/client/pairing/processes/test_rehearse_command.py` tests its report on real senders.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.support.server_process import wait_until
from twinbus.cli.main import app

if TYPE_CHECKING:
    from tests.server.outage_switch.switch_client import OutageSwitchClient
    from tests.support.server_process import ServerProcess

TIMEOUT_S = 60


def twinbus(*arguments: str) -> Any:  # noqa: ANN401  # click's result
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, prog_name="twinbus")


def http_connection_string(server: ServerProcess) -> str:
    """A connection string with the HTTP port, without TLS."""
    return server.connection_string.replace(f":{server.amqp_port}", f":{server.http_port}")


def restore_sigint() -> None:
    """Restore the handling of SIGINT: tests in the background ignore it, and a child process would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupt_ends_the_outage(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, number: int
) -> None:
    command = [
        sys.executable,
        "-m",
        "twinbus",
        "rehearse",
        http_connection_string(server),
        "--entity",
        queue,
        "--for",
        "600",
    ]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
        preexec_fn=restore_sigint,  # noqa: PLW1509  # no other thread forks at the same time
    )
    try:
        wait_until(switch.active_outages)
        assert switch.active_outages()[0]["path"] == queue
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert b"interrupted; the outage is switched off" in errors
    assert b"Traceback" not in errors
    assert switch.active_outages() == []


@pytest.mark.parametrize("over", ["https", "http"])
def test_the_options_select_the_whole_namespace_and_the_kind(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, over: str
) -> None:
    outages: list[dict[str, Any]] = []

    def has_outage() -> bool:
        outages.extend(switch.active_outages())
        return bool(outages)

    watcher = threading.Thread(target=lambda: wait_until(has_outage))
    watcher.start()
    connection_string = http_connection_string(server) if over == "http" else server.admin_connection_string
    options = (
        "--namespace",
        "--for",
        "1",
        "--kind",
        "busy",
        "--secondary",
        connection_string,
        "--ca-file",
        server.ca_file,
    )
    result = twinbus("rehearse", connection_string, *options)
    watcher.join(TIMEOUT_S)
    assert result.exit_code == 0, result.output
    assert (outages[0]["path"], outages[0]["kind"]) == ("*", "busy")
    assert switch.send(queue).status == 201
    assert result.output.endswith("0 senders reported.\n")
    assert server.key not in result.output


def test_without_a_secondary_the_command_says_that_the_outage_has_ended(server: ServerProcess, queue: str) -> None:
    result = twinbus("rehearse", http_connection_string(server), "--entity", queue, "--for", "1")
    assert result.exit_code == 0
    assert f"The outage of '{queue}' ended after 1 s. Give --secondary-ready-file" in result.output


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 2, "either --entity PATH or --namespace"),
        (("--entity", "orders", "--namespace"), 2, "either --entity PATH or --namespace"),
        (("--namespace", "--for", "0.5"), 2, "1 to 3600"),
        (("--namespace", "--for", "4000"), 2, "1 to 3600"),
        (("--namespace", "--kind", "loud"), 2, "loud"),
        (("--entity", "not-there"), 1, "answered 404: The messaging entity 'not-there' could not be found"),
        (("--namespace", "--secondary", "Endpoint=sb://x"), 2, "needs either"),
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_in_one_line(
    server: ServerProcess, switch: OutageSwitchClient, options: tuple[str, ...], code: int, text: str
) -> None:
    result = twinbus("rehearse", http_connection_string(server), *options)
    assert result.exit_code == code
    assert text in result.output
    assert switch.active_outages() == []


def test_a_wrong_key_is_reported_with_status_401(server: ServerProcess, queue: str) -> None:
    wrong = http_connection_string(server).replace(server.key, "d3Jvbmc=")
    result = twinbus("rehearse", wrong, "--entity", queue, "--for", "1")
    assert result.exit_code == 1
    assert "answered 401" in result.output
    assert "d3Jvbmc" not in result.output


def test_an_unreachable_namespace_is_reported() -> None:
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=s;UseDevelopmentEmulator=true"
    result = twinbus("rehearse", nowhere, "--namespace", "--for", "1")
    assert result.exit_code == 1
    assert "127.0.0.1:1 cannot be reached" in result.output
