"""A stream goes on from a checkpoint that an earlier version wrote: nothing is read twice, nothing is missing."""

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
    """The query that has written the checkpoint, with what is available now."""
    source = spark.readStream.format("servicebus").option("connectionString", server.connection_string)
    rows = source.option("entity", queue).option("complete", "processed").load()
    sink = rows.writeStream.format("parquet").option("path", str(folder / "output"))
    return sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


def test_the_next_run_reads_exactly_what_was_not_read(spark: SparkSession, tmp_path: Path) -> None:
    found = unpack("jobs", tmp_path)
    with run_server(tmp_path) as server:
        assert all(read_processed_offsets(tmp_path / queue / "checkpoint", queue) is not None for queue in found)
        queries = [start(spark, server, queue, tmp_path / queue) for queue in found]
        assert all(query.awaitTermination(TIMEOUT_S) for query in queries)
        left = {queue: server.message_counts(queue)[0] for queue in found}
    for queue, expected in found.items():
        # Read file by file: Spark would look for the files of the earlier batches, too.
        files = (tmp_path / queue / "output").glob("*.parquet")
        ids = [one for file in files for one in pq.read_table(file).column("messageId").to_pylist()]
        assert sorted(ids) == sorted(set(expected["sent"]) - set(expected["read"])), queue
        assert left[queue] == 0, "all that was processed is completed"
