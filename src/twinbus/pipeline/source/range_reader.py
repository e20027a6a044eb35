"""One range of one fragment, read into record batches: what a task does.

    for batch in read_range(options, fragment=0, first=1, last=1000): ...

Owns: the browse link of a range, how much is on its way, and that a link which is lost goes on behind what was read. A
number that is not there any more is left out: somebody had its message meanwhile. The namespace says when a range is
over (`RangeSeen`), so that one whose last messages are gone ends as well. While nobody asks for the next batch nothing
runs: then the namespace sends until there is no more room, and waits.
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
"""In a row, without a single message between them."""


def read_range(
    options: SourceOptions, fragment: int, first: int, last: int, *, entity_id: int = 0
) -> Iterator[pa.RecordBatch]:
    """The messages of a fragment from one number to another, both included, in order.

    With `entity_id` another entity of the same name is not read: that is a loss of data. Not for a thread on which an
    asyncio loop runs.
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
        """Which entity of which namespace is read, for the ids of rows."""
        where = ConnectionString.parse(self._options.connection_string)
        return source_name(f"{where.host}:{where.amqp_port}", self._options.entity, self._entity_id)

    async def next_rows(self) -> ColumnBuffers | None:
        """As many as make a batch, or as are left; None if none are."""
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
        """Until something has arrived, or the link is over."""
        if link.failure is None:
            self._arrival_event.clear()
            try:
                async with asyncio.timeout(self._options.operation_timeout_s):
                    await self._arrival_event.wait()
            except TimeoutError:
                raise StoreUnavailable(
                    f"{self} gave nothing for {self._options.operation_timeout_s:g} s: it is down, or its disk does "
                    "not answer; the task may be tried again"
                ) from None
        elif isinstance(link.failure, RangeSeen):
            self._is_done = True
        else:
            await self._handle_link_failure(link.failure)

    async def _handle_link_failure(self, failure: ServiceBusError) -> None:
        """The link is over: go on with another, unless that is of no use."""
        self._failures += 1
        if not failure.is_retriable or self._failures > _MAX_FAILURES:
            raise failure
        log.warning("%s is read on with %d: %s", self, self._next_sequence_number, failure)
        self._link = None
        if self._browser is not None:
            await self._browser.close()

    async def _attach(self) -> ReceiverLink | None:
        """None if what arrives on it is of another entity, and that is no error."""
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
        """What was planned for one entity is not read from another of its name."""
        if self._entity_id in (0, positions["entity-id"]):
            self._entity_id = positions["entity-id"]  # one range is of one entity, also where the caller named none
            return True
        text = (
            f"'{self._options.entity}' was deleted and created again while it was read (its id was {self._entity_id}, "
            f"and is {positions['entity-id']}): what was not read before is gone"
        )
        if self._options.fails_on_data_loss:
            raise PipelineError(f"{text}; failOnDataLoss=false goes on with the new one")
        log.warning("%s", text)
        return False

    def __str__(self) -> str:
        return f"fragment {self._fragment} of '{self._options.entity}'"

    async def close(self) -> None:
        if self._factory is not None:
            await self._factory.close()


def check_columns(columns: Sequence[str]) -> None:
    """PipelineError where one is not there."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        what = f"has no column {unknown[0]!r:.60}" if unknown else "needs a column"
        raise PipelineError(f"servicebus {what}; it has {', '.join(COLUMNS)}")


def read_partition(
    options: SourceOptions, columns: Sequence[str], range_: FragmentRange | None
) -> Iterator[pa.RecordBatch]:
    """Read of a range of one fragment the columns that a query asked for: what tasks of batches and streams yield.

    Spark does not tell a source which columns a query uses. A user who names some by `schema(...)` has the others left
    out.
    """
    if range_ is None:
        return
    batches = read_range(options, range_.fragment, range_.first, range_.last, entity_id=range_.entity_id)
    is_all = tuple(columns) == COLUMNS
    for batch in batches:
        yield batch if is_all else batch.select(list(columns))
