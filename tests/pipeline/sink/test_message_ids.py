"""Message ids derived from rows: equal for equal rows in any position, and different for different rows."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from twinbus.pipeline.columns import SCHEMA
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.sink.message_ids import DIGEST_BYTES, RowIds, check_distinct, check_key
from twinbus.pipeline.sink.messages import check_columns, to_messages

PROPERTY = pa.struct([("type", pa.string()), ("long", pa.int64())])


def ids(batch: pa.RecordBatch, scope: str = "query-3", *key: str) -> list[object]:
    return [outgoing.message.message_id for outgoing in to_messages(batch, "orders", RowIds(scope, key))]


def rows(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def split(count: int, **columns: object) -> pa.RecordBatch:
    """Return rows with one source id and different bodies."""
    return rows(sourceId=["s/1"] * count, body=[f"part {number}" for number in range(count)], **columns)


def test_the_id_of_a_row_does_not_depend_on_its_position() -> None:
    batch = rows(sourceId=[f"s/{number}" for number in range(9)], body=["x"] * 9)
    expected = dict(enumerate(ids(batch)))
    positions = [8, 2, 5]
    assert ids(batch.take(pa.array(positions))) == [expected[number] for number in positions]
    assert len(set(expected.values())) == 9


def test_different_rows_of_one_message_have_different_ids() -> None:
    assert len(set(ids(split(5)))) == 5


def test_two_equal_rows_are_refused() -> None:
    with pytest.raises(PipelineError, match=r"two rows have sourceId s/1, and the same content.*=sourceId,pos"):
        ids(rows(sourceId=["s/1", "s/2", "s/1"], body=["x", "x", "x"]))
    assert len(set(ids(rows(sourceId=["s/1", "s/1"], body=["x", "x"], pos=[0, 1]), "q", "sourceId", "pos"))) == 2


def test_two_equal_rows_of_different_tasks_are_refused() -> None:
    def digests(*numbers: int) -> bytes:
        row_ids = RowIds("query-3")
        batch = rows(sourceId=[f"s/{number}" for number in numbers], body=["x"] * len(numbers))
        assert len(list(to_messages(batch, "orders", row_ids))) == len(numbers)
        return row_ids.digests

    check_distinct([])
    check_distinct([digests(1, 2), b"", digests(3)])
    duplicate = digests(2)[:DIGEST_BYTES].hex()
    with pytest.raises(PipelineError, match=f"several rows have the message id that ends in {duplicate}"):
        check_distinct([digests(1, 2), digests(3, 2)])


def test_a_row_without_a_key_is_refused() -> None:
    with pytest.raises(PipelineError, match="a row has no sourceId, from which messageIds=deterministic derives"):
        ids(rows(sourceId=pa.array([None], pa.string()), body=["x"]))
    with pytest.raises(PipelineError, match="a row has no line"):
        ids(rows(orderId=[1, 1], line=[1, None], body=["x", "y"]), "q", "orderId", "line")


def test_ids_differ_between_batches_and_between_queries() -> None:
    batch = rows(sourceId=["s/1"], body=["x"])
    assert len({*ids(batch, "a-1"), *ids(batch, "a-2"), *ids(batch, "b-1")}) == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"body": ["y"]},
        {"body": pa.array([None], pa.string())},
        {"label": ["a"]},
        {"to": ["a"]},
        {"entity": ["news"]},
        {"timeToLive": [5]},
        {"scheduledEnqueueTime": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]},
        {"properties": pa.array([[("a", {"type": "int", "long": 1})]], pa.map_(pa.string(), PROPERTY))},
        {"properties": pa.array([[("a", {"type": "long", "long": 1})]], pa.map_(pa.string(), PROPERTY))},
    ],
)
def test_every_column_that_is_sent_changes_the_id(changed: dict[str, object]) -> None:
    plain: dict[str, object] = {"sourceId": ["s/1"], "body": ["x"]}
    assert ids(rows(**plain | changed)) != ids(rows(**plain))


@pytest.mark.parametrize(
    "changed",
    [
        {"body": [b"x"]},
        {"bodyType": ["data"]},
        {"label": pa.array([None], pa.string())},
        {"deliveryCount": [4]},
        {"entity": ["ORDERS"]},
        {"properties": pa.array([[]], pa.map_(pa.string(), pa.string()))},
    ],
)
def test_columns_that_do_not_change_the_message_do_not_change_the_id(changed: dict[str, object]) -> None:
    """A message that others received and abandoned between two attempts is still the same message."""
    plain: dict[str, object] = {"sourceId": ["s/1"], "body": ["x"]}
    assert ids(rows(**plain | changed)) == ids(rows(**plain))


def test_the_order_of_properties_does_not_change_the_id() -> None:
    map_type = pa.map_(pa.string(), pa.string())
    ordered, reversed_order = ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")])
    first, second = (
        rows(sourceId=["s"], body=["x"], properties=pa.array([properties], map_type))
        for properties in (ordered, reversed_order)
    )
    assert ids(first) == ids(second)


def test_a_decimal_key_is_the_same_in_a_column_of_another_scale() -> None:
    batches = [
        rows(orderId=pa.array([decimal.Decimal(-150)], pa.decimal128(38, scale)), body=["x"]) for scale in (0, 2, 10)
    ]
    assert len({ids(batch, "q", "orderId")[0] for batch in batches}) == 1


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [b"a", b"b"],
        [1, 2],
        [True, False],
        [decimal.Decimal("1.5"), decimal.Decimal("1.6")],
        [decimal.Decimal(10**37 + 1), decimal.Decimal(10**37 + 2)],
        [dt.date(2026, 1, 1), dt.date(2026, 1, 2)],
        [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 1)],  # noqa: DTZ001  # timestamp_ntz
        [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)],
    ],
)
def test_a_key_may_be_of_any_type_that_can_be_compared_exactly(values: list[object]) -> None:
    batch = rows(orderId=values, body=["x", "x"])
    check_key(batch.schema, ("orderId",))
    check_columns(batch.schema, needs_entity=False, key_columns=("orderId",))
    first, second = ids(batch, "q", "orderId")
    assert first != second
    assert ids(batch.slice(1), "q", "orderId") == [second]


@pytest.mark.parametrize(
    ("columns", "key", "message"),
    [
        (
            {"body": ["x"]},
            (),
            r'with format\("servicebus"\), keep the column sourceId; otherwise name the columns',
        ),
        ({"body": ["x"], "messageId": ["1"]}, (), "give each row a messageId and omit the option messageIds"),
        ({"body": ["x"], "orderId": [1]}, ("orderid",), r"names the column 'orderid'.*\(did you mean 'orderId'\?\)"),
        ({"body": ["x"], "price": [1.5]}, ("price",), "'price' is double, which cannot identify a row"),
        ({"body": ["x"], "lines": [[1]]}, ("lines",), "'lines' is list<.*cannot identify a row"),
    ],
)
def test_rows_without_a_usable_key_are_refused(columns: dict[str, object], key: tuple[str, ...], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        check_key(rows(**columns).schema, key)


def test_an_unknown_column_that_is_no_key_is_refused() -> None:
    with pytest.raises(PipelineError, match="no column 'line' to write"):
        check_columns(rows(body=["x"], orderId=[1], line=[1]).schema, needs_entity=False, key_columns=("orderId",))


def test_the_columns_of_the_source_can_be_written_and_have_a_key() -> None:
    check_columns(SCHEMA, needs_entity=False)
    check_key(SCHEMA, ())


def test_ids_stay_the_same_across_versions() -> None:
    """A later version may rerun a batch: if the ids changed, duplicate detection could not drop its messages."""
    batch = rows(
        sourceId=["contoso:5671/orders:7/1601/1700000000000000"],
        body=[b"two pounds of apples"],
        label=["fruit"],
        timeToLive=[60_000],
        properties=pa.array([[("n", {"type": "int", "long": 3})]], pa.map_(pa.string(), PROPERTY)),
    )
    assert ids(batch, "q-1") == ["q-1-1002198ae4545fa160fc636f77ec3f19"]
