"""Q04: rows that a paired task may have sent before are marked: rows of a second attempt, and of a rerun batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import TaskContext

from tests.pipeline.sink.test_paired_writing import pair_options, servers  # noqa: F401  # a fixture
from tests.support.server_pair import QUEUE, create_queue, receive_all
from twinbus.client.sync import BrokeredMessage, MessagingFactory
from twinbus.pipeline.sink import writers
from twinbus.pipeline.sink.options import read_options
from twinbus.pipeline.sink.writers import BATCH_ID_PROPERTY, RUN_ID_PROPERTY, BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess

DUPLICATE_MARK = "x-ms-possible-duplicate"
ROWS = 12
LARGE = 7


def marks(server: ServerProcess) -> list[tuple[str, object]]:
    return [(message.text, message.properties.get(DUPLICATE_MARK)) for message in asyncio.run(receive_all(server, 1))]


def run_as(monkeypatch: pytest.MonkeyPatch, attempt: int, properties: dict[str, str]) -> None:
    """Set the attempt and the properties of the current Spark task."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    TaskContext(attemptNumber=attempt, localProperties=properties)


def test_q04_rows_of_a_second_attempt_are_marked(
    monkeypatch: pytest.MonkeyPatch,
    servers: tuple[ServerProcess, ServerProcess],  # noqa: F811
    tmp_path: Path,
) -> None:
    primary = servers[0]
    rows = [pa.RecordBatch.from_pydict({"body": ["apples"]})]
    paired, unpaired = (
        pair_options(*servers),
        {"connectionString": pair_options(*servers)["connectionString"], "entity": QUEUE},
    )
    for attempt, mark in ((0, None), (1, True)):
        run_as(monkeypatch, attempt, {})
        BatchWriter(read_options(paired)).write(iter(rows))
        assert marks(primary) == [("apples", mark)]
        BatchWriter(read_options(unpaired)).write(iter(rows))
        assert marks(primary) == [("apples", None)], "without a pair nothing is marked"
        run_as(monkeypatch, attempt, {BATCH_ID_PROPERTY: "3", RUN_ID_PROPERTY: "first"})
        StreamWriter(read_options(paired | {"checkpointLocation": str(tmp_path / "checkpoint")})).write(iter(rows))
        assert marks(primary) == [("apples", mark)]
    run_as(monkeypatch, 0, {BATCH_ID_PROPERTY: "3", RUN_ID_PROPERTY: "first"})
    StreamWriter(read_options(paired)).write(iter(rows))
    assert marks(primary) == [("apples", True)], "without a checkpoint it is unknown whether the batch ran before"


def test_q04_a_rerun_batch_of_a_stream_is_marked(
    spark: SparkSession,
    servers: tuple[ServerProcess, ServerProcess],  # noqa: F811
    tmp_path: Path,
) -> None:
    primary, source = servers[0], "baskets"
    asyncio.run(create_queue(primary, source))
    options = pair_options(*servers)

    def copy(body: str) -> None:
        rows = spark.readStream.format("servicebus").options(
            connectionString=options["connectionString"], entity=source
        )
        query = (
            rows.load()
            .selectExpr(f"{body} body", "'one' sessionId")
            .writeStream.format("servicebus")
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    texts = [f"A{number}" for number in range(ROWS)]
    with MessagingFactory.from_connection_string(options["connectionString"]) as factory:
        factory.create_message_sender(source).send_batch([BrokeredMessage(text) for text in texts])
    with pytest.raises(Exception, match="cannot be sent to"):
        copy(f"if(cast(body as string) = 'A{LARGE}', repeat('x', 300000), cast(body as string))")
    first = marks(primary)
    assert first == [(text, None) for text in texts[:LARGE]], "the rows before the large one were sent"
    copy("cast(body as string)")
    assert sorted(marks(primary)) == sorted((text, True) for text in texts)


def test_q04_a_started_batch_is_remembered_until_the_next_batch_is_written(tmp_path: Path) -> None:
    checkpoint = f"file://{tmp_path}"
    assert not writers.mark_batch_begun(checkpoint, 3, "first")
    assert not writers.mark_batch_begun(checkpoint, 3, "first"), "another task of the same run"
    writers.remove_batch_marks_before(checkpoint, 3)
    assert writers.mark_batch_begun(checkpoint, 3, "second"), "Spark may not have noted the commit of the batch"
    assert not writers.mark_batch_begun(checkpoint, 4, "second")
    writers.remove_batch_marks_before(checkpoint, 4)
    assert [folder.name for folder in (tmp_path / writers.BEGUN_FOLDER).iterdir()] == ["4"]
