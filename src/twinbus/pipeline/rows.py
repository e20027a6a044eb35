"""Messages gathered by columns, until there are enough for a record batch.

Owns: the lists that columns are made of. Of a column that most messages have nothing in, nothing is kept for these.
Knows nothing of Arrow: `columns` makes record batches of what is gathered here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline.properties import Entry, entry_of
from twinbus.pipeline.row import DATA, Row, read_row

if TYPE_CHECKING:
    from collections import deque

    from twinbus.amqp.delivery import IncomingDelivery

_REASON: Final = "DeadLetterReason"
_DESCRIPTION: Final = "DeadLetterErrorDescription"


class Sparse:
    """A column that is empty in most rows: nothing is kept of those behind the last that is not."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        """Nothing in it."""
        self.values: list[object] = []

    def put(self, row: int, value: object) -> None:
        """What is in a row; rows come in order, each of them once."""
        values = self.values
        missing = row - len(values)
        if missing > 0:
            values.extend([None] * missing)
        values.append(value)

    def filled(self, rows: int) -> list[object]:
        """One value for each row."""
        return self.values + [None] * (rows - len(self.values))


class Rows:
    """Some messages, by columns. Moments are microseconds since 1970."""

    def __init__(self, *, with_properties: bool = True) -> None:
        """None yet. Without properties there is no column of these, but reasons for dead-lettering are read."""
        self.count = 0
        self.size = 0
        """Bytes of bodies."""
        self.with_properties = with_properties
        self.body: list[bytes | None] = []
        self.body_type: list[str | None] = []
        self.is_mixed = False
        """There are bodies that are no data."""
        self.message_id: list[str | None] = []
        self.enqueued: list[int | None] = []
        self.sequence_number: list[int] = []
        self.delivery_count: list[int] = []
        self.session_id = Sparse()
        self.correlation_id = Sparse()
        self.content_type = Sparse()
        self.label = Sparse()
        self.to = Sparse()
        self.reply_to = Sparse()
        self.reply_to_session_id = Sparse()
        self.partition_key = Sparse()
        self.ttl_ms = Sparse()
        self.scheduled = Sparse()
        self.expires = Sparse()
        self.enqueued_sequence_number = Sparse()
        self.reason = Sparse()
        self.description = Sparse()
        self.source = Sparse()
        self.offsets: list[int] = [0]
        """Where each row's properties begin, and end."""
        self.names: list[str] = []
        self.entries: list[Entry] = []

    def add(self, payload: bytes) -> int:
        """One more encoded message; its sequence number, 0 if it says none."""
        row = read_row(payload)
        self._put(row)
        return row.sequence_number

    def take(self, arrived: deque[IncomingDelivery], most: int, most_bytes: int) -> list[IncomingDelivery]:
        """Deliveries that have arrived, from the first on, until there are so many rows, or bytes; those that were."""
        taken: list[IncomingDelivery] = []
        while arrived and self.count < most and self.size < most_bytes:
            delivery = arrived.popleft()
            self._put(read_row(delivery.payload))
            taken.append(delivery)
        return taken

    def _put(self, row: Row) -> None:
        body, at = row.body, self.count
        self.body.append(body)
        self.body_type.append(row.body_type)
        self.message_id.append(row.message_id)
        self.enqueued.append(row.enqueued)
        self.sequence_number.append(row.sequence_number)
        self.delivery_count.append(row.delivery_count)
        if body is not None:
            self.size += len(body)
        if row.body_type is not DATA:
            self.is_mixed = True
        self._put_texts(at, row)
        self._put_numbers(at, row)
        if row.properties:
            self._put_properties(at, row.properties)
        self.offsets.append(len(self.names))
        self.count = at + 1

    def _put_texts(self, at: int, row: Row) -> None:
        if row.session_id is not None:
            self.session_id.put(at, row.session_id)
        if row.correlation_id is not None:
            self.correlation_id.put(at, row.correlation_id)
        if row.content_type is not None:
            self.content_type.put(at, row.content_type)
        if row.label is not None:
            self.label.put(at, row.label)
        if row.to is not None:
            self.to.put(at, row.to)
        if row.reply_to is not None:
            self.reply_to.put(at, row.reply_to)
        if row.reply_to_session_id is not None:
            self.reply_to_session_id.put(at, row.reply_to_session_id)
        if row.partition_key is not None:
            self.partition_key.put(at, row.partition_key)
        if row.source is not None:
            self.source.put(at, row.source)

    def _put_numbers(self, at: int, row: Row) -> None:
        if row.ttl_ms >= 0:
            self.ttl_ms.put(at, row.ttl_ms)
        if row.expires is not None:
            self.expires.put(at, row.expires)
        if row.scheduled is not None:
            self.scheduled.put(at, row.scheduled)
        if row.enqueued_sequence_number >= 0:
            self.enqueued_sequence_number.put(at, row.enqueued_sequence_number)

    def _put_properties(self, at: int, properties: dict[object, object]) -> None:
        reason, description = properties.get(_REASON), properties.get(_DESCRIPTION)
        if isinstance(reason, str):
            self.reason.put(at, str(reason))
        if isinstance(description, str):
            self.description.put(at, str(description))
        if self.with_properties:
            for name, value in properties.items():
                self.names.append(str(name))
                self.entries.append(entry_of(value))
