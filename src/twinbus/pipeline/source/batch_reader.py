"""Batch queries: `spark.read.format("servicebus")`.

Owns the ranges between the requested offsets, narrowed by filters on fragment and sequence number.
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
    """The range that one task reads."""

    def __init__(self, value: FragmentRange) -> None:
        """Create a partition for `value`, which Spark pickles for the task."""
        super().__init__(value)
        self.value: FragmentRange = value


class BatchReader(DataSourceReader):
    """The reader of one batch query."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """Check the options. `columns` are the columns of the query's schema."""
        check_columns(columns)
        if options.completes_processed:
            raise PipelineError(
                "the option complete is for streams: a batch query does not learn when its rows were processed"
            )
        self._options = options
        self._columns = tuple(columns)
        self._pushdown = FilterPushdown()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Accept filters on fragment and sequence number. Return the other filters, which Spark applies."""
        return [filter_ for filter_ in filters if not self._pushdown.push(filter_)]

    def partitions(self) -> Sequence[RangePartition]:
        """Return the ranges of all fragments, split for tasks."""
        from twinbus.pipeline.source.positions import read_positions  # noqa: PLC0415  # not needed in tasks

        options = self._options
        positions = read_positions(options)
        if positions.unavailable_fragments:
            raise PipelineError(
                f"fragment {positions.unavailable_fragments[0]} of '{options.entity}' is not available: "
                "its messages cannot be "
                "read; try again when its store is back"
            )
        start = resolve_offsets(options.entity, positions, options.starting_offsets, default=EARLIEST)
        end = resolve_offsets(options.entity, positions, options.ending_offsets, default=LATEST)
        check_losses(start, positions, options)
        beyond = [span for span in positions.fragments if end.fragments[span.fragment] > span.next_sequence_number]
        if beyond:
            raise PipelineError(
                f"endingOffsets has {end.fragments[beyond[0].fragment]} for fragment {beyond[0].fragment} of "
                f"'{options.entity}', whose next sequence number is {beyond[0].next_sequence_number}"
            )
        ranges = [
            span for span in range_planner.ranges_between(start, end) if start.fragments[span.fragment] <= span.last
        ]
        ranges = range_planner.trim_to_low(self._pushdown.apply(ranges), positions)
        split = range_planner.split_ranges(
            ranges, min_partitions=options.min_partitions, max_per_partition=options.max_per_partition
        )
        return [RangePartition(span) for span in split]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition in a task. The partition of an empty entity has no range and yields nothing."""
        return read_partition(self._options, self._columns, partition.value)


# --- filter pushdown --------------------------------------------------------------------------------------------------

_FRAGMENT_COLUMN: Final = ("fragment",)
_NUMBER_COLUMN: Final = ("sequenceNumber",)
_MAX_NUMBER: Final = 2**63


class FilterPushdown:
    """Fragments and sequence numbers selected by a query's filters. Only selected messages are read.

    Accepted filters are applied exactly, so Spark need not apply them again.
    """

    def __init__(self) -> None:
        """Select everything."""
        self._fragments: set[int] | None = None
        self._first = 0
        self._last = _MAX_NUMBER

    def push(self, filter_: Filter) -> bool:
        """Add a filter. Return False if the filter is not supported."""
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
        """Return the selected parts of ranges."""
        selected = [
            FragmentRange(
                range_.fragment, max(range_.first, self._first), min(range_.last, self._last), range_.entity_id
            )
            for range_ in ranges
            if self._fragments is None or range_.fragment in self._fragments
        ]
        return [range_ for range_ in selected if range_.size > 0]
