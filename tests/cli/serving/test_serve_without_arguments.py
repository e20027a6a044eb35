"""Without arguments, `twinbus serve` serves contoso from ./twinbus-data, and prints how to use it."""

from __future__ import annotations

import http.client
import os
import re
import ssl
from typing import TYPE_CHECKING

from tests.cli.serving.serve_command import run_serve
from tests.support.server_process import TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

LAST_LINE = "Ctrl-C stops the server."


def test_the_output_on_a_terminal_has_all_that_a_user_needs(tmp_path: Path) -> None:
    with run_serve(tmp_path, on_terminal=True) as command:
        text = command.wait_for(LAST_LINE)
        ready = command.ready_file("contoso")
        assert f"Namespace contoso is ready on {command.host}:5672." in text
        assert ready["connection_string"] in text
        assert ready["ca_file"] == f"{os.environ['XDG_CONFIG_HOME']}/twinbus/ca.pem"
        for client in ("Python", "Node", "Java", "Go", ".NET", "curl"):
            assert f"    {client} " in text
        assert text.count(ready["ca_file"]) == 6
        assert "\n    twinbus entity create queue orders\n" in text
        context = ssl.create_default_context(cafile=ready["ca_file"])
        connection = http.client.HTTPSConnection(command.host, 5672, timeout=TIMEOUT_S, context=context)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        assert command.interrupt() == 0
        assert [file.name for file in (tmp_path / "twinbus-data").iterdir()] == ["contoso"]


def test_output_that_is_no_terminal_contains_no_key(tmp_path: Path) -> None:
    with run_serve(tmp_path, "fabrikam", "--stores=1") as command:
        text = command.wait_for(LAST_LINE)
        key = command.ready_file("fabrikam")["connection_string"].partition("SharedAccessKey=")[2].partition(";")[0]
        assert len(key) > 16
        assert key not in text + command.log
        assert "Its connection string, which contains a key, is in twinbus-data/fabrikam.json." in text
        assert "    twinbus message receive orders --ready-file twinbus-data/fabrikam.json\n" in text
        assert max(len(line) for line in text.splitlines() if not re.search("ca.pem|alias", line)) <= 80
