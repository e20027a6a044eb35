"""The parts of a report, independent of the output: paragraphs, tables and charts.

Owns these data classes. Knows nothing of costs, HTML or terminals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. A column name that begins with `>` marks a column of numbers, which is right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    has_total: bool = False
    """Whether the last row is the sum of the other rows."""

    def is_numeric(self, column: int) -> bool:
        """Return whether a column is right-aligned."""
        return self.columns[column].startswith(">")

    @property
    def headers(self) -> list[str]:
        """Column names without the alignment mark."""
        return [name.removeprefix(">") for name in self.columns]


@dataclass(frozen=True, slots=True)
class BarChart:
    """A bar chart."""

    title: str
    bars: Sequence[tuple[str, float, str]]
    """Name, length and label of each bar."""


@dataclass(frozen=True, slots=True)
class StackedChart:
    """A stacked chart over time."""

    title: str
    unit: str
    labels: Sequence[str]
    """Labels of the time axis."""
    series: Sequence[tuple[str, Sequence[float]]]
    """Name and values of each series, with one value per label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section with a heading."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[BarChart | StackedChart] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A complete report."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    """Names and values of the facts at the top."""
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()
