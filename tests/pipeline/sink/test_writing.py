"""Spark writes DataFrames and streams to entities, and refuses rows and options that cannot be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.amqp.types import Int
from twinbus.client.sync import MessagingFactory

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.server_process import ServerProcess
    from twinbus.client import BrokeredMessage


def write(rows: DataFrame, server: ServerProcess, entity: str, **options: str) -> None:
    rows.write.format("servicebus").options(connectionString=server.connection_string, entity=entity, **options).mode(
        "append"
    ).save()


def messages(server: ServerProcess, path: str, count: int) -> list[BrokeredMessage]:
    with MessagingFactory.from_connection_string(server.connection_string) as factory:
        received: list[BrokeredMessage] = []
        client = factory.create_queue_client(path)
        while len(received) < count and (batch := client.receive_batch(count, 5)):
            received += batch
        return received


def test_rows_of_all_partitions_arrive_once(spark: SparkSession, server: ServerProcess, queue: str) -> None:
    rows = spark.range(0, 3000, 1, 3).selectExpr(
        "cast(id as string) messageId",
        "repeat('x', 100) body",
        "'order' label",
        "timestamp'2020-01-01' scheduledEnqueueTime",
        "600000L timeToLive",
        "map('number', named_struct('type', 'int', 'long', id)) properties",
    )
    write(rows, server, queue)
    received = messages(server, queue, 3000)
    assert sorted(int(str(message.message_id)) for message in received) == list(range(3000))
    assert {message.label for message in received} == {"order"}
    assert all(message.properties == {"number": Int(str(message.message_id))} for message in received)
    assert {type(message.properties["number"]) for message in received} == {Int}


def test_a_row_that_cannot_be_sent_fails_its_task_and_is_named(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
) -> None:
    rows = spark.sql("select 'the large one' messageId, repeat('x', 300000) body")
    with pytest.raises(Exception, match="the row with messageId 'the large one' cannot be sent"):
        write(rows, server, queue)


def test_invalid_columns_options_and_modes_are_refused_before_a_task_runs(
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
) -> None:
    with pytest.raises(Exception, match="no column 'mesageId' to write"):
        write(spark.sql("select 'x' body, '1' mesageId"), server, queue)
    with pytest.raises(Exception, match="no option 'entty' for writing"):
        write(spark.sql("select 'x' body"), server, queue, entty="x")
    with pytest.raises(Exception, match=r"needs columns that identify a row.*keep the column sourceId.*messageIdKey"):
        write(spark.sql("select 'x' body"), server, queue, messageIds="deterministic")
    with pytest.raises(Exception, match="cannot be overwritten"):
        spark.sql("select 'x' body").write.format("servicebus").options(
            connectionString=server.connection_string, entity=queue
        ).mode("overwrite").save()


def stream(spark: SparkSession, server: ServerProcess, entity: str, folder: Path) -> None:
    query = (
        spark.readStream.text(str(folder / "rows"))
        .selectExpr("value body")
        .writeStream.format("servicebus")
        .options(
            connectionString=server.connection_string, entity=entity, messageIds="deterministic", messageIdKey="body"
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def test_a_rerun_batch_of_a_stream_is_dropped_as_duplicates(
    spark: SparkSession,
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue(RequiresDuplicateDetection="true")
    spark.range(100).selectExpr("cast(id as string)").repartition(2).write.text(str(tmp_path / "rows"))
    stream(spark, server, path, tmp_path)
    assert server.message_counts(path)[0] == 100
    (tmp_path / "checkpoint" / "commits" / "0").unlink()  # as if Spark had been killed before it committed the batch
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink()
    stream(spark, server, path, tmp_path)
    received = messages(server, path, 101)
    assert sorted(int(message.text) for message in received) == list(range(100))
    assert {str(message.message_id).split("-")[5] for message in received} == {"0"}, (
        "the number of the batch is in the id"
    )


def test_equal_rows_of_two_tasks_fail_the_job(spark: SparkSession, server: ServerProcess, queue: str) -> None:
    rows = spark.range(0, 2, 1, 2).selectExpr("'x' body", "7 orderId")
    with pytest.raises(Exception, match=r"several rows have the message id that ends in .*, and the same content"):
        write(rows, server, queue, messageIds="deterministic", messageIdKey="orderId")
