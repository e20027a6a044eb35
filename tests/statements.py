"""The numbered statements of docs/statements.md, and the tests that show them.

    python -m tests.statements          list the statements without a test
    python -m tests.statements --write  bring the page's last column up to date

The page holds the statements. A test shows a statement if the test's name has the statement's number in it
(`test_r023_extra_backlog_queues_stay`), if it checks something, and if `make test` runs it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "statements.md"
NUMBERS: Final = (
    *(f"R{number:03}" for number in range(1, 130)),
    *(f"Q{number:02}" for number in range(1, 37)),
    *(f"C{number:02}" for number in range(1, 13)),
    *(f"X{number:02}" for number in range(1, 10)),
)
OPEN: Final = {"R089": "the portal does not exist yet"}
"""Statements without a test, each with the reason; remove an entry when its test exists."""
LISTED: Final = 3
"""Files named per statement; more are counted."""

_ROW: Final = re.compile(r"\| (?P<number>[RQCX]\d{2,3}) \| (?P<text>.+) \| (?P<shown>[^|]*) \|")
_RANGE: Final = re.compile(r"(?<=_)r(\d{3})_to_r(\d{3})(?=_)")
_NUMBER: Final = re.compile(r"(?<=_)[rqcx]\d{2,3}(?=_)")
_CHECKS: Final = re.compile(r"assert|raises|expect|check|verify|fail")
"""Pattern of the names of helpers that check something."""


class Statement(NamedTuple):
    """A row of the page."""

    number: str
    text: str
    shown: str


def statements() -> list[Statement]:
    """Return the rows of the page."""
    rows = (_ROW.fullmatch(line) for line in PAGE.read_text().splitlines())
    return [Statement(**row.groupdict()) for row in rows if row is not None]


def numbers_of(name: str) -> set[str]:
    """Return the numbers in a test's name."""
    numbers = {number.upper() for number in _NUMBER.findall(name)}
    for first, last in _RANGE.findall(name):
        numbers |= {f"R{number:03}" for number in range(int(first), int(last) + 1)}
    return numbers


def find_tests() -> dict[str, list[str]]:
    """Return the files and names of the tests that show each statement."""
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "node_modules" in path.parts:
            continue
        for test in ast.walk(ast.parse(path.read_text())):
            if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
                for number in numbers_of(test.name):
                    if runs_in_make_test(test) and checks_something(test):
                        tests[number].append(f"{path.relative_to(ROOT)}::{test.name}")
    return tests


def runs_in_make_test(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether `make test` runs the test: no marker excludes it."""
    marks = " ".join(ast.unparse(decorator) for decorator in test.decorator_list)
    is_long = "mark.cluster" in marks and "mark.brief" not in marks
    return not is_long and "mark.skip" not in marks and "mark.xfail" not in marks


def checks_something(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the test has an assertion, or calls a helper whose name says that it checks something."""
    calls = (ast.unparse(node.func) for node in ast.walk(test) if isinstance(node, ast.Call))
    return any(isinstance(node, ast.Assert) for node in ast.walk(test)) or any(map(_CHECKS.search, calls))


def cell(number: str, tests: list[str]) -> str:
    """Return the last column of a statement's row."""
    if number in OPEN:
        return f"**open**: {OPEN[number]}"
    files = sorted({test.partition("::")[0] for test in tests})
    links = ", ".join(f"[{file.removeprefix('tests/')}](../{file})" for file in files[:LISTED])
    return f"{links} and {len(files) - LISTED} more" if len(files) > LISTED else links


def updated(page: str) -> str:
    """Return the page's text with its last column as the tests are now."""
    tests = find_tests()
    lines = page.splitlines()
    for index, line in enumerate(lines):
        if row := _ROW.fullmatch(line):
            lines[index] = f"| {row['number']} | {row['text']} | {cell(row['number'], tests[row['number']])} |"
    return "\n".join(lines) + "\n"


def main() -> int:
    """List the statements without a test, or update the page."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--write", action="store_true", help="bring the page up to date")
    if cli.parse_args().write:
        PAGE.write_text(updated(PAGE.read_text()))
    tests = find_tests()
    missing = [statement for statement in statements() if not tests[statement.number] and statement.number not in OPEN]
    for statement in missing:
        print(f"{statement.number} no test: {statement.text}")
    for number, reason in OPEN.items():
        print(f"{number} open: {reason}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
