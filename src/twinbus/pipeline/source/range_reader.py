"""Reader of one range of a fragment into record batches, in a task.

    for batch in read_range(options, fragment=0, first=1, last=1000): ...

Owns the browse link for a range, its credit, and the recovery from a lost link: reading resumes after the last message
that was read. Missing sequence numbers are skipped: their messages were received. The namespace reports the end of a
range (`RangeSeen`), so reading stops even if the last messages of the range are gone. While Spark processes a batch,
the reader does not run, and the namespace sends messages until the credit is used up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import uvloop

from twinbus.client import ConnectionString
from twinbus.client.browser import MessageBrowser
from twinbus.model.errors import RangeSeen, ServiceBusError, StoreUnavailable
from twinbus.pipeline.column_buffers import ColumnBuffers
from twinbus.pipeline.columns import COLUMNS, source_name, to_record_batch
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.options import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.pipeline.source.options import SourceOptions
    from twinbus.pipeline.source.range_planner import FragmentRange

log: Final = logging.getLogger(__name__)

BATCH_ROWS: Final = 4_000
BATCH_BYTES: Final = 8 * 1_048_576
_MAX_FAILURES: Final = 5
"""Maximum number of consecutive link failures without a message in between."""


def read_range(
    options: SourceOptions, fragment: int, first: int, last: int, *, entity_id: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the messages in a fragment from `first` to `last` (inclusive), in order.

    If `entity_id` is given and the entity was recreated under the same name, the messages of the new entity are not
    read, and the data loss is reported. Must not be called on a thread with a running asyncio loop.
    """
    if first > last:
        return
    loop = uvloop.new_event_loop()
    reader = _RangeReader(options, fragment, first, last, entity_id)
    try:
        while (rows := loop.run_until_complete(reader.next_rows())) is not None:
            yield to_record_batch(rows, fragment, reader.source)
    finally:
        loop.run_until_complete(reader.close())
        loop.close()


class _RangeReader:
    def __init__(self, options: SourceOptions, fragment: int, first: int, last: int, entity_id: int) -> None:
        self._options = options
        self._fragment = fragment
        self._next_sequence_number = first
        self._last_sequence_number = last
        self._entity_id = entity_id
        self._factory = None if first > last else connect(options)
        self._browser: MessageBrowser | None = None
        self._link: ReceiverLink | None = None
        self._arrival_event = asyncio.Event()
        self._failures = 0
        self._is_done = False

    @property
    def source(self) -> str:
        """Namespace and entity that are read, for the source ids of rows."""
        endpoint = ConnectionString.parse(self._options.connection_string)
        return source_name(f"{endpoint.host}:{endpoint.amqp_port}", self._options.entity, self._entity_id)

    async def next_rows(self) -> ColumnBuffers | None:
        """Return the rows of the next batch, or None at the end of the range."""
        rows = ColumnBuffers(with_properties=self._options.with_properties)
        while not self._is_done:
            link = await self._attach()
            if link is None:
                self._is_done = True
                break
            self._take_arrived(link, rows)
            if rows.row_count >= BATCH_ROWS or rows.body_bytes >= BATCH_BYTES:
                break
            if self._next_sequence_number > self._last_sequence_number:
                self._is_done = True
            elif not link.arrived:
                await self._wait_for_arrival(link)
        return rows if rows.row_count else None

    def _take_arrived(self, link: ReceiverLink, rows: ColumnBuffers) -> None:
        taken = rows.take_deliveries(link.arrived, BATCH_ROWS, BATCH_BYTES)
        if taken:
            self._next_sequence_number, self._failures = rows.sequence_number[-1] + 1, 0
            link.mark_taken(taken)
        if link.credit * 2 <= self._options.prefetch:
            link.grant(self._options.prefetch)

    async def _wait_for_arrival(self, link: ReceiverLink) -> None:
        """Wait until messages have arrived. If the link has failed, finish the range or prepare a new link."""
        if link.failure is None:
            self._arrival_event.clear()
            try:
                async with asyncio.timeout(self._options.operation_timeout_s):
                    await self._arrival_event.wait()
            except TimeoutError:
                raise StoreUnavailable(
                    f"{self} delivered nothing for {self._options.operation_timeout_s:g} s: its store is down, or its "
                    "disk does not respond; retry the task"
                ) from None
        elif isinstance(link.failure, RangeSeen):
            self._is_done = True
        else:
            await self._handle_link_failure(link.failure)

    async def _handle_link_failure(self, failure: ServiceBusError) -> None:
        """Close a failed link, so that the next call to `_attach` creates a new link.

        Raise the error if another attempt would fail as well.
        """
        self._failures += 1
        if not failure.is_retriable or self._failures > _MAX_FAILURES:
            raise failure
        log.warning("reading %s again from %d: %s", self, self._next_sequence_number, failure)
        self._link = None
        if self._browser is not None:
            await self._browser.close()

    async def _attach(self) -> ReceiverLink | None:
        """Return the attached link, or None if the entity was recreated and failOnDataLoss is false."""
        if self._link is not None:
            return self._link
        assert self._factory is not None
        self._browser = browser = MessageBrowser(
            self._factory,
            self._options.entity,
            from_sequence_number=self._next_sequence_number,
            to_sequence_number=self._last_sequence_number,
            fragment=self._fragment,
            prefetch=self._options.prefetch,
        )
        self._link = link = await browser.link()
        link.on_arrival = self._arrival_event.set
        return link if self._is_planned_entity(await browser.positions()) else None

    def _is_planned_entity(self, positions: dict[str, int]) -> bool:
        """Return whether the range was planned for this entity. Raise PipelineError if data was lost."""
        if self._entity_id in (0, positions["entity-id"]):
            self._entity_id = positions["entity-id"]  # pin the entity for the rest of the range
            return True
        text = (
            f"'{self._options.entity}' was deleted and created again while it was read (its id was {self._entity_id} "
            f"and is now {positions['entity-id']}): its unread messages are gone"
        )
        if self._options.fails_on_data_loss:
            raise PipelineError(f"{text}; set failOnDataLoss=false to continue with the new one")
        log.warning("%s", text)
        return False

    def __str__(self) -> str:
        return f"fragment {self._fragment} of '{self._options.entity}'"

    async def close(self) -> None:
        if self._factory is not None:
            await self._factory.close()


def check_columns(columns: Sequence[str]) -> None:
    """Raise PipelineError if `columns` is empty or contains an unknown column."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        problem = f"has no column {unknown[0]!r:.60}" if unknown else "needs a column"
        raise PipelineError(f"servicebus {problem}; it has {', '.join(COLUMNS)}")


def read_partition(
    options: SourceOptions, columns: Sequence[str], range_: FragmentRange | None
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of a query for a range of one fragment. Tasks of batch and streaming queries run this.

    Spark does not tell a source which columns a query uses. Columns missing from a user's `schema(...)` are left out.
    """
    if range_ is None:
        return
    batches = read_range(options, range_.fragment, range_.first, range_.last, entity_id=range_.entity_id)
    has_all_columns = tuple(columns) == COLUMNS
    for batch in batches:
        yield batch if has_all_columns else batch.select(list(columns))
