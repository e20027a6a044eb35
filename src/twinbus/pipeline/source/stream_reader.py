"""Reading for as long as a query runs: `spark.readStream.format("servicebus")`.

Owns: what Spark asks the driver between batches. Offsets go forward only as far as a limit allows; with a trigger that
takes what is available now, not beyond what there was at its begin. A fragment that is down stays where it is, and the
others go on.

What is processed: a batch begins where the last one ended, and is planned when that one is done. So whatever lies
before the offset from which Spark asks for more was processed, and is completed if the user wants it; that includes the
last batch of the run before.

Where a new query begins is in no checkpoint: Spark asks for it when it plans the first batch, when it runs that, and
again after a restart if that batch was not finished. `latest` is another number each time. So the first batch of a
query that begins there is empty: where it ends is in the checkpoint, and the second batch begins with that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source import range_planner
from twinbus.pipeline.source.batch_reader import RangePartition
from twinbus.pipeline.source.offsets import Offsets, check_losses, read_offsets, resolve_offsets
from twinbus.pipeline.source.options import EARLIEST, LATEST
from twinbus.pipeline.source.range_reader import check_columns, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from twinbus.pipeline.source.entity import SourceEntity
    from twinbus.pipeline.source.options import SourceOptions
    from twinbus.pipeline.source.positions import Positions

log: Final = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of one query."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """Pickled on its way to tasks: nothing is connected here. `columns` are those that the query's schema names."""
        check_columns(columns)
        if options.ending_offsets != LATEST:
            raise PipelineError("the option endingOffsets is for batches: a stream has no end")
        self._options = options
        self._columns = tuple(columns)
        self._entity: SourceEntity | None = None
        self._available_now_end: Offsets | None = None
        """With a trigger that takes what is available now: where that ends."""
        self._initial_offset: dict[str, object] | None = None
        """Where a new query begins, once Spark has asked."""
        self._is_start_in_checkpoint = not options.starts_at_latest
        """The checkpoint has, or will have, where the query began."""

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs; the connection of the driver stays where it is."""
        return {**self.__dict__, "_entity": None}

    # --- asked between batches, in the driver's process ---------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:  # noqa: N802  # Spark's name
        """Where a new query begins: for this reader always the same."""
        if self._initial_offset is None:
            positions = self._read_positions(requires_all=True)
            options = self._options
            self._initial_offset = resolve_offsets(
                options.entity, positions, options.starting_offsets, default=EARLIEST
            ).to_json()
        return self._initial_offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch is."""
        most = self._options.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where what is available now ends."""
        positions = self._read_positions(requires_all=True)
        self._available_now_end = resolve_offsets(self._options.entity, positions, LATEST, default=LATEST)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """Where the next batch ends; `start` itself if there is nothing for one."""
        begin = read_offsets(start, self._options.entity)
        positions = self._read_positions()
        check_losses(begin, positions, self._options)
        if not self._is_start_in_checkpoint:
            self._is_start_in_checkpoint = True
            if start == self._initial_offset:
                return start
        self._complete(begin, positions)
        end = self._available_end(begin, positions)
        if isinstance(limit, ReadMaxRows):
            end = end.with_fragments(
                range_planner.limit_offsets(self._first_numbers(begin, end, positions), end.fragments, limit.max_rows)
            )
        elif isinstance(limit, ReadMinRows) and self._available_now_end is None:
            waiting = sum(one.size for one in range_planner.ranges_between(begin, end))
            end = end if waiting >= limit.min_rows else begin
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        """For the query's progress."""
        positions = self._read_positions()
        return (
            None
            if positions.unavailable_fragments
            else resolve_offsets(self._options.entity, positions, LATEST, default=LATEST).to_json()
        )

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[RangePartition]:
        """The ranges of a batch. After a restart Spark asks for the last one again, as it was.

        What was lost meanwhile shows here only: the next batch begins behind it.
        """
        entity, options = self._options.entity, self._options
        begin = read_offsets(start, entity)
        ranges = range_planner.ranges_between(begin, read_offsets(end, entity))
        if (
            options.starts_at_latest and start == self._initial_offset
        ):  # the first batch, again: what is latest now is behind it
            ranges = [one for one in ranges if begin.fragments[one.fragment] <= one.last]
        if not ranges:
            return []
        positions = self._read_positions()
        check_losses(begin, positions, options)
        ranges = range_planner.trim_to_low(ranges, positions)
        divided = range_planner.split_ranges(
            ranges, min_partitions=options.min_partitions, max_per_partition=options.max_per_partition
        )
        return [RangePartition(one) for one in divided]

    def commit(self, end: dict[str, object]) -> None:
        """Nothing: what lies before `end` was completed when Spark asked for more from there.

        Later it cannot be told from a log that was restored and has grown behind `end` since, with messages unread.
        """

    def stop(self) -> None:
        """The query is over."""
        if self._entity is not None:
            self._entity.close()
            self._entity = None

    # --- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range."""
        return read_partition(self._options, self._columns, partition.value)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _read_positions(self, *, requires_all: bool = False) -> Positions:
        from twinbus.pipeline.source.entity import SourceEntity  # noqa: PLC0415  # it starts the client's thread

        if self._entity is None:
            self._entity = SourceEntity(self._options)
        self._entity.acquire()
        positions = self._entity.positions()
        if positions.unavailable_fragments and requires_all:
            raise PipelineError(
                f"fragment {positions.unavailable_fragments[0]} of '{self._options.entity}' is not available "
                "now: where it begins "
                "and ends is not known; start the query again when its store works"
            )
        return positions

    def _complete(self, processed: Offsets, positions: Positions) -> None:
        if self._options.completes_processed and self._entity is not None:
            self._entity.complete(processed.limited_to(positions))

    def _available_end(self, start: Offsets, positions: Positions) -> Offsets:
        """Up to where there is something, without a limit."""
        latest = resolve_offsets(self._options.entity, positions, LATEST, default=LATEST)
        is_same = start.entity_id == positions.entity_id
        found = dict(latest.fragments)
        for number in positions.unavailable_fragments:
            log.warning("fragment %d of '%s' is not available now; the others are read", number, start.entity)
            found[number] = start.fragments.get(number, 0) if is_same else 0
        if self._available_now_end is not None and self._available_now_end.entity_id == positions.entity_id:
            at_start = start.fragments if is_same else {}
            for number, end in found.items():
                now = min(end, self._available_now_end.fragments.get(number, end))
                reached = at_start.get(number, 0)
                found[number] = max(now, reached) if reached <= end else now  # behind the end: the log was restored
        return latest.with_fragments(found)

    @staticmethod
    def _first_numbers(start: Offsets, end: Offsets, positions: Positions) -> dict[int, int]:
        """Where each fragment's share of a batch is counted from: numbers below the first message are not there."""
        low = {one.fragment: one.low_sequence_number for one in positions.fragments if one.is_available}
        is_same = start.entity_id == end.entity_id
        found = {}
        for fragment, last in end.fragments.items():
            first = start.fragments.get(fragment, 0) if is_same else 0
            first = 0 if first > last else first
            found[fragment] = min(max(first, low.get(fragment, 0)), last)
        return found
