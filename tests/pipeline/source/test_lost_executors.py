"""A stream on a cluster: if an executor is killed during a batch, every message is still in the files exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from tests.pipeline.spark_cluster import wait_for
from twinbus.client.sync import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pipeline.source.message_feed import MessageFeed
    from tests.pipeline.spark_cluster import SparkCluster

COUNT: Final = 4_000
MORE: Final = 500
LIMIT: Final = 1_500
TIMEOUT_S: Final = 300.0


def start(cluster: SparkCluster, feed: MessageFeed, queue: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the driver in a separate process."""
    command = [sys.executable, "-m", "tests.pipeline.source.stream_job", cluster.url, queue, str(folder), str(LIMIT)]
    environment = {**os.environ, "TWINBUS": feed.server.connection_string}
    with (folder / "said").open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def read(folder: Path) -> list[int]:
    """Return the bodies in the files that Spark's log of committed files lists; it omits the files of lost tasks."""
    listed = [
        line.split('"path":"', 1)[1].split('"', 1)[0].removeprefix("file://")
        for log in (folder / "output" / "_spark_metadata").iterdir()
        if log.name.isdecimal()
        for line in log.read_text().splitlines()[1:]
    ]
    return sorted(int(body) for file in listed for body in pq.read_table(file, columns=["body"])["body"].to_pylist())


def test_a_killed_executor_loses_no_message_and_duplicates_none(
    cluster: SparkCluster, feed: MessageFeed, tmp_path: Path
) -> None:
    queue = feed.queue(partitioned=True)
    feed.send_all(queue, [BrokeredMessage(f"{n}", partition_key=uuid.uuid4().hex) for n in range(200)])
    feed.send(queue, COUNT - 200, first=200)
    driver = start(cluster, feed, queue, tmp_path)
    try:
        wait_for((tmp_path / "checkpoint/offsets/1").exists, "the second batch", TIMEOUT_S)
        feed.server.pause()  # the executor is killed while it waits for messages
        cluster.kill_executor()
        feed.server.resume()
        assert driver.wait(TIMEOUT_S) == 0, (tmp_path / "said").read_text()
        assert read(tmp_path) == list(range(COUNT))
        assert feed.count(queue) == 0
        feed.send(queue, MORE, first=COUNT)
        driver = start(cluster, feed, queue, tmp_path)
        assert driver.wait(TIMEOUT_S) == 0, (tmp_path / "said").read_text()
    finally:
        driver.kill()
        driver.wait()
    assert read(tmp_path) == list(range(COUNT + MORE))
    assert feed.count(queue) == 0
    assert feed.server.key not in (tmp_path / "said").read_text()
