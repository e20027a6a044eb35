"""docs/api.md and docs/metrics.md: their examples run, and their tables are complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from twinbus.client import NamespaceMonitor
from twinbus.model import status
from twinbus.server.api.openapi import make_document
from twinbus.server.api.parameters import DEFAULT_TOP, MAX_TOP

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from tests.support.server_process import ServerProcess

DOCS = Path(__file__).parents[3] / "docs"
API, METRICS = (DOCS / "api.md").read_text(), (DOCS / "metrics.md").read_text()
ENTITY = "QueueDescription"


def run_shell(page: str, server: ServerProcess) -> str:
    """Run the only example for a shell, against the server's port in place of the default port."""
    (example,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    command = example.replace("localhost:5443", f"{server.host}:{server.https_port}")
    environment = {**os.environ, "CA_FILE": server.ca_file, "KEY_NAME": server.key_name, "KEY": server.key}
    done = subprocess.run(["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_of_the_api_run(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.create_entity("orders", ENTITY)
    monkeypatch.setenv("CONNECTION_STRING", server.admin_connection_string)
    monkeypatch.setenv("AMQP_CONNECTION_STRING", server.connection_string)
    monkeypatch.setenv("CA_FILE", server.ca_file)
    (example,) = re.findall(r"```python\n(.*?)```", API, re.DOTALL)
    exec(compile(example, "docs/api.md", "exec"), {"__name__": "example"})  # noqa: S102  # our own documentation
    first, second = capsys.readouterr().out.splitlines()
    assert first == "orders 1 1"
    assert second.startswith("message 1 is locked by ")
    assert [entity["path"] for entity in json.loads(run_shell(API, server))["entities"]] == ["orders"]
    server.delete_queue("orders")


def test_the_example_of_the_metrics_runs(server: ServerProcess, queue: str) -> None:
    assert f'twinbus_messages{{entity="{queue}",state="active"}} 0' in run_shell(METRICS, server)


def test_every_resource_parameter_and_alert_is_documented() -> None:
    resources = {path.removeprefix("/$api/v1/") for path in make_document()["paths"]}
    table = dict(re.findall(r"^\| `([a-z{}/-]+)` \|([^|]*)\|", API, re.MULTILINE))
    assert resources <= set(table)
    for path, methods in make_document()["paths"].items():
        name = path.removeprefix("/$api/v1/")
        parameters = {one["name"] for one in methods["get"]["parameters"] if one["in"] == "query"}
        assert set(re.findall(r"`(\w+)`", table[name])) == parameters
    assert f"`top` (default: {DEFAULT_TOP}, maximum: {MAX_TOP:,})" in API
    documented = dict(re.findall(r"^\| `([a-z-]+)` \| (critical|warning) \|", API, re.MULTILINE))
    assert set(documented) == set(re.findall(r"`([a-z-]+)`", "".join(alert_names())))
    assert set(documented.values()) == set(get_args(status.Severity))


def alert_names() -> Iterator[str]:
    """Yield the paragraph in the source that lists the names of alerts."""
    source = Path(str(status.__file__)).read_text()
    yield source[
        source.index('"""One of `store-unavailable`') : source.index("    text: str", source.index("class Alert"))
    ]


def test_every_method_of_the_client_is_documented() -> None:
    methods = {name for name in vars(NamespaceMonitor) if not name.startswith("_")}
    documented = set(re.findall(r"`(\w+)\([^)`]*\)`", API))
    assert methods - {"from_connection_string", "close"} == documented
