"""`spark.readStream.format("servicebus")`: each message is in one batch, and is completed if the query asks for it."""

from __future__ import annotations

import json
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import wait_until
from twinbus.client.sync import BrokeredMessage
from twinbus.model.errors import EntityClaimed
from twinbus.pipeline.source import complete_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.pipeline.source.message_feed import MessageFeed

    MakeJob: TypeAlias = Callable[..., "Job"]

TIMEOUT_S = 300.0


class Job:
    """A query from an entity to Parquet files that can be run several times."""

    def __init__(self, spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
        self.checkpoint = folder / "checkpoint"
        self.options = options
        self._spark = spark
        self.output = folder / "output"

    def writer(self) -> DataStreamWriter:
        rows = self._spark.readStream.format("servicebus").options(**self.options).load()
        stream = rows.writeStream.format("parquet").option("path", str(self.output))
        return stream.option("checkpointLocation", str(self.checkpoint))

    def run(self) -> StreamingQuery:
        """Process all available messages, and wait for the end of the query."""
        query = self.writer().trigger(availableNow=True).start()
        assert query.awaitTermination(int(TIMEOUT_S))
        return query

    def bodies(self) -> list[int]:
        return sorted(int(row.body) for row in self._spark.read.parquet(str(self.output)).select("body").collect())

    def offsets(self, batch: int) -> dict[str, object]:
        last_line: dict[str, object] = json.loads(
            (self.checkpoint / "offsets" / f"{batch}").read_text().splitlines()[-1]
        )
        return last_line


@pytest.fixture
def make_job(spark: SparkSession, tmp_path: Path, feed: MessageFeed) -> MakeJob:
    return lambda entity, **options: Job(spark, tmp_path, feed.options(entity, **options))


def test_a_run_continues_after_the_last_one_and_leaves_the_messages_in_place(
    feed: MessageFeed, make_job: MakeJob
) -> None:
    queue = feed.queue(partitioned=True)
    feed.send_all(queue, [BrokeredMessage(f"{n}", partition_key=uuid.uuid4().hex) for n in range(60)])
    job = make_job(queue)
    job.run()
    assert job.bodies() == list(range(60))
    feed.send(queue, 40, first=60)
    job.run()
    assert job.bodies() == list(range(100))
    assert feed.count(queue) == 100
    assert (job.offsets(0)["version"], job.offsets(0)["entity"]) == (1, queue)


def test_exactly_the_processed_messages_are_completed(feed: MessageFeed, make_job: MakeJob) -> None:
    queue = feed.queue()
    feed.send(queue, 50)
    job = make_job(queue, complete="processed", maxOffsetsPerTrigger=20)
    query = job.run()
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [20, 20, 10]
    assert job.bodies() == list(range(50))
    assert feed.count(queue) == 0
    feed.send(queue, 5, first=50)
    assert complete_checkpoint(job.checkpoint, job.options) is not None
    assert feed.count(queue) == 5
    job.run()
    assert job.bodies() == list(range(55))
    assert feed.count(queue) == 0


def test_a_query_that_completes_messages_receives_exclusively(feed: MessageFeed, make_job: MakeJob) -> None:
    queue = feed.queue()
    feed.send(queue, 10)
    job = make_job(queue, complete="processed")
    query = job.writer().start()
    try:
        wait_until(lambda: feed.count(queue) == 0, timeout_s=TIMEOUT_S)
        with pytest.raises(EntityClaimed), feed.receiver(queue) as receiver:
            receiver.open()
        feed.send(queue, 10, first=10)
        wait_until(lambda: feed.count(queue) == 0, timeout_s=TIMEOUT_S)
    finally:
        query.stop()
    assert job.bodies() == list(range(20))
    wait_until(lambda: _is_free(feed, queue))


def _is_free(feed: MessageFeed, queue: str) -> bool:
    try:
        with feed.receiver(queue) as receiver:
            receiver.open()
    except EntityClaimed:
        return False
    return True


def test_an_exclusive_query_is_refused_while_others_receive(feed: MessageFeed, make_job: MakeJob) -> None:
    queue = feed.queue()
    feed.send(queue, 10)
    with feed.receiver(queue) as receiver:
        (locked,) = receiver.receive_batch(1, 20)
        with pytest.raises(Exception, match="exclusive=false"):
            make_job(queue, complete="processed").run()
        job = make_job(queue, complete="processed", exclusive=False)
        job.run()
        assert job.bodies() == list(range(10))
        assert feed.count(queue) == 1
        receiver.complete(locked)


def test_a_queue_with_sessions_is_completed_too(feed: MessageFeed, make_job: MakeJob) -> None:
    queue = feed.queue(RequiresSession="true")
    feed.send_all(queue, [BrokeredMessage(f"{n}", session_id=f"s{n % 3}") for n in range(9)])
    job = make_job(queue, complete="processed")
    job.run()
    assert job.bodies() == list(range(9))
    assert feed.count(queue) == 0


def test_lost_data_fails_the_query_unless_it_is_tolerated(feed: MessageFeed, make_job: MakeJob) -> None:
    queue = feed.queue()
    feed.send(queue, 3)
    job = make_job(queue)
    job.run()
    feed.server.delete_queue(queue)
    feed.server.create_entity(queue, "QueueDescription")
    feed.send(queue, 2, first=3)
    with pytest.raises(Exception, match="deleted and created again"):
        job.run()
    job.options["failOnDataLoss"] = "false"
    job.run()
    assert job.bodies() == list(range(5))


def test_a_batch_rerun_after_a_purge_fails_the_query(feed: MessageFeed, make_job: MakeJob) -> None:
    queue = feed.queue()
    feed.send(queue, 3)
    job = make_job(queue)
    job.run()
    for folder in (job.checkpoint / "commits", job.output):
        shutil.rmtree(folder)  # as if the driver had been killed before it committed the batch
    feed.purge(queue)
    with pytest.raises(Exception, match="purged up to 3"):
        job.run()
    job.options["failOnDataLoss"] = "false"
    job.run()


def test_after_a_restore_a_query_reads_all_messages_and_completes_them(feed: MessageFeed, make_job: MakeJob) -> None:
    queue = feed.queue()
    feed.send(queue, 10)
    job = make_job(queue, complete="processed", failOnDataLoss=False)
    job.run()
    offsets_file = job.checkpoint / "offsets" / "0"
    offsets_file.write_text(offsets_file.read_text().replace('"0":11', '"0":1000').replace('"0": 11', '"0": 1000'))
    (offsets_file.parent / ".0.crc").unlink()
    feed.send(queue, 10, first=10)
    job.run()
    assert job.bodies() == list(range(20))
    assert feed.count(queue) == 0


def test_a_checkpoint_of_another_entity_is_refused(feed: MessageFeed, make_job: MakeJob) -> None:
    queue, other = feed.queue(), feed.queue()
    feed.send(queue, 1)
    job = make_job(queue)
    job.run()
    job.options["entity"] = other
    with pytest.raises(Exception, match=f"is of '{queue}'; the query reads '{other}'"):
        job.run()
