"""`spark.read.format("servicebus")`: a batch query reads the messages between two offsets that pass its filters."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest

from twinbus.client.sync import BrokeredMessage
from twinbus.pipeline.columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.pipeline.source.message_feed import MessageFeed


def read(spark: SparkSession, feed: MessageFeed, entity: str, **options: object) -> DataFrame:
    return spark.read.format("servicebus").options(**feed.options(entity, **options)).load()


def bodies(rows: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in rows.select("body").collect())


def test_all_messages_are_read_with_all_columns(spark: SparkSession, feed: MessageFeed) -> None:
    queue = feed.queue()
    properties = {"n": 1, "text": "a", "flag": True, "ratio": 0.5, "raw": b"x", "id": uuid.UUID(int=7)}
    feed.send_all(queue, [BrokeredMessage(b"body", message_id="1", label="l", properties=properties)])
    rows = read(spark, feed, queue)
    assert tuple(rows.columns) == COLUMNS
    (row,) = rows.collect()
    assert (bytes(row.body), row.bodyType, row.messageId, row.label) == (b"body", "data", "1", "l")
    assert (row.sequenceNumber, row.fragment, row.deliveryCount) == (1, 0, 0)
    read_properties = {name: entry.asDict() for name, entry in row.properties.items()}
    assert read_properties["n"]["long"] == 1
    assert read_properties["id"] == {
        **dict.fromkeys(read_properties["id"]),
        "type": "uuid",
        "string": str(uuid.UUID(int=7)),
    }
    assert rows.where("properties['text'].string = 'a'").count() == 1
    assert rows.where("enqueuedTime > current_timestamp() - interval 1 hour").count() == 1


def test_a_partitioned_queue_is_read_by_a_task_for_each_fragment(spark: SparkSession, feed: MessageFeed) -> None:
    queue = feed.queue(partitioned=True)
    feed.send_all(queue, [BrokeredMessage(f"{n}", partition_key=uuid.uuid4().hex) for n in range(200)])
    rows = read(spark, feed, queue)
    assert rows.rdd.getNumPartitions() == 16
    assert bodies(rows) == list(range(200))
    assert feed.count(queue) == 200
    by_fragment = {row.fragment: row.sequenceNumber >> 48 for row in rows.collect()}
    assert by_fragment == {number: number for number in range(16)}


def test_offsets_limit_the_read_range_and_large_ranges_are_split(spark: SparkSession, feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 100)
    middle = read(spark, feed, queue, startingOffsets=json.dumps({"0": 11}), endingOffsets=json.dumps({"0": 21}))
    assert bodies(middle) == list(range(10, 20))
    assert bodies(read(spark, feed, queue, startingOffsets="latest")) == []
    split = read(spark, feed, queue, maxOffsetsPerPartition=30, minPartitions=2)
    assert split.rdd.getNumPartitions() == 4
    assert bodies(split) == list(range(100))
    assert read(spark, feed, queue, minPartitions=5).rdd.getNumPartitions() == 5


def test_filters_on_fragment_and_sequence_number_are_pushed_down(spark: SparkSession, feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 50)
    rows = read(spark, feed, queue)
    some = rows.where("sequenceNumber > 10 and sequenceNumber <= 20 and fragment = 0 and messageId <> '12'")
    assert bodies(some) == [10, 11, *range(13, 20)]
    plan = some._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001  # only the plan shows pushed filters
    assert "PushedFilters" in plan or "sequenceNumber" not in plan.split("Filter", 1)[1].split("\n", 1)[0]
    assert rows.where("fragment = 3").count() == 0
    assert rows.where("fragment in (0, 1) and sequenceNumber = 7").count() == 1


def test_only_the_columns_of_a_given_schema_are_read(spark: SparkSession, feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send(queue, 5)
    options = feed.options(queue)
    rows = spark.read.format("servicebus").schema("sequenceNumber bigint, body binary").options(**options).load()
    assert [row.sequenceNumber for row in rows.orderBy("sequenceNumber").collect()] == [1, 2, 3, 4, 5]


def test_properties_are_null_without_headers(spark: SparkSession, feed: MessageFeed) -> None:
    queue = feed.queue()
    feed.send_all(queue, [BrokeredMessage(b"", properties={"a": 1})])
    assert [row.properties for row in read(spark, feed, queue, includeHeaders=False).collect()] == [None]


def test_an_empty_queue_has_no_rows(spark: SparkSession, feed: MessageFeed) -> None:
    assert read(spark, feed, feed.queue()).count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({"complete": "processed"}, "for streams"),
        ({"endingOffsets": '{"0": 99}'}, "whose next sequence number is 2"),
        ({"startingOffsets": '{"4": 1}'}, "no fragment 4"),
        ({"startingOffsets": '{"0": 99}'}, "data was lost"),
    ],
)
def test_an_error_names_the_problem_and_shows_no_secret(
    spark: SparkSession, feed: MessageFeed, options: dict[str, str], message: str
) -> None:
    queue = feed.queue()
    feed.send(queue, 1)
    with pytest.raises(Exception, match=message) as raised:
        read(spark, feed, queue, **options).collect()
    assert feed.server.key not in str(raised.value)


def test_plans_show_no_secret(spark: SparkSession, feed: MessageFeed) -> None:
    rows = read(spark, feed, feed.queue())
    plan = rows._jdf.queryExecution().toString()  # noqa: SLF001
    assert feed.server.key not in plan
