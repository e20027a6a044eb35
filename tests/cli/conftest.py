"""A folder, and a configuration folder without profiles, for each test of the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.cli.connection import Role

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for role in Role:
        monkeypatch.delenv(role.variable("CONNECTION_STRING"), raising=False)
        monkeypatch.delenv(role.variable("CA_FILE"), raising=False)
