"""The columns for reading and writing messages.

    batch = record_batch(payloads, fragment=0)          # encoded messages, as a browse link delivers them
    spark.read.schema(DDL)                              # the same columns as a Spark schema

Owns the names, order and types of the columns, for Spark and for Arrow. `message_row` maps a message to columns, and
`properties` keeps the AMQP types of application properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from twinbus.model.path import canonical_key
from twinbus.pipeline.column_buffers import ColumnBuffers
from twinbus.pipeline.message_row import BODY_DATA
from twinbus.pipeline.properties import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.pipeline.column_buffers import SparseColumn

BODY: Final = "body"
PROPERTIES: Final = "properties"
SOURCE_ID: Final = "sourceId"
"""Column that identifies the message from which a row was read; see `source_ids`."""
PROPERTY_DDL: Final = (
    "struct<type: string, string: string, long: bigint, double: double, boolean: boolean, "
    "timestamp: timestamp, binary: binary>"
)
SPARK_TYPES: Final[dict[str, str]] = {
    BODY: "binary",
    "bodyType": "string",
    "messageId": "string",
    "sessionId": "string",
    "correlationId": "string",
    "contentType": "string",
    "label": "string",
    "to": "string",
    "replyTo": "string",
    "replyToSessionId": "string",
    "partitionKey": "string",
    "timeToLive": "bigint",
    "scheduledEnqueueTime": "timestamp",
    "enqueuedTime": "timestamp",
    "expiresAt": "timestamp",
    "sequenceNumber": "bigint",
    "enqueuedSequenceNumber": "bigint",
    "fragment": "int",
    "deliveryCount": "int",
    "deadLetterReason": "string",
    "deadLetterErrorDescription": "string",
    "deadLetterSource": "string",
    PROPERTIES: f"map<string, {PROPERTY_DDL}>",
    SOURCE_ID: "string",
}
"""Spark type of each column, in column order."""
COLUMNS: Final = tuple(SPARK_TYPES)
DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in SPARK_TYPES.items())
"""The schema of the columns in Spark's DDL syntax."""

_TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
_ARROW_TYPES: Final = {
    "binary": pa.binary(),
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": _TIMESTAMP_TYPE,
}
_PROPERTY_FIELD_TYPES: Final = (
    pa.string(),
    pa.string(),
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    _TIMESTAMP_TYPE,
    pa.binary(),
)
PROPERTY_TYPE: Final = pa.struct(
    [pa.field(name, kind) for name, kind in zip(FIELDS, _PROPERTY_FIELD_TYPES, strict=True)]
)
"""Arrow type of an application property."""
_PROPERTIES_TYPE: Final = pa.map_(pa.string(), pa.field("value", PROPERTY_TYPE))
SCHEMA: Final = pa.schema([(name, _ARROW_TYPES.get(kind, _PROPERTIES_TYPE)) for name, kind in SPARK_TYPES.items()])
"""The Arrow schema that corresponds to `DDL`."""


def record_batch(payloads: Iterable[bytes], fragment: int, *, with_properties: bool = True) -> pa.RecordBatch:
    """Convert encoded messages from one fragment to a record batch.

    If `with_properties` is False, the column `properties` is null.
    """
    rows = ColumnBuffers(with_properties=with_properties)
    for payload in payloads:
        rows.add(payload)
    return to_record_batch(rows, fragment)


def source_name(namespace: str, entity: str, entity_id: int) -> str:
    """Return the first part of a source id: namespace, entity, and entity id, which changes if the entity is recreated.

    `entity` includes the sub-queue, because a dead-letter queue has its own sequence numbers.
    """
    return f"{namespace.lower()}/{canonical_key(entity)}:{entity_id}"


def source_ids(source: str, sequence_numbers: pa.Array, enqueued_times: pa.Array) -> pa.Array:
    """Return a source id for each message: `{source}/{sequence number}/{enqueued time in microseconds}`.

    The enqueued time distinguishes two messages with the same sequence number: a namespace that was restored to an
    earlier state assigns sequence numbers again.
    """
    text = pa.string()
    parts = [pa.scalar(source), sequence_numbers.cast(text), enqueued_times.cast(pa.int64()).cast(text)]
    return pc.binary_join_element_wise(*parts, "/", null_handling="replace", null_replacement="")


def to_record_batch(buffers: ColumnBuffers, fragment: int, source: str | None = None) -> pa.RecordBatch:
    """Convert the buffers to a record batch. If `source` (see `source_name`) is None, the source ids are null."""
    count, text = buffers.row_count, pa.string()
    numbers, enqueued = pa.array(buffers.sequence_number, pa.int64()), pa.array(buffers.enqueued_time_us, pa.int64())

    def sparse(column: SparseColumn, kind: pa.DataType) -> pa.Array:
        return pa.array(column.filled(count), kind) if column.values else pa.nulls(count, kind)

    return pa.RecordBatch.from_arrays(
        [
            pa.array(buffers.body, pa.binary()),
            pa.array(buffers.body_type, text) if buffers.has_other_body_types else pa.repeat(BODY_DATA, count),
            pa.array(buffers.message_id, text),
            sparse(buffers.session_id, text),
            sparse(buffers.correlation_id, text),
            sparse(buffers.content_type, text),
            sparse(buffers.label, text),
            sparse(buffers.to, text),
            sparse(buffers.reply_to, text),
            sparse(buffers.reply_to_session_id, text),
            sparse(buffers.partition_key, text),
            sparse(buffers.ttl_ms, pa.int64()),
            sparse(buffers.scheduled_time_us, _TIMESTAMP_TYPE),
            enqueued.cast(_TIMESTAMP_TYPE),
            sparse(buffers.expires_at_us, _TIMESTAMP_TYPE),
            numbers,
            sparse(buffers.enqueued_sequence_number, pa.int64()),
            pa.repeat(pa.scalar(fragment, pa.int32()), count),
            pa.array(buffers.delivery_count, pa.int32()),
            sparse(buffers.dead_letter_reason, text),
            sparse(buffers.dead_letter_description, text),
            sparse(buffers.dead_letter_source, text),
            _properties_column(buffers),
            pa.nulls(count, text) if source is None else source_ids(source, numbers, enqueued),
        ],
        schema=SCHEMA,
    )


def _properties_column(buffers: ColumnBuffers) -> pa.Array:
    if not buffers.with_properties:
        return pa.nulls(buffers.row_count, _PROPERTIES_TYPE)
    columns = [list(column) for column in zip(*buffers.property_entries, strict=True)] or [[] for _ in FIELDS]
    fields = [pa.array(column, kind) for column, kind in zip(columns, _PROPERTY_FIELD_TYPES, strict=True)]
    entries = pa.StructArray.from_arrays(fields, fields=list(PROPERTY_TYPE))
    return pa.MapArray.from_arrays(
        pa.array(buffers.property_offsets, pa.int32()), pa.array(buffers.property_names, pa.string()), entries
    )
