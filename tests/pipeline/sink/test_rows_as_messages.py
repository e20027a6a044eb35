"""Rows become messages: columns become properties of the same type, and an invalid row is named."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import pyarrow as pa
import pytest

from twinbus.amqp.message import sequence, value
from twinbus.amqp.types import (
    Byte,
    Char,
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
from twinbus.client import BrokeredMessage
from twinbus.model.times import TIMESPAN
from twinbus.pipeline.columns import record_batch
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.sink.message_ids import RowIds
from twinbus.pipeline.sink.messages import MESSAGE_OVERHEAD_BYTES, check_columns, to_messages

NOW_MS = 1_700_000_000_000
TYPED = {
    "text": "high",
    "symbol": Symbol("a"),
    "char": Char("c"),
    "long": -(2**63),
    "int": Int(7),
    "short": Short(-3),
    "byte": Byte(-1),
    "ulong": ULong(2**64 - 1),
    "uint": UInt(2**32 - 1),
    "ushort": UShort(5),
    "ubyte": UByte(255),
    "yes": True,
    "no": False,
    "double": 0.1,
    "float": Float(0.5),
    "when": Timestamp(NOW_MS),
    "in the year 300000": Timestamp(2**53),
    "bytes": b"\x00\x01",
    "uuid": uuid.UUID(int=17),
    "decimal": Decimal128.from_decimal(decimal.Decimal("1.50")),
    "a tick of a hundred nanoseconds": Described(TIMESPAN, 1),
    "nothing": None,
}


def sent(batch: pa.RecordBatch) -> BrokeredMessage:
    """Return the only message of a batch as a receiver decodes it."""
    (outgoing,) = to_messages(batch, "orders")
    return BrokeredMessage.decode(outgoing.message.encode(NOW_MS))


def rows(**columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_message_that_was_read_is_written_unchanged() -> None:
    message = BrokeredMessage(
        b"\x00body",
        message_id="id",
        session_id="session",
        partition_key="session",
        correlation_id="correlation",
        content_type="text/plain",
        label="label",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply session",
        time_to_live=dt.timedelta(minutes=3),
        scheduled_enqueue_time_utc=dt.datetime(2030, 1, 2, 3, 4, 5, 6000, tzinfo=dt.UTC),
        properties=TYPED,
    )
    payload = message.encode(NOW_MS)
    (outgoing,) = to_messages(record_batch([payload], 0), "orders")
    assert outgoing.entity == "orders"
    assert outgoing.message.encode(NOW_MS) == payload


@pytest.mark.parametrize(
    "body",
    [value({"a": Int(1), "b": [1, None]}), sequence([1, "two"], [Symbol("three")]), b""],
    ids=["value", "sequence", "none"],
)
def test_a_body_that_is_not_data_is_written_unchanged(body: bytes) -> None:
    received = BrokeredMessage.decode(BrokeredMessage(None, message_id="id").encode(NOW_MS) + body)
    arrived = sent(record_batch([received.payload], 0))
    assert arrived.payload == received.payload
    assert arrived.body == received.body


def test_a_body_may_be_text() -> None:
    assert sent(rows(body=["größer"])).body == "größer".encode()


def test_properties_may_be_plain_strings() -> None:
    map_type = pa.map_(pa.string(), pa.string())
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x"]), pa.array([[("a", "1"), ("b", None)]], map_type)], names=["body", "properties"]
    )
    assert sent(batch).properties == {"a": "1", "b": None}


def test_a_slice_of_a_batch_has_the_properties_of_its_own_rows() -> None:
    map_type = pa.map_(pa.string(), pa.string())
    column = pa.array([[("a", "0")], None, [("a", "2"), ("b", "2")], []], map_type)
    batch = pa.RecordBatch.from_arrays([pa.array(["x"] * 4), column], names=["body", "properties"]).slice(1, 3)
    assert [outgoing.message.properties for outgoing in to_messages(batch, "orders")] == [{}, {"a": "2", "b": "2"}, {}]


def test_a_row_without_an_id_gets_one() -> None:
    first, second = to_messages(rows(body=["a", "b"], messageId=["x", None]), "orders")
    assert first.message.message_id == "x"
    assert second.message.message_id not in (None, "", "x")


def test_a_row_without_an_id_gets_a_deterministic_one_if_requested() -> None:
    batch = rows(body=["a", "b"], messageId=["x", None], sourceId=["s/1", "s/2"])
    first, second = to_messages(batch, "orders", RowIds("query-3"))
    assert first.message.message_id == "x"
    assert str(second.message.message_id).startswith("query-3-")


def test_a_row_goes_to_its_own_entity_or_else_to_that_of_the_option() -> None:
    outgoing = to_messages(rows(body=["a", "b"], entity=["news", None]), "orders")
    assert [message.entity for message in outgoing] == ["news", "orders"]


def test_a_row_without_an_entity_is_named() -> None:
    with pytest.raises(PipelineError, match="messageId 'x' has no entity"):
        list(to_messages(rows(body=["a"], messageId=["x"], entity=[None]), None))


def test_sizes_grow_with_bodies_and_properties() -> None:
    payload = BrokeredMessage(b"x" * 1000, properties={"name": "v" * 500}).encode(NOW_MS)
    (outgoing,) = to_messages(record_batch([payload], 0), "orders")
    assert 1500 + MESSAGE_OVERHEAD_BYTES <= outgoing.size <= 1600 + MESSAGE_OVERHEAD_BYTES


def test_an_invalid_property_names_its_row() -> None:
    entry = pa.struct([("type", pa.string()), ("long", pa.int64())])
    column = pa.array([[("a", {"type": "integer", "long": 1})]], pa.map_(pa.string(), entry))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x"]), pa.array(["order-17"]), column], names=["body", "messageId", "properties"]
    )
    with pytest.raises(PipelineError, match=r"messageId 'order-17' cannot be sent: .*type 'integer'"):
        list(to_messages(batch, "orders"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"messageId": ["x"]}, "need a column 'body'"),
        ({"body": ["x"], "mesageId": ["x"]}, "no column 'mesageId' to write .did you mean 'messageId'"),
        ({"body": [1]}, "'body' is int64; it must be binary or string"),
        ({"body": ["x"], "timeToLive": ["x"]}, "'timeToLive' is string"),
        ({"body": ["x"], "properties": ["x"]}, "'properties' is string"),
        ({"body": ["x"]}, "no destination"),
    ],
)
def test_invalid_columns_are_refused_before_anything_is_sent(columns: dict[str, list[object]], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        check_columns(rows(**columns).schema, needs_entity=True)


def test_the_read_only_columns_of_the_source_are_accepted() -> None:
    check_columns(record_batch([], 0).schema, needs_entity=False)
