"""A failed batch is rerun after some of its messages were received: every other row is written exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.client.sync import BrokeredMessage, MessagingFactory, ReceiveMode

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess

ROWS = 40
LARGE = 29
TAKEN = 5
TIMEOUT_S = 20.0
CHANGED = ("body", "messageId", "sessionId")


def copy(spark: SparkSession, server: ServerProcess, source: str, target: str, folder: Path, body: str) -> None:
    """Run the job once: copy the messages of one queue to another, without their ids.

    The rows have one session, so they are sent in order, and none after the one that fails.
    """
    options = {"connectionString": server.connection_string}
    rows = spark.readStream.format("servicebus").options(entity=source, **options).load()
    query = (
        rows.withColumn("body", rows.body.cast("string"))
        .selectExpr(*[name for name in rows.columns if name not in CHANGED], "'one' sessionId", f"{body} body")
        .writeStream.format("servicebus")
        .options(entity=target, messageIds="deterministic", **options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def test_a_rerun_of_a_failed_batch_writes_every_row_once_although_source_rows_are_gone(
    spark: SparkSession,
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    source, target = server.create_queue(), server.create_queue(RequiresDuplicateDetection="true")
    with MessagingFactory.from_connection_string(server.connection_string) as factory:
        sender = factory.create_message_sender(source)
        sender.send_batch([BrokeredMessage(f"A{number}") for number in range(ROWS)])
        with pytest.raises(Exception, match="cannot be sent to"):
            copy(spark, server, source, target, tmp_path, f"if(body = 'A{LARGE}', repeat('x', 300000), body)")
        assert server.message_counts(target)[0] == LARGE, "the rows before the large one were sent"
        with factory.create_message_receiver(source, ReceiveMode.RECEIVE_AND_DELETE) as other:
            assert [message.text for message in other.receive_batch(TAKEN, TIMEOUT_S)] == [
                f"A{n}" for n in range(TAKEN)
            ]
        copy(spark, server, source, target, tmp_path, "body")
        texts: list[str] = []
        with factory.create_message_receiver(target, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            while len(texts) <= ROWS and (batch := receiver.receive_batch(ROWS + 1, 1)):
                texts += [message.text for message in batch]
    assert sorted(texts) == sorted(f"A{number}" for number in range(ROWS))
