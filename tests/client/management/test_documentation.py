"""docs/client-management.md: its example runs unchanged, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.client import NamespaceManager

if TYPE_CHECKING:
    import pytest

    from tests.client.management.manager_factory import ManagerFactory

PAGE = (Path(__file__).parents[3] / "docs" / "client-management.md").read_text()


def test_the_example_prints_the_documented_output(
    connect_manager: ManagerFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONNECTION_STRING", connect_manager.connection_string())
    monkeypatch.setenv("CA_FILE", connect_manager.server.ca_file)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/client-management.md", "exec"), {"__name__": "example"})  # noqa: S102  # our own documentation
    assert capsys.readouterr().out.splitlines() == ["orders 30000 0", "urgent priority > 5", "gone: 404"]
    connect_manager.server.request("DELETE", "news", expected=200)


def test_every_method_is_documented() -> None:
    methods = {name for name in vars(NamespaceManager) if not name.startswith("_")}
    documented = set(re.findall(r"`(\w+)(?:\([^)`]*\))?`", PAGE))
    assert methods - {"from_connection_string", "close"} <= documented
