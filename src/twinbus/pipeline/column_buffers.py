"""Buffers that collect messages column by column until there are enough for a record batch.

Owns the lists that columns are built from. A sparse column stores nothing for the rows after its last value. Knows
nothing of Arrow: `columns` builds record batches from these buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline.message_row import BODY_DATA, MessageRow, read_row
from twinbus.pipeline.properties import PropertyEntry, to_entry

if TYPE_CHECKING:
    from collections import deque

    from twinbus.amqp.delivery import IncomingDelivery

_REASON_PROPERTY: Final = "DeadLetterReason"
_DESCRIPTION_PROPERTY: Final = "DeadLetterErrorDescription"


class SparseColumn:
    """A column that is null in most rows; nulls after the last value are not stored."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        """Create an empty column."""
        self.values: list[object] = []

    def put(self, row_index: int, value: object) -> None:
        """Set the value of a row. Rows must come in ascending order, each at most once."""
        values = self.values
        missing = row_index - len(values)
        if missing > 0:
            values.extend([None] * missing)
        values.append(value)

    def filled(self, row_count: int) -> list[object]:
        """Return one value per row, padded with None up to `row_count`."""
        return self.values + [None] * (row_count - len(self.values))


class ColumnBuffers:
    """Messages as columns. Times are in microseconds since 1970."""

    def __init__(self, *, with_properties: bool = True) -> None:
        """Create empty buffers.

        If `with_properties` is False, only the dead-letter reason and description are read from application properties.
        """
        self.row_count = 0
        self.body_bytes = 0
        """Total size of all bodies."""
        self.with_properties = with_properties
        self.body: list[bytes | None] = []
        self.body_type: list[str | None] = []
        self.has_other_body_types = False
        """Whether any message has no body, or a body that does not consist of AMQP data sections."""
        self.message_id: list[str | None] = []
        self.enqueued_time_us: list[int | None] = []
        self.sequence_number: list[int] = []
        self.delivery_count: list[int] = []
        self.session_id = SparseColumn()
        self.correlation_id = SparseColumn()
        self.content_type = SparseColumn()
        self.label = SparseColumn()
        self.to = SparseColumn()
        self.reply_to = SparseColumn()
        self.reply_to_session_id = SparseColumn()
        self.partition_key = SparseColumn()
        self.ttl_ms = SparseColumn()
        self.scheduled_time_us = SparseColumn()
        self.expires_at_us = SparseColumn()
        self.enqueued_sequence_number = SparseColumn()
        self.dead_letter_reason = SparseColumn()
        self.dead_letter_description = SparseColumn()
        self.dead_letter_source = SparseColumn()
        self.property_offsets: list[int] = [0]
        """Offset of each row's first property in `property_names`. A row's properties end at the next offset."""
        self.property_names: list[str] = []
        self.property_entries: list[PropertyEntry] = []

    def add(self, payload: bytes) -> int:
        """Add an encoded message and return its sequence number (0 if the message has none)."""
        row = read_row(payload)
        self._append(row)
        return row.sequence_number

    def take_deliveries(
        self, deliveries: deque[IncomingDelivery], max_rows: int, max_bytes: int
    ) -> list[IncomingDelivery]:
        """Move deliveries from the front of the queue into the buffers until `max_rows` or `max_bytes` is reached.

        Return the deliveries that were moved.
        """
        taken: list[IncomingDelivery] = []
        while deliveries and self.row_count < max_rows and self.body_bytes < max_bytes:
            delivery = deliveries.popleft()
            self._append(read_row(delivery.payload))
            taken.append(delivery)
        return taken

    def _append(self, row: MessageRow) -> None:
        body, at = row.body, self.row_count
        self.body.append(body)
        self.body_type.append(row.body_type)
        self.message_id.append(row.message_id)
        self.enqueued_time_us.append(row.enqueued_time_us)
        self.sequence_number.append(row.sequence_number)
        self.delivery_count.append(row.delivery_count)
        if body is not None:
            self.body_bytes += len(body)
        if row.body_type is not BODY_DATA:
            self.has_other_body_types = True
        self._append_texts(at, row)
        self._append_numbers(at, row)
        if row.application_properties:
            self._append_properties(at, row.application_properties)
        self.property_offsets.append(len(self.property_names))
        self.row_count = at + 1

    def _append_texts(self, row_index: int, row: MessageRow) -> None:
        if row.session_id is not None:
            self.session_id.put(row_index, row.session_id)
        if row.correlation_id is not None:
            self.correlation_id.put(row_index, row.correlation_id)
        if row.content_type is not None:
            self.content_type.put(row_index, row.content_type)
        if row.label is not None:
            self.label.put(row_index, row.label)
        if row.to is not None:
            self.to.put(row_index, row.to)
        if row.reply_to is not None:
            self.reply_to.put(row_index, row.reply_to)
        if row.reply_to_session_id is not None:
            self.reply_to_session_id.put(row_index, row.reply_to_session_id)
        if row.partition_key is not None:
            self.partition_key.put(row_index, row.partition_key)
        if row.dead_letter_source is not None:
            self.dead_letter_source.put(row_index, row.dead_letter_source)

    def _append_numbers(self, row_index: int, row: MessageRow) -> None:
        if row.ttl_ms >= 0:
            self.ttl_ms.put(row_index, row.ttl_ms)
        if row.expires_at_us is not None:
            self.expires_at_us.put(row_index, row.expires_at_us)
        if row.scheduled_time_us is not None:
            self.scheduled_time_us.put(row_index, row.scheduled_time_us)
        if row.enqueued_sequence_number >= 0:
            self.enqueued_sequence_number.put(row_index, row.enqueued_sequence_number)

    def _append_properties(self, row_index: int, properties: dict[object, object]) -> None:
        reason, description = properties.get(_REASON_PROPERTY), properties.get(_DESCRIPTION_PROPERTY)
        if isinstance(reason, str):
            self.dead_letter_reason.put(row_index, str(reason))
        if isinstance(description, str):
            self.dead_letter_description.put(row_index, str(description))
        if self.with_properties:
            for name, value in properties.items():
                self.property_names.append(str(name))
                self.property_entries.append(to_entry(value))
