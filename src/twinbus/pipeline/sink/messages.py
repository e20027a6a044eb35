"""Conversion of rows to messages.

Owns the mapping of columns to message properties, the allowed columns and their types, and the errors for rows that
cannot become messages. Knows nothing of sending.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from twinbus.amqp.errors import AmqpError
from twinbus.client import BrokeredMessage
from twinbus.model.errors import ServiceBusError
from twinbus.model.path import canonical_key
from twinbus.model.times import timedelta_of
from twinbus.pipeline.columns import SOURCE_ID
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.properties import from_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from twinbus.pipeline.sink.message_ids import RowIds

TEXT_COLUMNS: Final = {
    "messageId": "message_id",
    "sessionId": "session_id",
    "partitionKey": "partition_key",
    "correlationId": "correlation_id",
    "contentType": "content_type",
    "label": "label",
    "to": "to",
    "replyTo": "reply_to",
    "replyToSessionId": "reply_to_session_id",
}
"""Text columns, and the message property that each column sets."""
BROKER_COLUMNS: Final = (
    "enqueuedTime",
    "expiresAt",
    "sequenceNumber",
    "enqueuedSequenceNumber",
    "fragment",
    "deliveryCount",
    "deadLetterReason",
    "deadLetterErrorDescription",
    "deadLetterSource",
    SOURCE_ID,
)
"""Columns with values that the broker sets. Rows may contain these columns, but the values are not sent."""
WRITABLE_COLUMNS: Final = (
    "body",
    "bodyType",
    *TEXT_COLUMNS,
    "timeToLive",
    "scheduledEnqueueTime",
    "properties",
    "entity",
)
MESSAGE_OVERHEAD_BYTES: Final = 256
"""Estimated size of a message without its body and properties, including the properties that parking adds."""
_UNREADABLE_BODY_TYPE: Final = "message"


class OutgoingMessage(NamedTuple):
    """A message to be sent."""

    entity: str
    message: BrokeredMessage
    size: int
    """Approximate size in bytes."""
    row_key: str | None = None
    """Key of the row, if the message id was derived from the key."""


class _Column(NamedTuple):
    property: str
    values: Sequence[object]


def check_columns(schema: pa.Schema, *, needs_entity: bool, key_columns: Sequence[str] = ()) -> None:
    """Raise PipelineError if rows with this schema cannot become messages. The check runs before anything is sent.

    Columns in `key_columns` may have any name; unknown columns are used for message ids only and are not sent.
    """
    names = schema.names
    if "body" not in names:
        raise PipelineError(f"rows to be sent need a column 'body'; these have {', '.join(names) or 'none'}")
    known = (*WRITABLE_COLUMNS, *BROKER_COLUMNS)
    for field in schema:
        if field.name in key_columns and field.name not in known:
            continue
        if field.name not in known:
            matches = difflib.get_close_matches(field.name, known, n=1)
            hint = f" (did you mean '{matches[0]}'?)" if matches else ""
            raise PipelineError(
                f"servicebus has no column {field.name!r:.60} to write{hint}; it has "
                f"{', '.join(WRITABLE_COLUMNS)}: drop it, or"
                " put it into the properties"
            )
        expected = _expected_type(field.name)
        if expected is not None and not expected[1](field.type):
            raise PipelineError(f"the column '{field.name}' is {field.type}; it must be {expected[0]}")
    if needs_entity and "entity" not in names:
        raise PipelineError("no destination: set the option 'entity', or add a column 'entity' to the rows")


def _expected_type(name: str) -> tuple[str, Callable[[pa.DataType], bool]] | None:
    if name == "body":
        return "binary or string", lambda kind: _is_binary(kind) or _is_text(kind)
    if name in TEXT_COLUMNS or name in ("bodyType", "entity"):
        return "string", _is_text
    if name == "timeToLive":
        return "a whole number of milliseconds (bigint)", pa.types.is_integer
    if name == "scheduledEnqueueTime":
        return "timestamp", pa.types.is_timestamp
    if name == "properties":
        return (
            "map<string, string>, or map<string, struct<type, ...>> as read from servicebus",
            _is_properties_map,
        )
    return None


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_null(data_type))


def _is_binary(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def _is_properties_map(data_type: pa.DataType) -> bool:
    if not pa.types.is_map(data_type) or not _is_text(data_type.key_type):
        return False
    return _is_text(data_type.item_type) or bool(pa.types.is_struct(data_type.item_type))


def to_messages(batch: pa.RecordBatch, entity: str | None, ids: RowIds | None = None) -> Iterator[OutgoingMessage]:
    """Convert rows to messages, lazily.

    `ids` derives message ids for rows without a message id. PipelineError names the row that cannot become a message.
    """
    columns = [_Column(TEXT_COLUMNS[name], column) for name in TEXT_COLUMNS if (column := _column_values(batch, name))]
    bodies, kinds = _body_values(batch), _column_values(batch, "bodyType")
    entities, ttls = _column_values(batch, "entity"), _column_values(batch, "timeToLive")
    scheduled_times = _column_values(batch, "scheduledEnqueueTime")
    properties_of_row = _properties_reader(batch)
    batch_ids = None if ids is None else ids.for_batch(batch)
    for row, body in enumerate(bodies):
        fields: dict[str, object] = {column.property: column.values[row] for column in columns}
        kind = kinds[row] if kinds else None
        ttl_ms, scheduled_time = ttls[row] if ttls else None, scheduled_times[row] if scheduled_times else None
        destination = (entities[row] if entities else None) or entity
        key = None
        if destination is None:
            raise PipelineError(
                f"{_describe_row(fields, batch, row)} has no entity, and the option 'entity' is not set"
            )
        try:
            properties, size = (
                properties_of_row(row) if properties_of_row is not None else (None, MESSAGE_OVERHEAD_BYTES)
            )
            if batch_ids is not None and fields.get("message_id") is None:
                content = fields | {"body": body, "kind": None if kind == "data" else kind, "properties": properties}
                content |= {"ttl": ttl_ms, "due": scheduled_time, "entity": canonical_key(str(destination))}
                key = batch_ids.describe_row(row)
                fields["message_id"] = batch_ids.derive_id(row, content)
            message = _build_message(body, kind, fields, properties)
            if ttl_ms is not None:
                message.time_to_live = timedelta_of(int(str(ttl_ms)))
            if scheduled_time is not None:
                message.scheduled_enqueue_time_utc = scheduled_time  # type: ignore[assignment]  # a timestamp column
        except (ServiceBusError, AmqpError, ValueError, TypeError, OverflowError) as error:
            name = _describe_row(fields, batch, row) if key is None else f"the row with {key}"
            raise PipelineError(f"{name} cannot be sent: {error}") from error
        yield OutgoingMessage(str(destination), message, size + (len(body) if body is not None else 0), key)


def _build_message(
    body: bytes | None, body_type: object, fields: dict[str, object], properties: Mapping[str, object] | None
) -> BrokeredMessage:
    if body_type is None or body_type == "data":
        return BrokeredMessage(body, properties=properties, **fields)  # type: ignore[arg-type]  # text columns
    if body_type == _UNREADABLE_BODY_TYPE:
        raise ValueError("the original message could not be decoded: filter such rows out (bodyType <> 'message')")
    if body_type not in ("value", "sequence"):
        raise ValueError(f"bodyType is {body_type!r:.40}; use data, value or sequence")
    # The body holds encoded sections: decode the body as a message, and set the properties on a clone of the message.
    message = BrokeredMessage.decode(body or b"").clone()
    message.message_id = BrokeredMessage().message_id
    for name, value in fields.items():
        if value is not None:
            setattr(message, name, value)
    if properties is not None:
        message.properties = dict(properties)
    return message


def _describe_row(fields: Mapping[str, object], batch: pa.RecordBatch, row: int) -> str:
    message_id = fields.get("message_id")
    if message_id is not None:
        return f"the row with messageId {message_id!r:.140}"
    return f"row {row + 1} of a batch of {batch.num_rows} rows, without messageId,"


# --- columns ----------------------------------------------------------------------------------------------------------


def _column_values(batch: pa.RecordBatch, name: str) -> Sequence[object]:
    """Return the values of a column, or () if the column is missing or entirely null."""
    at = batch.schema.get_field_index(name)
    if at < 0 or batch.column(at).null_count == batch.num_rows:
        return ()
    values: list[object] = batch.column(at).to_pylist()
    return values


def _body_values(batch: pa.RecordBatch) -> list[bytes | None]:
    column = batch.column(batch.schema.get_field_index("body"))
    if _is_text(column.type):
        column = column.cast(pa.large_binary())
    bodies: list[bytes | None] = column.to_pylist()
    return bodies


def _properties_reader(batch: pa.RecordBatch) -> Callable[[int], tuple[dict[str, object] | None, int]] | None:
    """Return a function that returns a row's properties and the approximate message size without the body."""
    at = batch.schema.get_field_index("properties")
    if at < 0 or batch.column(at).null_count == batch.num_rows:
        return None
    column = batch.column(at)
    # Read the child arrays of all rows at once, because building a map and a struct per value is slow.
    starts, names = column.offsets.to_pylist(), column.keys.to_pylist()
    items = column.items
    is_text = _is_text(items.type)
    texts = items.to_pylist() if is_text else []
    fields: dict[str, list[object]] = {}
    if not is_text:
        fields = {field.name: items.field(position).to_pylist() for position, field in enumerate(items.type)}

    def value_at(index: int) -> object:
        if is_text:
            return texts[index]
        entry = {name: values[index] for name, values in fields.items()}
        return entry["string"] if entry.get("type") == "string" else from_entry(entry)

    def properties_of_row(row: int) -> tuple[dict[str, object] | None, int]:
        first, end = starts[row], starts[row + 1]
        if first == end:
            return None, MESSAGE_OVERHEAD_BYTES
        properties = {names[index]: value_at(index) for index in range(first, end)}
        return properties, MESSAGE_OVERHEAD_BYTES + sum(
            2 * len(name) + 16 + _value_size(value) for name, value in properties.items()
        )

    return properties_of_row


def _value_size(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 16
