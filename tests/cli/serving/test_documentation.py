"""docs/serving.md: its example runs unchanged, and its tables match the defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.cli.serving.pair import parse_ports
from twinbus.server.config.settings import PROTOCOLS, ServeSettings

if TYPE_CHECKING:
    import pytest

    from tests.support.server_process import ServerProcess

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
READY_FILE = "/run/twinbus/contoso.json"


def test_one_connection_string_creates_the_queue_and_sends_and_receives(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2])
    assert READY_FILE in program
    program = program.replace(READY_FILE, str(server.ready_file))
    exec(compile(program, "docs/serving.md", "exec"), {"__name__": "example"})  # noqa: S102  # our own documentation
    assert capsys.readouterr().out == "hello\n"
    server.delete_queue("orders")


def test_the_table_of_ports_has_the_defaults() -> None:
    documented = re.findall(r"^\| `--(\w+)-port` \| (\d+) \|", PAGE, re.MULTILINE)
    settings = ServeSettings(name="contoso", data=Path("data"))
    assert documented == [(name, str(settings.port(name))) for name in PROTOCOLS]


def test_the_ports_of_the_secondary_are_documented() -> None:
    (text,) = re.findall(r"^\| `--secondary-ports` \| .*default: `([\d,]+)`", PAGE, re.MULTILINE)
    assert parse_ports(text) == {"amqp_port": 5673, "amqps_port": 5674, "http_port": 5301, "https_port": 5444}
