"""Reading once: `spark.read.format("servicebus")`.

Owns: the ranges that lie between the offsets a user asked for, narrowed by what he filters by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source import planning
from twinbus.pipeline.source.filters import Narrowing
from twinbus.pipeline.source.offsets import at_edge
from twinbus.pipeline.source.options import EARLIEST, LATEST
from twinbus.pipeline.source.projection import check_columns, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from twinbus.pipeline.source.options import SourceOptions
    from twinbus.pipeline.source.planning import Range


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
        from twinbus.pipeline.source.losing import check_losses  # noqa: PLC0415  # the planner's, not the tasks'
        from twinbus.pipeline.source.positions import positions_of  # noqa: PLC0415

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
