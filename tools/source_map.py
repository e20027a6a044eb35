"""Writes docs/source-map.md: all modules of twinbus with the first line of their docstrings. A test checks it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "twinbus"
PAGE = ROOT / "docs" / "source-map.md"
INTRODUCTION = """# Source map

Every module of `src/twinbus` with the first line of its docstring. [design.md](design.md) describes how they work
together.
`tools/source_map.py` writes this page.
"""


def first_line(module: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]


def section(folder: Path) -> list[str]:
    """Return the lines of one folder: its own purpose, and a table of its modules."""
    name = folder.relative_to(SOURCES.parent).as_posix()
    lines = ["", f"## {name}", "", first_line(folder / "__init__.py")]
    modules = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
    if modules:
        lines += ["", "| module | content |", "|---|---|"]
        lines += [f"| `{module.name}` | {first_line(module).replace('|', chr(92) + '|')} |" for module in modules]
    return lines


def render() -> str:
    """Return the whole page."""
    folders = [SOURCES, *sorted(file.parent for file in SOURCES.rglob("*/__init__.py"))]
    return INTRODUCTION + "\n".join(line for folder in folders for line in section(folder)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
