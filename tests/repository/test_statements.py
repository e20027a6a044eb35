"""Every numbered statement and reading that is due is in the name of a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAIRING: Final = {f"r{number:03}" for number in range(1, 84)} | {f"q{number:02}" for number in range(1, 24)}
PARTITIONED: Final = {f"r{number:03}" for number in range(85, 125)} | {f"q{number:02}" for number in range(24, 37)}


@pytest.mark.parametrize("due", [PAIRING, PARTITIONED], ids=["paired namespaces", "partitioned entities"])
def test_every_statement_that_is_due_has_a_test(due: set[str]) -> None:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path.name != Path(__file__).name]
    names = [name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())]
    shown = {number for name in names for number in re.findall(r"(?<=_)([rq]\d{2,3})(?=_)", name)}
    ranges = [(int(first), int(last)) for name in names for first, last in re.findall(r"_r(\d{3})_to_r(\d{3})_", name)]
    shown |= {f"r{number:03}" for first, last in ranges for number in range(first, last + 1)}
    assert sorted(due - shown) == []
