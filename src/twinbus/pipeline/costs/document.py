"""What is shown, before it is known where: on a screen, or on a page.

Owns: the parts of a report: paragraphs, tables, charts. Knows nothing of costs, nor of HTML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts. Names of columns that begin with `>` are of numbers, which stand at the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    has_total: bool = False
    """The last row is the sum of the others."""

    def is_numeric(self, column: int) -> bool:
        """It stands at the right."""
        return self.columns[column].startswith(">")

    @property
    def headers(self) -> list[str]:
        """What is written above the columns."""
        return [name.removeprefix(">") for name in self.columns]


@dataclass(frozen=True, slots=True)
class BarChart:
    """A chart: one bar for each thing."""

    title: str
    bars: Sequence[tuple[str, float, str]]
    """What it is, how long its bar is, and what is written at its end."""


@dataclass(frozen=True, slots=True)
class StackedChart:
    """A chart over time: parts on top of each other."""

    title: str
    unit: str
    labels: Sequence[str]
    """Along the time."""
    series: Sequence[tuple[str, Sequence[float]]]
    """What it is, and its part at each place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Something under a heading."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[BarChart | StackedChart] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All of it."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    """What has to be known first: a name, and what it is."""
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()
