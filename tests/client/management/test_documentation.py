"""docs/client-management.md: its example is run as it stands, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.client import NamespaceManager

if TYPE_CHECKING:
    import pytest

    from tests.client.management.manager_factory import ManagerFactory

PAGE = (Path(__file__).parents[3] / "docs" / "client-management.md").read_text()


def test_the_example_does_what_is_said(
    connect_manager: ManagerFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONNECTION_STRING", connect_manager.connection_string())
    monkeypatch.setenv("CA_FILE", connect_manager.server.ca_file)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/client-management.md", "exec"), {"__name__": "example"})  # noqa: S102  # ours
    assert capsys.readouterr().out.splitlines() == ["orders 30000 0", "urgent priority > 5", "gone: 404"]
    connect_manager.server.request("DELETE", "news", expected=200)


def test_every_call_is_told() -> None:
    calls = {name for name in vars(NamespaceManager) if not name.startswith("_")}
    told = set(re.findall(r"`(\w+)(?:\([^)`]*\))?`", PAGE))
    assert calls - {"from_connection_string", "close"} <= told
