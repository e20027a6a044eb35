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
from twinbus.pipeline.source import planning
from twinbus.pipeline.source.batch import RangePartition
from twinbus.pipeline.source.offsets import Offsets, at_edge, check_losses, read_offsets
from twinbus.pipeline.source.options import EARLIEST, LATEST
from twinbus.pipeline.source.ranges import check_columns, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from twinbus.pipeline.source.entity import Entity
    from twinbus.pipeline.source.options import SourceOptions
    from twinbus.pipeline.source.positions import Positions

log: Final = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of one query."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """Pickled on its way to tasks: nothing is connected here. `columns` are those that the query's schema names."""
        check_columns(columns)
        if options.ending != LATEST:
            raise PipelineError("the option endingOffsets is for batches: a stream has no end")
        self._options = options
        self._columns = tuple(columns)
        self._entity: Entity | None = None
        self._target: Offsets | None = None
        """With a trigger that takes what is available now: where that ends."""
        self._initial: dict[str, object] | None = None
        """Where a new query begins, once Spark has asked."""
        self._is_start_known = not options.begins_late
        """The checkpoint has, or will have, where the query began."""

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs; the connection of the driver stays where it is."""
        return {**self.__dict__, "_entity": None}

    # --- asked between batches, in the driver's process ---------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:  # noqa: N802  # Spark's name
        """Where a new query begins: for this reader always the same."""
        if self._initial is None:
            positions = self._positions(needs_all=True)
            options = self._options
            self._initial = at_edge(options.entity, positions, options.starting, default=EARLIEST).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch is."""
        most = self._options.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where what is available now ends."""
        positions = self._positions(needs_all=True)
        self._target = at_edge(self._options.entity, positions, LATEST, default=LATEST)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """Where the next batch ends; `start` itself if there is nothing for one."""
        begin = read_offsets(start, self._options.entity)
        positions = self._positions()
        check_losses(begin, positions, self._options)
        if not self._is_start_known:
            self._is_start_known = True
            if start == self._initial:
                return start
        self._complete(begin, positions)
        end = self._end(begin, positions)
        if isinstance(limit, ReadMaxRows):
            end = end.moved(planning.limited(self._firsts(begin, end, positions), end.fragments, limit.max_rows))
        elif isinstance(limit, ReadMinRows) and self._target is None:
            waiting = sum(one.size for one in planning.ranges_between(begin, end))
            end = end if waiting >= limit.min_rows else begin
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        """For the query's progress."""
        positions = self._positions()
        return None if positions.down else at_edge(self._options.entity, positions, LATEST, default=LATEST).to_json()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[RangePartition]:
        """The ranges of a batch. After a restart Spark asks for the last one again, as it was.

        What was lost meanwhile shows here only: the next batch begins behind it.
        """
        entity, options = self._options.entity, self._options
        begin = read_offsets(start, entity)
        ranges = planning.ranges_between(begin, read_offsets(end, entity))
        if options.begins_late and start == self._initial:  # the first batch, again: what is latest now is behind it
            ranges = [one for one in ranges if begin.fragments[one.fragment] <= one.last]
        if not ranges:
            return []
        positions = self._positions()
        check_losses(begin, positions, options)
        ranges = planning.begin_at_low(ranges, positions)
        divided = planning.divide(
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

    def _positions(self, *, needs_all: bool = False) -> Positions:
        from twinbus.pipeline.source.entity import Entity  # noqa: PLC0415  # it starts the client's thread

        if self._entity is None:
            self._entity = Entity(self._options)
        self._entity.claim()
        positions = self._entity.positions()
        if positions.down and needs_all:
            raise PipelineError(
                f"fragment {positions.down[0]} of '{self._options.entity}' is not available now: where it begins "
                "and ends is not known; start the query again when its store works"
            )
        return positions

    def _complete(self, done: Offsets, positions: Positions) -> None:
        if self._options.completes and self._entity is not None:
            self._entity.complete(done.within(positions))

    def _end(self, begin: Offsets, positions: Positions) -> Offsets:
        """Up to where there is something, without a limit."""
        latest = at_edge(self._options.entity, positions, LATEST, default=LATEST)
        is_same = begin.entity_id == positions.entity_id
        found = dict(latest.fragments)
        for number in positions.down:
            log.warning("fragment %d of '%s' is not available now; the others are read", number, begin.entity)
            found[number] = begin.fragments.get(number, 0) if is_same else 0
        if self._target is not None and self._target.entity_id == positions.entity_id:
            at_start = begin.fragments if is_same else {}
            for number, end in found.items():
                now = min(end, self._target.fragments.get(number, end))
                reached = at_start.get(number, 0)
                found[number] = max(now, reached) if reached <= end else now  # behind the end: the log was restored
        return latest.moved(found)

    @staticmethod
    def _firsts(begin: Offsets, end: Offsets, positions: Positions) -> dict[int, int]:
        """Where each fragment's share of a batch is counted from: numbers below the first message are not there."""
        low = {one.number: one.low for one in positions.fragments if one.is_available}
        is_same = begin.entity_id == end.entity_id
        found = {}
        for fragment, last in end.fragments.items():
            first = begin.fragments.get(fragment, 0) if is_same else 0
            first = 0 if first > last else first
            found[fragment] = min(max(first, low.get(fragment, 0)), last)
        return found
