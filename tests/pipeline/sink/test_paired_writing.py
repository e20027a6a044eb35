"""Spark jobs with paired tasks survive the loss of the primary; the examples of docs/pipeline-writing.md run."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server_pair import BACKLOG_QUEUES, QUEUE, connection_string, create_queue, receive_all
from tests.support.server_process import run_server
from twinbus.client.pairing.backlog.rotation import backlog_queue_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess

PAGE = Path(__file__).parents[3] / "docs" / "pipeline-writing.md"
COUNT = 20_000
POLL_S = 0.02


def pair_options(primary: ServerProcess, secondary: ServerProcess) -> dict[str, str]:
    return {
        "connectionString": connection_string(primary),
        "entity": QUEUE,
        "operationTimeout": "10",
        "secondaryConnectionString": connection_string(secondary),
        "secondaryAdminConnectionString": connection_string(secondary, port=secondary.http_port),
        "backlogQueueCount": str(BACKLOG_QUEUES),
        "failoverInterval": "0",
        "primaryName": "contoso",
    }


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Run two servers. The tests are no coroutines, since Spark must be called on the thread of its session."""
    for name in ("contoso", "contoso-backup"):
        (tmp_path / name).mkdir()
    with (
        run_server(tmp_path / "contoso") as primary,
        run_server(tmp_path / "contoso-backup", name="contoso-backup") as secondary,
    ):
        asyncio.run(create_queue(primary, QUEUE))
        yield primary, secondary


def ids(server: ServerProcess, path: str = QUEUE) -> list[str]:
    return [str(message.message_id) for message in asyncio.run(receive_all(server, 0, path))]


def test_a_job_whose_primary_is_killed_loses_nothing(
    spark: SparkSession, servers: tuple[ServerProcess, ServerProcess]
) -> None:
    primary, secondary = servers
    rows = spark.range(0, COUNT, 1, 4).selectExpr("cast(id as string) messageId", "repeat('x', 500) body")
    job_ended = threading.Event()

    def kill() -> None:
        while primary.message_counts(QUEUE)[0] == 0 and not job_ended.wait(POLL_S):
            pass
        primary.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        rows.write.format("servicebus").options(**pair_options(primary, secondary)).mode("append").save()
    finally:
        job_ended.set()
        killer.join()
    parked = [
        message_id
        for index in range(BACKLOG_QUEUES)
        for message_id in ids(secondary, backlog_queue_path("contoso", index))
    ]
    primary.start()
    arrived = ids(primary)
    assert parked
    assert arrived
    assert {*parked, *arrived} == {str(number) for number in range(COUNT)}


def test_the_examples_of_the_page_run(spark: SparkSession, servers: tuple[ServerProcess, ServerProcess]) -> None:
    assert spark is not None, "the examples use the existing session"
    options = pair_options(*servers)
    names: dict[str, object] = {
        "PRIMARY": options["connectionString"],
        "SECONDARY": options["secondaryConnectionString"],
        "SECONDARY_ADMIN": options["secondaryAdminConnectionString"],
    }
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(example, names)  # noqa: S102  # our own page
    messages = asyncio.run(receive_all(servers[0], 2))
    assert [message.text for message in messages] == ["two pounds of apples"] * 2
    assert {message.properties["priority"] for message in messages} == {"high"}
