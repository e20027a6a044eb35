"""A batch that is run again after a failure, with rows missing: every row that is left is written, and none twice."""

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
    """One run of the job: what is in one queue goes to another, without the ids of its messages.

    The rows have one session, so they are sent in order, and none behind the one that fails.
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


def test_a_row_that_follows_missing_ones_is_written_when_a_failed_batch_runs_again(
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
            assert [one.text for one in other.receive_batch(TAKEN, TIMEOUT_S)] == [f"A{n}" for n in range(TAKEN)]
        copy(spark, server, source, target, tmp_path, "body")
        found: list[str] = []
        with factory.create_message_receiver(target, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            while len(found) <= ROWS and (some := receiver.receive_batch(ROWS + 1, 1)):
                found += [one.text for one in some]
    assert sorted(found) == sorted(f"A{number}" for number in range(ROWS))
