"""The commands on the page about rehearsals do what it says."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from tests.pairing_node.reporter import Reporter, report
from tests.served import ATOM
from twinbus.cli.main import app

if TYPE_CHECKING:
    import pytest

    from tests.outage.switch import Switch
    from tests.served import Served

PAGE = Path(__file__).parents[2] / "docs" / "rehearsing.md"


def test_they_run(server: Served, switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ask("PUT", "orders", ATOM.format(""), expected=201)
    assert Reporter(server).put(report(client="web-1", entities=[])).status == 204
    for name in ("PRIMARY", "SECONDARY"):
        monkeypatch.setenv(name, server.admin_connection_string)
    [example] = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [shlex.split(os.path.expandvars(line)) for line in example.splitlines()]
    assert [command[1] for command in commands] == ["rehearse", "pair"]
    for command in commands:
        shorter = [{"60": "1"}.get(word, re.sub(r".*-ca\.pem", server.ca_file, word)) for word in command[1:]]
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, shorter)
        assert result.exit_code == 0, result.output
        assert switch.all() == []
    assert "web-1" in result.output
