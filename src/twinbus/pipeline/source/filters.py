"""Filters of a query that say which fragments and which numbers it wants: what they leave out is not read at all.

Owns: what of Spark's filters can be told from a fragment and a number alone. Each that is taken is obeyed exactly, so
that Spark need not look again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from twinbus.pipeline.source.planning import Range

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_FRAGMENT: Final = ("fragment",)
_NUMBER: Final = ("sequenceNumber",)
_FAR: Final = 2**63


class Narrowing:
    """What a query wants of an entity."""

    def __init__(self) -> None:
        """Everything."""
        self._fragments: set[int] | None = None
        self._first = 0
        self._last = _FAR

    def take(self, one: Filter) -> bool:
        """Obey a filter from now on; False for one that is about something else."""
        column = getattr(one, "attribute", None)
        if column not in (_FRAGMENT, _NUMBER):
            return False
        if isinstance(one, IsNotNull):
            return True
        value = getattr(one, "value", None)
        if isinstance(one, In) and column == _FRAGMENT:
            return self._take_fragments({number for number in one.value if isinstance(number, int)})
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        if column == _FRAGMENT:
            return isinstance(one, EqualTo | EqualNullSafe) and self._take_fragments({value})
        return self._take_numbers(one, value)

    def _take_fragments(self, wanted: set[int]) -> bool:
        self._fragments = wanted if self._fragments is None else self._fragments & wanted
        return True

    def _take_numbers(self, one: Filter, value: int) -> bool:
        first, last = 0, _FAR
        if isinstance(one, EqualTo | EqualNullSafe):
            first = last = value
        elif isinstance(one, GreaterThan | GreaterThanOrEqual):
            first = value + isinstance(one, GreaterThan)
        elif isinstance(one, LessThan | LessThanOrEqual):
            last = value - isinstance(one, LessThan)
        else:
            return False
        self._first, self._last = max(self._first, first), min(self._last, last)
        return True

    def narrow(self, ranges: list[Range]) -> list[Range]:
        """What is left of ranges."""
        left = [
            Range(one.fragment, max(one.first, self._first), min(one.last, self._last), one.entity_id)
            for one in ranges
            if self._fragments is None or one.fragment in self._fragments
        ]
        return [one for one in left if one.size > 0]
