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
from twinbus.pipeline.source import range_planner
from twinbus.pipeline.source.offsets import check_losses, resolve_offsets
from twinbus.pipeline.source.options import EARLIEST, LATEST
from twinbus.pipeline.source.range_planner import FragmentRange
from twinbus.pipeline.source.range_reader import check_columns, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from twinbus.pipeline.source.options import SourceOptions


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, value: FragmentRange) -> None:
        """Pickled on its way to the task."""
        super().__init__(value)
        self.value: FragmentRange = value


class BatchReader(DataSourceReader):
    """Of one query."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """`columns` are those that the query's schema names."""
        check_columns(columns)
        if options.completes_processed:
            raise PipelineError("the option complete is for streams: a batch is never told that it was processed")
        self._options = options
        self._columns = tuple(columns)
        self._pushdown = FilterPushdown()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take those that say which fragments and numbers; the others are Spark's."""
        return [one for one in filters if not self._pushdown.push(one)]

    def partitions(self) -> Sequence[RangePartition]:
        """One for each fragment, or more."""
        from twinbus.pipeline.source.positions import read_positions  # noqa: PLC0415  # the planner's, not the tasks'

        options = self._options
        positions = read_positions(options)
        if positions.unavailable_fragments:
            raise PipelineError(
                f"fragment {positions.unavailable_fragments[0]} of '{options.entity}' is not available now: "
                "what it holds cannot be "
                "read; try again when its store works"
            )
        start = resolve_offsets(options.entity, positions, options.starting_offsets, default=EARLIEST)
        end = resolve_offsets(options.entity, positions, options.ending_offsets, default=LATEST)
        check_losses(start, positions, options)
        beyond = [one for one in positions.fragments if end.fragments[one.fragment] > one.next_sequence_number]
        if beyond:
            raise PipelineError(
                f"endingOffsets has {end.fragments[beyond[0].fragment]} for fragment {beyond[0].fragment} of "
                f"'{options.entity}', which ends before {beyond[0].next_sequence_number}"
            )
        ranges = [one for one in range_planner.ranges_between(start, end) if start.fragments[one.fragment] <= one.last]
        ranges = range_planner.trim_to_low(self._pushdown.apply(ranges), positions)
        divided = range_planner.split_ranges(
            ranges, min_partitions=options.min_partitions, max_per_partition=options.max_per_partition
        )
        return [RangePartition(one) for one in divided]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task. An entity without messages has one partition, of nothing."""
        return read_partition(self._options, self._columns, partition.value)


# --- filters of a query -----------------------------------------------------------------------------------------------

_FRAGMENT_COLUMN: Final = ("fragment",)
_NUMBER_COLUMN: Final = ("sequenceNumber",)
_MAX_NUMBER: Final = 2**63


class FilterPushdown:
    """Which fragments and numbers a query wants of an entity: what its filters leave out is not read at all.

    Each filter that is taken is obeyed exactly, so that Spark need not look again.
    """

    def __init__(self) -> None:
        """Everything."""
        self._fragments: set[int] | None = None
        self._first = 0
        self._last = _MAX_NUMBER

    def push(self, filter_: Filter) -> bool:
        """Obey a filter from now on; False for one that is about something else."""
        column = getattr(filter_, "attribute", None)
        if column not in (_FRAGMENT_COLUMN, _NUMBER_COLUMN):
            return False
        if isinstance(filter_, IsNotNull):
            return True
        value = getattr(filter_, "value", None)
        if isinstance(filter_, In) and column == _FRAGMENT_COLUMN:
            return self._restrict_fragments({number for number in filter_.value if isinstance(number, int)})
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        if column == _FRAGMENT_COLUMN:
            return isinstance(filter_, EqualTo | EqualNullSafe) and self._restrict_fragments({value})
        return self._restrict_numbers(filter_, value)

    def _restrict_fragments(self, fragments: set[int]) -> bool:
        self._fragments = fragments if self._fragments is None else self._fragments & fragments
        return True

    def _restrict_numbers(self, filter_: Filter, value: int) -> bool:
        first, last = 0, _MAX_NUMBER
        if isinstance(filter_, EqualTo | EqualNullSafe):
            first = last = value
        elif isinstance(filter_, GreaterThan | GreaterThanOrEqual):
            first = value + isinstance(filter_, GreaterThan)
        elif isinstance(filter_, LessThan | LessThanOrEqual):
            last = value - isinstance(filter_, LessThan)
        else:
            return False
        self._first, self._last = max(self._first, first), min(self._last, last)
        return True

    def apply(self, ranges: list[FragmentRange]) -> list[FragmentRange]:
        """What is left of ranges."""
        left = [
            FragmentRange(one.fragment, max(one.first, self._first), min(one.last, self._last), one.entity_id)
            for one in ranges
            if self._fragments is None or one.fragment in self._fragments
        ]
        return [one for one in left if one.size > 0]
