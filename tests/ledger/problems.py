"""Broken promises as text: `kind: what happened`.

A campaign with real servers collects problems and reports them at the end (`Problems`). A simulation stops at the first
one, so that its seed repeats exactly that run (`FirstProblem` raises `Violation`).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

EACH_MAX: Final = 8
"""Problems of one kind that are kept as text; the others are counted."""


class Violation(Exception):
    """The broker did something that it must not do."""


class Problems:
    """The first few problems of each kind, and the number of all of them: no kind hides another."""

    def __init__(self, each_max: int = EACH_MAX) -> None:
        self.counts: Counter[str] = Counter()
        """All problems, by kind."""
        self._each_max = each_max
        self._kept: list[str] = []

    @property
    def texts(self) -> list[str]:
        """The problems that were kept, then one line for each kind of which there are more."""
        more = {kind: count - self._each_max for kind, count in self.counts.items() if count > self._each_max}
        return self._kept + [f"{kind}: {count:,} more of these" for kind, count in more.items()]

    def add(self, problem: str) -> None:
        kind = problem.partition(":")[0]
        self.counts[kind] += 1
        if self.counts[kind] <= self._each_max:
            self._kept.append(problem)


class FirstProblem(Problems):
    """The first problem ends the run."""

    def add(self, problem: str) -> None:
        raise Violation(problem)
