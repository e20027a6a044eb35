"""A stream continues from the checkpoint of an earlier version: no message is read twice, and none is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.compatibility.archives import unpack
from tests.support.server_process import run_server
from twinbus.pipeline.source.checkpoint import read_processed_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.server_process import ServerProcess

TIMEOUT_S = 300


def start(spark: SparkSession, server: ServerProcess, queue: str, folder: Path) -> StreamingQuery:
    """Start the query that wrote the checkpoint, for all available messages."""
    source = spark.readStream.format("servicebus").option("connectionString", server.connection_string)
    rows = source.option("entity", queue).option("complete", "processed").load()
    sink = rows.writeStream.format("parquet").option("path", str(folder / "output"))
    return sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


def test_the_next_run_reads_exactly_the_unread_messages(spark: SparkSession, tmp_path: Path) -> None:
    queues = unpack("jobs", tmp_path)
    with run_server(tmp_path) as server:
        assert all(read_processed_offsets(tmp_path / queue / "checkpoint", queue) is not None for queue in queues)
        queries = [start(spark, server, queue, tmp_path / queue) for queue in queues]
        assert all(query.awaitTermination(TIMEOUT_S) for query in queries)
        left = {queue: server.message_counts(queue)[0] for queue in queues}
    for queue, expected in queues.items():
        # Read file by file: Spark would also look for the files of the earlier batches.
        files = (tmp_path / queue / "output").glob("*.parquet")
        ids = [message_id for file in files for message_id in pq.read_table(file).column("messageId").to_pylist()]
        assert sorted(ids) == sorted(set(expected["sent"]) - set(expected["read"])), queue
        assert left[queue] == 0, "all processed messages are completed"
