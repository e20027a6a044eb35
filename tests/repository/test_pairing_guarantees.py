"""Every promise that docs/pairing.md makes names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "pairing.md").read_text()
TABLES: Final = PAGE[PAGE.index("## What is promised") :].split("\n## ", maxsplit=1)[0]
ROWS: Final = [
    pytest.param(row, id=f"{table.splitlines()[0]}: {row.split('|')[1].strip()}")
    for table in TABLES.split("\n### ")[1:]
    for row in table.splitlines()
    if row.startswith("| ") and not row.startswith("| path |")
]
SUBJECTS: Final = ("Loss", "Duplicates", "Order", "Time to live", "Schedules", "Transactions", "Errors")
_NAMED: Final = re.compile(r"`(tests/[\w/]+\.py)::(\w+)")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_there_is_a_table_of_promises_about(subject: str) -> None:
    assert f"\n### {subject}\n" in TABLES


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_names_tests_that_exist(row: str) -> None:
    named = _NAMED.findall(row)
    assert named, "a promise that no test shows is none"
    for path, name in named:
        assert re.search(rf"^(?:async )?def {name}\b", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"
