"""Streaming queries: `spark.readStream.format("servicebus")`.

Owns the calls that Spark makes in the driver between batches. Offsets advance up to the batch limit. With the trigger
`availableNow`, offsets do not advance beyond the end of the entity at query startup. An unavailable fragment keeps its
offset while other fragments advance.

Completion: a batch begins where the previous batch ended, and is planned after the previous batch is processed. So all
messages before the start offset that Spark passes have been processed, including the last batch of the previous run.
These messages are completed if the options require it.

The start offset of a new query is not in its checkpoint. Spark asks for the start offset when planning the first batch,
when running that batch, and after a restart if the batch did not finish. With `latest` the result would differ each
time. The first batch of such a query is therefore empty: its end is in the checkpoint, and the second batch begins
there.
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
    """The reader of one streaming query."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """Check the options. `columns` are the columns of the query's schema.

        Spark pickles the reader to send it to tasks, so the constructor opens no connection.
        """
        check_columns(columns)
        if options.ending_offsets != LATEST:
            raise PipelineError("the option endingOffsets is for batches: a stream has no end")
        self._options = options
        self._columns = tuple(columns)
        self._entity: SourceEntity | None = None
        self._available_now_end: Offsets | None = None
        """With the trigger `availableNow`: the end of the messages to read."""
        self._initial_offset: dict[str, object] | None = None
        """Start offset of a new query, once Spark has requested it."""
        self._is_start_in_checkpoint = not options.starts_at_latest
        """Whether the checkpoint contains, or will contain, the start of the query."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that a task needs, without the driver's connection."""
        return {**self.__dict__, "_entity": None}

    # --- called between batches, in the driver ------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:  # noqa: N802  # Spark's name
        """Return the start offset of a new query. The result is the same for every call."""
        if self._initial_offset is None:
            positions = self._read_positions(requires_all=True)
            options = self._options
            self._initial_offset = resolve_offsets(
                options.entity, positions, options.starting_offsets, default=EARLIEST
            ).to_json()
        return self._initial_offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum size of a batch."""
        max_rows = self._options.max_per_trigger
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the current end of the entity as the end of the query."""
        positions = self._read_positions(requires_all=True)
        self._available_now_end = resolve_offsets(self._options.entity, positions, LATEST, default=LATEST)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """Return the end of the next batch, or `start` if there is nothing to read."""
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
            pending = sum(range_.size for range_ in range_planner.ranges_between(begin, end))
            end = end if pending >= limit.min_rows else begin
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        """Return the current end of the entity, for the query's progress report."""
        positions = self._read_positions()
        return (
            None
            if positions.unavailable_fragments
            else resolve_offsets(self._options.entity, positions, LATEST, default=LATEST).to_json()
        )

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[RangePartition]:
        """Return the ranges in a batch. After a restart, Spark requests the last batch again, unchanged.

        Data lost in the meantime is detected only here, because the next batch begins after the loss.
        """
        entity, options = self._options.entity, self._options
        begin = read_offsets(start, entity)
        ranges = range_planner.ranges_between(begin, read_offsets(end, entity))
        if (
            options.starts_at_latest and start == self._initial_offset
        ):  # the first batch is repeated: the latest offset is now after its end
            ranges = [range_ for range_ in ranges if begin.fragments[range_.fragment] <= range_.last]
        if not ranges:
            return []
        positions = self._read_positions()
        check_losses(begin, positions, options)
        ranges = range_planner.trim_to_low(ranges, positions)
        split = range_planner.split_ranges(
            ranges, min_partitions=options.min_partitions, max_per_partition=options.max_per_partition
        )
        return [RangePartition(range_) for range_ in split]

    def commit(self, end: dict[str, object]) -> None:
        """Do nothing: `latestOffset` has already completed the messages before `end`.

        A later completion would be unsafe: a log that was restored and has grown beyond `end` may hold unread messages
        there.
        """

    def stop(self) -> None:
        """Close the connection when the query stops."""
        if self._entity is not None:
            self._entity.close()
            self._entity = None

    # --- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages in one range."""
        return read_partition(self._options, self._columns, partition.value)

    # --- internals ----------------------------------------------------------------------------------------------------

    def _read_positions(self, *, requires_all: bool = False) -> Positions:
        from twinbus.pipeline.source.entity import SourceEntity  # noqa: PLC0415  # it starts the client's thread

        if self._entity is None:
            self._entity = SourceEntity(self._options)
        self._entity.acquire()
        positions = self._entity.positions()
        if positions.unavailable_fragments and requires_all:
            raise PipelineError(
                f"fragment {positions.unavailable_fragments[0]} of '{self._options.entity}' is not available: "
                "where it begins "
                "and ends is unknown; start the query again when its store is back"
            )
        return positions

    def _complete(self, processed: Offsets, positions: Positions) -> None:
        if self._options.completes_processed and self._entity is not None:
            self._entity.complete(processed.limited_to(positions))

    def _available_end(self, start: Offsets, positions: Positions) -> Offsets:
        """Return the end of the readable messages, ignoring the batch limit."""
        latest = resolve_offsets(self._options.entity, positions, LATEST, default=LATEST)
        is_same_entity = start.entity_id == positions.entity_id
        ends = dict(latest.fragments)
        for number in positions.unavailable_fragments:
            log.warning("fragment %d of '%s' is not available; reading the others", number, start.entity)
            ends[number] = start.fragments.get(number, 0) if is_same_entity else 0
        if self._available_now_end is not None and self._available_now_end.entity_id == positions.entity_id:
            at_start = start.fragments if is_same_entity else {}
            for number, end in ends.items():
                limited = min(end, self._available_now_end.fragments.get(number, end))
                reached = at_start.get(number, 0)
                ends[number] = max(limited, reached) if reached <= end else limited  # beyond the end: a restored log
        return latest.with_fragments(ends)

    @staticmethod
    def _first_numbers(start: Offsets, end: Offsets, positions: Positions) -> dict[int, int]:
        """Return, for each fragment, the first sequence number that counts towards the fragment's share of a batch.

        Numbers before the first existing message do not count.
        """
        low = {
            position.fragment: position.low_sequence_number for position in positions.fragments if position.is_available
        }
        is_same = start.entity_id == end.entity_id
        first_numbers = {}
        for fragment, last in end.fragments.items():
            first = start.fragments.get(fragment, 0) if is_same else 0
            first = 0 if first > last else first
            first_numbers[fragment] = min(max(first, low.get(fragment, 0)), last)
        return first_numbers
