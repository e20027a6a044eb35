"""The recorded mutations: one deliberate fault in the sources each, and the tests that must notice it.

The `*.toml` files beside this one hold them. A mutation replaces a text that occurs exactly once in a file; if a change
removes that text, `tests/repository/test_mutations.py` fails.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault, and the tests that fail with it."""

    topic: str
    """The name of its `.toml` file."""
    statement: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Return the file's text with the fault; raise ValueError unless the old text occurs exactly once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.statement}: the old text occurs {count} times in {self.file}: {self.old!r}")
        return text.replace(self.old, self.new)


def load() -> list[Mutation]:
    """Return all mutations, by topic."""
    return [
        Mutation(path.stem, **{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(FOLDER.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutation"]
    ]
