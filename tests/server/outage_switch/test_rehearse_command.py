"""`twinbus rehearse` makes an outage on a real server and leaves none behind, whatever ends it.

That it tells what real senders did is in `tests/client/pairing/processes/test_rehearse_command.py`.
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


def http_string(server: ServerProcess) -> str:
    """A connection string that leads to the port without TLS."""
    return server.connection_string.replace(f":{server.amqp_port}", f":{server.http_port}")


def heed_ctrl_c() -> None:
    """Also where the tests run in the background, with SIGINT ignored: a child would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_whoever_interrupts_it_ends_the_outage(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, number: int
) -> None:
    command = [sys.executable, "-m", "twinbus", "rehearse", http_string(server), "--entity", queue, "--for", "600"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509  # no thread of ours forks at the same time
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
def test_the_whole_namespace_and_the_kind_are_asked_for(
    server: ServerProcess, switch: OutageSwitchClient, queue: str, over: str
) -> None:
    seen: list[dict[str, Any]] = []

    def look() -> bool:
        seen.extend(switch.active_outages())
        return bool(seen)

    looking = threading.Thread(target=lambda: wait_until(look))
    looking.start()
    string = http_string(server) if over == "http" else server.admin_connection_string
    options = ("--namespace", "--for", "1", "--kind", "busy", "--secondary", string, "--ca-file", server.ca_file)
    result = twinbus("rehearse", string, *options)
    looking.join(TIMEOUT_S)
    assert result.exit_code == 0, result.output
    assert (seen[0]["path"], seen[0]["kind"]) == ("*", "busy")
    assert switch.send(queue).status == 201
    assert result.output.endswith("0 senders reported.\n")
    assert server.key not in result.output


def test_without_a_secondary_it_says_that_the_outage_is_over(server: ServerProcess, queue: str) -> None:
    result = twinbus("rehearse", http_string(server), "--entity", queue, "--for", "1")
    assert result.exit_code == 0
    assert f"The outage of '{queue}' is over after 1 s. Give --secondary to see" in result.output


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 2, "either --entity PATH or --namespace"),
        (("--entity", "orders", "--namespace"), 2, "either --entity PATH or --namespace"),
        (("--namespace", "--for", "0.5"), 2, "1 to 3600"),
        (("--namespace", "--for", "4000"), 2, "1 to 3600"),
        (("--namespace", "--kind", "loud"), 2, "loud"),
        (("--entity", "not-there"), 1, "says 404: The messaging entity 'not-there' could not be found"),
        (("--namespace", "--secondary", "Endpoint=sb://x"), 1, "needs either"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line(
    server: ServerProcess, switch: OutageSwitchClient, options: tuple[str, ...], code: int, text: str
) -> None:
    result = twinbus("rehearse", http_string(server), *options)
    assert result.exit_code == code
    assert text in result.output
    assert switch.active_outages() == []


def test_a_key_that_may_not_manage_is_told_so(server: ServerProcess, queue: str) -> None:
    wrong = http_string(server).replace(server.key, "d3Jvbmc=")
    result = twinbus("rehearse", wrong, "--entity", queue, "--for", "1")
    assert result.exit_code == 1
    assert "says 401" in result.output
    assert "d3Jvbmc" not in result.output


def test_a_namespace_that_is_not_there_is_told_so() -> None:
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=s;UseDevelopmentEmulator=true"
    result = twinbus("rehearse", nowhere, "--namespace", "--for", "1")
    assert result.exit_code == 1
    assert "127.0.0.1:1 does not answer" in result.output
