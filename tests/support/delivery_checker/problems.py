"""Violated guarantees as text: `kind: what happened`.

A campaign with real servers collects problems and reports them at the end (`Problems`). A simulation stops at the first
problem (`Violation`), and its seed reproduces the run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

MAX_PER_KIND: Final = 8


class Violation(Exception):
    """The broker has violated a guarantee."""


@dataclass
class Problems:
    """The first problems of each kind, and the number of problems of each kind, so that no kind hides another."""

    max_per_kind: int = MAX_PER_KIND
    """Problems of one kind that are kept as text; further ones are only counted."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of problems by kind."""
    texts: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """The kept problems, and one line for each kind that has more."""
        omitted = {kind: count - self.max_per_kind for kind, count in self.counts.items() if count > self.max_per_kind}
        return self.texts + [f"{kind}: {count:,} more of these" for kind, count in omitted.items()]

    def add(self, text: str) -> None:
        kind = text.partition(":")[0]
        self.counts[kind] += 1
        if self.counts[kind] <= self.max_per_kind:
            self.texts.append(text)
