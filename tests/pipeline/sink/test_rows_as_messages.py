"""Rows become messages: each column a property, each property of the type it had; and a row that cannot is named."""

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
    """The one message of a batch, as it would arrive."""
    (outgoing,) = to_messages(batch, "orders")
    return BrokeredMessage.decode(outgoing.message.encode(NOW_MS))


def rows(**columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_message_that_was_read_is_written_as_it_was() -> None:
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
def test_a_body_that_is_no_data_is_written_as_it_was(body: bytes) -> None:
    received = BrokeredMessage.decode(BrokeredMessage(None, message_id="id").encode(NOW_MS) + body)
    arrived = sent(record_batch([received.payload], 0))
    assert arrived.payload == received.payload
    assert arrived.body == received.body


def test_a_body_may_be_text() -> None:
    assert sent(rows(body=["größer"])).body == "größer".encode()


def test_properties_may_be_plain_texts() -> None:
    kind = pa.map_(pa.string(), pa.string())
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x"]), pa.array([[("a", "1"), ("b", None)]], kind)], names=["body", "properties"]
    )
    assert sent(batch).properties == {"a": "1", "b": None}


def test_properties_of_a_part_of_a_batch_are_those_of_its_rows() -> None:
    kind = pa.map_(pa.string(), pa.string())
    column = pa.array([[("a", "0")], None, [("a", "2"), ("b", "2")], []], kind)
    batch = pa.RecordBatch.from_arrays([pa.array(["x"] * 4), column], names=["body", "properties"]).slice(1, 3)
    assert [one.message.properties for one in to_messages(batch, "orders")] == [{}, {"a": "2", "b": "2"}, {}]


def test_a_row_without_an_id_is_given_one() -> None:
    first, second = to_messages(rows(body=["a", "b"], messageId=["x", None]), "orders")
    assert first.message.message_id == "x"
    assert second.message.message_id not in (None, "", "x")


def test_a_row_without_an_id_is_given_a_derived_one_if_there_are_such() -> None:
    batch = rows(body=["a", "b"], messageId=["x", None], sourceId=["s/1", "s/2"])
    first, second = to_messages(batch, "orders", RowIds("query-3"))
    assert first.message.message_id == "x"
    assert str(second.message.message_id).startswith("query-3-")


def test_a_row_goes_where_it_says_or_where_the_option_says() -> None:
    found = to_messages(rows(body=["a", "b"], entity=["news", None]), "orders")
    assert [one.entity for one in found] == ["news", "orders"]


def test_a_row_that_says_nowhere_is_named() -> None:
    with pytest.raises(PipelineError, match="messageId 'x' says no entity"):
        list(to_messages(rows(body=["a"], messageId=["x"], entity=[None]), None))


def test_sizes_grow_with_bodies_and_properties() -> None:
    payload = BrokeredMessage(b"x" * 1000, properties={"name": "v" * 500}).encode(NOW_MS)
    (outgoing,) = to_messages(record_batch([payload], 0), "orders")
    assert 1500 + MESSAGE_OVERHEAD_BYTES <= outgoing.size <= 1600 + MESSAGE_OVERHEAD_BYTES


def test_a_property_that_cannot_be_names_its_row() -> None:
    entry = pa.struct([("type", pa.string()), ("long", pa.int64())])
    column = pa.array([[("a", {"type": "integer", "long": 1})]], pa.map_(pa.string(), entry))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x"]), pa.array(["order-17"]), column], names=["body", "messageId", "properties"]
    )
    with pytest.raises(PipelineError, match=r"messageId 'order-17' cannot be sent: .*type 'integer'"):
        list(to_messages(batch, "orders"))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"messageId": ["x"]}, "need a column 'body'"),
        ({"body": ["x"], "mesageId": ["x"]}, "no column 'mesageId' to write .did you mean 'messageId'"),
        ({"body": [1]}, "'body' is int64; it has to be binary or string"),
        ({"body": ["x"], "timeToLive": ["x"]}, "'timeToLive' is string"),
        ({"body": ["x"], "properties": ["x"]}, "'properties' is string"),
        ({"body": ["x"]}, "where to"),
    ],
)
def test_columns_that_cannot_be_are_refused_before_anything_is_sent(
    columns: dict[str, list[object]], said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        check_columns(rows(**columns).schema, needs_entity=True)


def test_what_a_namespace_says_of_messages_may_be_among_the_columns() -> None:
    check_columns(record_batch([], 0).schema, needs_entity=False)
