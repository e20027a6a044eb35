"""`twinbus serve --pair` serves both namespaces of a pair, each in its own process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.cli.serving.serve_command import run_serve
from tests.support.server_process import STOP_TIMEOUT_S, TIMEOUT_S, wait_until
from twinbus.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

LAST_LINE = "Ctrl-C stops both servers."


def is_open(host: str, port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex((host, port)) == 0


def test_one_server_can_be_killed_and_started_again_and_one_interrupt_stops_both(tmp_path: Path) -> None:
    with run_serve(tmp_path, "--pair", "--stores=1") as command:
        text = command.wait_for(LAST_LINE)
        primary, secondary = (command.ready_file(name) for name in ("contoso", "contoso-backup"))
        ports = [
            [ready[f"{name}_port"] for name in ("amqp", "amqps", "http", "https")] for ready in (primary, secondary)
        ]
        assert ports == [[5672, 5671, 5300, 5443], [5673, 5674, 5301, 5444]]
        assert primary["ca_file"] == secondary["ca_file"]
        assert "SharedAccessKey=" not in text
        assert f"\n    kill -KILL {primary['pid']}\n" in text

        os.kill(primary["pid"], signal.SIGKILL)
        text = command.wait_for("To start it again, run here:")
        assert "contoso has stopped (signal 9); contoso-backup still runs." in text
        assert is_open(command.host, 5673)
        assert not is_open(command.host, 5672)

        (line,) = re.findall(r"run here:\n\n    (.+)\n", command.wait_for("--https-port=5443"))
        with (tmp_path / "log again").open("wb") as log:
            again = subprocess.Popen(["env", *shlex.split(line)], cwd=tmp_path, stdout=log, stderr=log)
        try:
            wait_until(lambda: is_open(command.host, 5672), timeout_s=40)
            assert is_open(command.host, 5673)
            assert command.process.poll() is None
            assert command.interrupt() == 0
            assert not is_open(command.host, 5673)
            assert again.poll() is None
        finally:
            again.terminate()
            assert again.wait(STOP_TIMEOUT_S) == 0


def test_if_one_server_cannot_start_the_other_is_stopped(tmp_path: Path) -> None:
    host = "127.0.0.1"
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--pair", "--stores=1", "--secondary-ports=0", "--amqps-port=0", "--http-port=0", "--https-port=0"]
        with run_serve(tmp_path, *options, f"--host={host}", f"--amqp-port={port}") as command:
            assert command.process.wait(TIMEOUT_S) == 1
            assert f"twinbus serve: --amqp-port {port}: cannot listen on it: another program uses it" in command.log
            assert "Traceback" not in command.log
            assert command.output == ""
    assert not list((tmp_path / "twinbus-data").glob("*.json"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--secondary-ports 1,2", "--secondary-ports '1,2': give four ports, as 5673,5674,5301,5444, or 0"),
        (
            "--secondary-ports a,2,3,4",
            "--secondary-ports 'a': is not a port: give a number, 0 for any free port, or none",
        ),
        ("--amqp-port 5673", "--secondary-ports 5673: is already used by contoso"),
        ("--workers 65", "--workers 65: it can be 1 to 64"),
        (
            "--ready-file r",
            (
                "--ready-file r: cannot be used with --pair, which writes NAME.json and NAME-backup.json in the folder "
                "of --data"
            ),
        ),
    ],
)
def test_an_invalid_option_is_reported_once_before_a_server_starts(options: str, reason: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--pair", *options.split()])
    assert (result.exit_code, result.stderr) == (2, f"twinbus serve: {reason}\n")


def test_secondary_ports_need_a_pair() -> None:
    result = CliRunner().invoke(app, ["serve", "--secondary-ports", "0"])
    assert (result.exit_code, result.stderr) == (2, "twinbus serve: --secondary-ports 0: needs --pair\n")
