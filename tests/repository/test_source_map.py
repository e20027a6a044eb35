"""docs/source-map.md lists every module, as `tools/source_map.py` writes it."""

from __future__ import annotations

from tools.source_map import PAGE, SOURCES, render


def test_the_source_map_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run: .venv/bin/python tools/source_map.py"


def test_the_source_map_lists_every_module() -> None:
    page = PAGE.read_text()
    assert [file.name for file in SOURCES.rglob("*.py") if file.name not in page and file.name != "__init__.py"] == []
