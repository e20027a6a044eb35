"""Reading once: `spark.read.format("servicebus")`.

Owns: the ranges that lie between the offsets a user asked for, narrowed by what he filters by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source import planning
from twinbus.pipeline.source.offsets import at_edge, check_losses
from twinbus.pipeline.source.options import EARLIEST, LATEST
from twinbus.pipeline.source.planning import Range
from twinbus.pipeline.source.ranges import check_columns, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from twinbus.pipeline.source.options import SourceOptions


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, value: Range) -> None:
        """Pickled on its way to the task."""
        super().__init__(value)
        self.value: Range = value


class BatchReader(DataSourceReader):
    """Of one query."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """`columns` are those that the query's schema names."""
        check_columns(columns)
        if options.completes:
            raise PipelineError("the option complete is for streams: a batch is never told that it was processed")
        self._options = options
        self._columns = tuple(columns)
        self._narrowing = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take those that say which fragments and numbers; the others are Spark's."""
        return [one for one in filters if not self._narrowing.take(one)]

    def partitions(self) -> Sequence[RangePartition]:
        """One for each fragment, or more."""
        from twinbus.pipeline.source.positions import positions_of  # noqa: PLC0415  # the planner's, not the tasks'

        options = self._options
        positions = positions_of(options)
        if positions.down:
            raise PipelineError(
                f"fragment {positions.down[0]} of '{options.entity}' is not available now: what it holds cannot be "
                "read; try again when its store works"
            )
        start = at_edge(options.entity, positions, options.starting, default=EARLIEST)
        end = at_edge(options.entity, positions, options.ending, default=LATEST)
        check_losses(start, positions, options)
        beyond = [one for one in positions.fragments if end.fragments[one.number] > one.next]
        if beyond:
            raise PipelineError(
                f"endingOffsets has {end.fragments[beyond[0].number]} for fragment {beyond[0].number} of "
                f"'{options.entity}', which ends before {beyond[0].next}"
            )
        ranges = [one for one in planning.ranges_between(start, end) if start.fragments[one.fragment] <= one.last]
        ranges = planning.begin_at_low(self._narrowing.narrow(ranges), positions)
        divided = planning.divide(
            ranges, min_partitions=options.min_partitions, max_per_partition=options.max_per_partition
        )
        return [RangePartition(one) for one in divided]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task. An entity without messages has one partition, of nothing."""
        return read_partition(self._options, self._columns, partition.value)


# --- filters of a query -----------------------------------------------------------------------------------------------

_FRAGMENT: Final = ("fragment",)
_NUMBER: Final = ("sequenceNumber",)
_FAR: Final = 2**63


class Narrowing:
    """Which fragments and numbers a query wants of an entity: what its filters leave out is not read at all.

    Each filter that is taken is obeyed exactly, so that Spark need not look again.
    """

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
