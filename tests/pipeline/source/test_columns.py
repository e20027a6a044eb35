"""Encoded messages become rows: the value of each column, for every layout of a message."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp import message as sections
from twinbus.amqp.message import Header, Properties
from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.model.message import BrokeredMessage
from twinbus.model.times import timespan
from twinbus.pipeline.columns import COLUMNS, DDL, SCHEMA, record_batch
from twinbus.pipeline.properties import FIELDS, from_entry, to_entry

NOW_MS = 1_700_000_000_000
NOW = dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)


def stamped(bare: bytes, *, number: int = 7, header: Header | None = None, **annotations: object) -> bytes:
    """Return a message as a browse link delivers it."""
    message_annotations: dict[str, object] = {"x-opt-enqueued-time": Timestamp(NOW_MS), "x-opt-sequence-number": number}
    message_annotations |= {f"x-opt-{name.replace('_', '-')}": value for name, value in annotations.items()}
    return sections.build(header=header or Header(delivery_count=2), message_annotations=message_annotations) + bare


def bare_of(message: BrokeredMessage) -> bytes:
    decoded = sections.Message(message.encode(NOW_MS))
    return decoded.bare()


def row_of(payload: bytes, **options: bool) -> dict[str, object]:
    rows: list[dict[str, object]] = record_batch([payload], 3, **options).to_pylist()
    return rows[0]


def test_arrow_and_spark_schemas_are_the_same() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    pandas = pytest.importorskip("pyspark.sql.pandas.types")
    fields = [types.StructField(name, pandas.from_arrow_type(SCHEMA.field(name).type)) for name in COLUMNS]
    assert pandas.to_arrow_schema(types.StructType(fields), timezone="UTC").equals(SCHEMA)
    assert DDL.count("`") == 2 * len(COLUMNS)


def test_a_plain_message_has_a_body_an_id_and_the_values_of_the_namespace() -> None:
    row = row_of(stamped(bare_of(BrokeredMessage(b"apples", message_id="order-1"))))
    filled = {name: value for name, value in row.items() if value is not None}
    assert filled == {
        "body": b"apples",
        "bodyType": "data",
        "messageId": "order-1",
        "enqueuedTime": NOW,
        "sequenceNumber": 7,
        "fragment": 3,
        "deliveryCount": 2,
        "properties": [],
    }


def test_every_property_that_a_sender_can_set_has_a_column() -> None:
    message = BrokeredMessage(
        b"x" * 300,
        message_id="id",
        session_id="session",
        correlation_id="correlation",
        content_type="application/json",
        label="label",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply session",
        time_to_live=dt.timedelta(minutes=1),
    )
    payload = stamped(
        bare_of(message),
        header=Header(ttl=60_000),
        partition_key="session",
        scheduled_enqueue_time=Timestamp(NOW_MS + 5),
        enqueue_sequence_number=99,
        deadletter_source="orders",
    )
    row = row_of(payload)
    assert row["body"] == b"x" * 300
    assert [row[name] for name in ("sessionId", "correlationId", "contentType", "label", "to", "replyTo")] == [
        "session",
        "correlation",
        "application/json",
        "label",
        "to",
        "reply",
    ]
    assert row["replyToSessionId"] == "reply session"
    assert row["partitionKey"] == "session"
    assert row["timeToLive"] == 60_000
    assert row["expiresAt"] == NOW + dt.timedelta(minutes=1)
    assert row["scheduledEnqueueTime"] == NOW + dt.timedelta(milliseconds=5)
    assert row["enqueuedSequenceNumber"] == 99
    assert row["deadLetterSource"] == "orders"


def test_a_time_to_live_beyond_the_header_limit_comes_from_the_expiry_time() -> None:
    message = BrokeredMessage(b"", message_id="id", time_to_live=dt.timedelta(days=90))
    row = row_of(stamped(bare_of(message), header=Header(ttl=2**32 - 1)))
    assert row["timeToLive"] == 90 * 86_400_000
    assert row["expiresAt"] == NOW + dt.timedelta(days=90)


def test_a_dead_letter_has_its_reason_with_and_without_properties() -> None:
    properties = {"DeadLetterReason": "broken", "DeadLetterErrorDescription": "in two", "n": 1}
    payload = stamped(bare_of(BrokeredMessage(b"", message_id="id", properties=properties)))
    row, short = row_of(payload), row_of(payload, with_properties=False)
    assert (row["deadLetterReason"], row["deadLetterErrorDescription"]) == ("broken", "in two")
    assert (short["deadLetterReason"], short["deadLetterErrorDescription"]) == ("broken", "in two")
    assert short["properties"] is None
    assert len(dict(row["properties"])) == 3  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (sections.value({"a": 1}), "value"),
        (sections.sequence([1, 2], ["three"]), "sequence"),
        (sections.data(b"one", b"two"), "data"),
        (b"", None),
    ],
)
def test_other_bodies_keep_their_encoding(body: bytes, kind: str | None) -> None:
    bare = sections.build(properties=Properties(message_id="id")) + body
    row = row_of(stamped(bare))
    assert row["bodyType"] == kind
    assert row["body"] == (b"onetwo" if kind == "data" else body or None)


@pytest.mark.parametrize(
    ("given_id", "text"),
    [
        (None, None),
        (ULong(5), "5"),
        (ULong(2**64 - 1), "18446744073709551615"),
        (uuid.UUID(int=5), str(uuid.UUID(int=5))),
        (b"\x01\x02", "0102"),
        ("five", "five"),
    ],
)
def test_ids_of_any_type_become_text(given_id: object, text: str | None) -> None:
    bare = sections.build(properties=Properties(message_id=given_id, correlation_id=given_id)) + sections.data(b"")
    row = row_of(stamped(bare))
    assert (row["messageId"], row["correlationId"]) == (text, text)


def test_a_malformed_message_is_a_row_with_its_raw_bytes() -> None:
    payload = stamped(b"\x00\x53\x73\xc0\x03\x01\x41\x41") + sections.data(b"x")
    rows = record_batch([payload, stamped(bare_of(BrokeredMessage(b"y", message_id="id")), number=8)], 0).to_pylist()
    assert (rows[0]["bodyType"], rows[0]["body"], rows[0]["sequenceNumber"]) == ("message", payload, 7)
    assert (rows[1]["bodyType"], rows[1]["body"], rows[1]["sequenceNumber"]) == ("data", b"y", 8)


def test_sparse_columns_have_their_values_in_the_right_rows() -> None:
    messages = [BrokeredMessage(b"", message_id=str(n), label=str(n) if n in (3, 7) else None) for n in range(10)]
    batch = record_batch([stamped(bare_of(message), number=n) for n, message in enumerate(messages)], 0)
    assert batch.column("label").to_pylist() == [str(n) if n in (3, 7) else None for n in range(10)]
    assert batch.column("sequenceNumber").to_pylist() == list(range(10))
    assert batch.schema == SCHEMA
    batch.validate(full=True)


VALUES = [
    None,
    True,
    "text",
    Symbol("symbol"),
    Char("ä"),
    UByte(255),
    UShort(65_535),
    UInt(2**32 - 1),
    ULong(2**63 - 1),
    ULong(2**64 - 1),
    Byte(-128),
    Short(-32_768),
    Int(-(2**31)),
    -(2**63),
    Float(0.5),
    0.1,
    float("inf"),
    Timestamp(NOW_MS),
    Timestamp(-(2**63)),
    Timestamp(2**63 - 1),
    uuid.UUID(int=2**100),
    b"\x00\xff",
    Decimal32.from_decimal(decimal.Decimal("1.50")),
    Decimal128.from_decimal(decimal.Decimal("-12345678901234567890.5")),
    timespan(1_500),
    Array(int, [1, 2]),
    Described(Symbol("a:thing"), "described"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_property_survives_a_round_trip(value: object) -> None:
    bare = sections.build(
        properties=Properties(message_id="id"), application_properties={"p": value}, body=sections.data(b"")
    )
    properties = row_of(stamped(bare))["properties"]
    assert isinstance(properties, list)
    written = from_entry(properties[0][1])
    assert (type(written), written) == (type(value), value)


@given(st.binary(min_size=16, max_size=16))
def test_any_decimal_survives_a_round_trip(digits: bytes) -> None:
    written = from_entry(dict(zip(FIELDS, to_entry(Decimal128(digits)), strict=True)))
    assert written == Decimal128(digits)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "money", "string": "1"}, "use one of"),
        ({"type": "uint", "string": "many"}, "uint"),
        ({"type": "uint"}, "needs the field"),
        ({"string": "a", "long": 1}, "set its type"),
        ({"type": "amqp", "binary": b"\xa1\x05"}, "amqp"),
    ],
)
def test_an_invalid_property_is_refused_with_the_reason(entry: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_entry(entry)


def test_a_property_without_a_type_has_the_type_of_its_only_field() -> None:
    assert from_entry({"string": "a"}) == "a"
    assert from_entry({"long": 3}) == 3
    assert from_entry({"timestamp": NOW}) == Timestamp(NOW_MS)
    assert from_entry({}) is None


def test_an_empty_batch_has_all_columns() -> None:
    assert record_batch([], 0).equals(pa.RecordBatch.from_pylist([], schema=SCHEMA))
