"""Compiled files do not await while they handle an exception: coroutines of mypyc lose it at an await."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
AWAITS: Final = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def compiled_files() -> list[Path]:
    tree = ast.parse((ROOT / "setup.py").read_text())
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED"
    )
    return [
        ROOT / "src/twinbus" / package / f"{name}.py"
        for package, module_names in names.items()
        for name in module_names
    ]


def awaits_in_handlers(source: str) -> list[int]:
    """Return the lines of awaits in exception handlers."""
    handlers: list[ast.stmt] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try):
            handlers += [statement for handler in node.handlers for statement in handler.body] + node.finalbody
    return [inner.lineno for handler in handlers for inner in ast.walk(handler) if isinstance(inner, AWAITS)]


@pytest.mark.parametrize("file", compiled_files(), ids=lambda file: str(file.relative_to(ROOT / "src")))
def test_nothing_is_awaited_while_an_exception_is_handled(file: Path) -> None:
    assert awaits_in_handlers(file.read_text()) == []


def test_an_await_in_a_handler_is_detected() -> None:
    source = "async def go():\n  try:\n    await one()\n  except OSError:\n    await two()\n    raise\n"
    assert awaits_in_handlers(source) == [5]
    assert awaits_in_handlers("async def go():\n  try:\n    pass\n  finally:\n    await two()\n") == [5]
