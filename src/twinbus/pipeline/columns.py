"""The columns in which messages are read and written.

    batch = record_batch(payloads, fragment=0)          # encoded messages, as a browse link brings them
    spark.read.schema(DDL)                              # what Spark calls the same columns

Owns: their names, order and types, for Spark and for Arrow. What of a message goes into which is in `row`, how an
application property keeps its type in `properties`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from twinbus.model.path import key_of
from twinbus.pipeline.properties import FIELDS
from twinbus.pipeline.row import DATA
from twinbus.pipeline.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.pipeline.rows import Sparse

BODY: Final = "body"
PROPERTIES: Final = "properties"
SOURCE_ID: Final = "sourceId"
"""Identifies the message that a row was read from; see `source_ids`."""
PROPERTY_DDL: Final = (
    "struct<type: string, string: string, long: bigint, double: double, boolean: boolean, "
    "timestamp: timestamp, binary: binary>"
)
TYPES: Final[dict[str, str]] = {
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
"""Of each column, in order, what Spark calls its type."""
COLUMNS: Final = tuple(TYPES)
DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in TYPES.items())
"""The schema, as Spark reads one."""

_MOMENT: Final = pa.timestamp("us", tz="UTC")
_ARROW: Final = {
    "binary": pa.binary(),
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": _MOMENT,
}
_FIELD_TYPES: Final = (
    pa.string(),
    pa.string(),
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    _MOMENT,
    pa.binary(),
)
PROPERTY: Final = pa.struct([pa.field(name, kind) for name, kind in zip(FIELDS, _FIELD_TYPES, strict=True)])
"""One application property."""
_MAP: Final = pa.map_(pa.string(), pa.field("value", PROPERTY))
SCHEMA: Final = pa.schema([(name, _ARROW.get(kind, _MAP)) for name, kind in TYPES.items()])
"""The same for Arrow; it is what Spark makes of `DDL`."""


def record_batch(payloads: Iterable[bytes], fragment: int, *, with_properties: bool = True) -> pa.RecordBatch:
    """Encoded messages of one fragment as rows. Without properties that column is null."""
    rows = Rows(with_properties=with_properties)
    for payload in payloads:
        rows.add(payload)
    return batch_of(rows, fragment)


def source_name(namespace: str, entity: str, entity_id: int) -> str:
    """Return the first part of a source id: which entity of which namespace, and which of those that had its name.

    `entity` includes the sub-queue: a dead-letter queue numbers its messages by itself.
    """
    return f"{namespace.lower()}/{key_of(entity)}:{entity_id}"


def source_ids(source: str, numbers: pa.Array, enqueued: pa.Array) -> pa.Array:
    """Return a source id for each message: `{source}/{sequence number}/{enqueued time in microseconds}`.

    The time tells two messages apart that have one number: after a namespace was restored to an earlier state, numbers
    are given out again.
    """
    text = pa.string()
    parts = [pa.scalar(source), numbers.cast(text), enqueued.cast(pa.int64()).cast(text)]
    return pc.binary_join_element_wise(*parts, "/", null_handling="replace", null_replacement="")


def batch_of(rows: Rows, fragment: int, source: str | None = None) -> pa.RecordBatch:
    """What was gathered, as one batch. Without a `source` (`source_name`) the rows have no source id."""
    count, text = rows.count, pa.string()
    numbers, enqueued = pa.array(rows.sequence_number, pa.int64()), pa.array(rows.enqueued, pa.int64())

    def sparse(column: Sparse, kind: pa.DataType) -> pa.Array:
        return pa.array(column.filled(count), kind) if column.values else pa.nulls(count, kind)

    return pa.RecordBatch.from_arrays(
        [
            pa.array(rows.body, pa.binary()),
            pa.array(rows.body_type, text) if rows.is_mixed else pa.repeat(DATA, count),
            pa.array(rows.message_id, text),
            sparse(rows.session_id, text),
            sparse(rows.correlation_id, text),
            sparse(rows.content_type, text),
            sparse(rows.label, text),
            sparse(rows.to, text),
            sparse(rows.reply_to, text),
            sparse(rows.reply_to_session_id, text),
            sparse(rows.partition_key, text),
            sparse(rows.ttl_ms, pa.int64()),
            sparse(rows.scheduled, _MOMENT),
            enqueued.cast(_MOMENT),
            sparse(rows.expires, _MOMENT),
            numbers,
            sparse(rows.enqueued_sequence_number, pa.int64()),
            pa.repeat(pa.scalar(fragment, pa.int32()), count),
            pa.array(rows.delivery_count, pa.int32()),
            sparse(rows.reason, text),
            sparse(rows.description, text),
            sparse(rows.source, text),
            _properties(rows),
            pa.nulls(count, text) if source is None else source_ids(source, numbers, enqueued),
        ],
        schema=SCHEMA,
    )


def _properties(rows: Rows) -> pa.Array:
    if not rows.with_properties:
        return pa.nulls(rows.count, _MAP)
    columns = [list(column) for column in zip(*rows.entries, strict=True)] or [[] for _ in FIELDS]
    fields = [pa.array(column, kind) for column, kind in zip(columns, _FIELD_TYPES, strict=True)]
    entries = pa.StructArray.from_arrays(fields, fields=list(PROPERTY))
    return pa.MapArray.from_arrays(pa.array(rows.offsets, pa.int32()), pa.array(rows.names, pa.string()), entries)
