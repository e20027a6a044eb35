"""Jobs of Spark whose tasks are paired: they survive the loss of the primary; and the page's examples run."""

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
LOOK_S = 0.02


def pair(primary: ServerProcess, secondary: ServerProcess) -> dict[str, str]:
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
def both(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Spark is called from the thread that its session was made on, so these are no coroutines."""
    for name in ("contoso", "contoso-backup"):
        (tmp_path / name).mkdir()
    with (
        run_server(tmp_path / "contoso") as primary,
        run_server(tmp_path / "contoso-backup", name="contoso-backup") as secondary,
    ):
        asyncio.run(create_queue(primary, QUEUE))
        yield primary, secondary


def ids(server: ServerProcess, path: str = QUEUE) -> list[str]:
    return [str(one.message_id) for one in asyncio.run(receive_all(server, 0, path))]


def test_a_job_whose_primary_is_killed_loses_nothing(
    spark: SparkSession, both: tuple[ServerProcess, ServerProcess]
) -> None:
    primary, secondary = both
    rows = spark.range(0, COUNT, 1, 4).selectExpr("cast(id as string) messageId", "repeat('x', 500) body")
    is_over = threading.Event()

    def kill() -> None:
        while primary.message_counts(QUEUE)[0] == 0 and not is_over.wait(LOOK_S):
            pass
        primary.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        rows.write.format("servicebus").options(**pair(primary, secondary)).mode("append").save()
    finally:
        is_over.set()
        killer.join()
    parked = [one for index in range(BACKLOG_QUEUES) for one in ids(secondary, backlog_queue_path("contoso", index))]
    primary.start()
    arrived = ids(primary)
    assert parked
    assert arrived
    assert {*parked, *arrived} == {str(number) for number in range(COUNT)}


def test_the_examples_of_the_page_run(spark: SparkSession, both: tuple[ServerProcess, ServerProcess]) -> None:
    assert spark is not None, "the examples take the session that there is"
    told = pair(*both)
    names: dict[str, object] = {
        "PRIMARY": told["connectionString"],
        "SECONDARY": told["secondaryConnectionString"],
        "SECONDARY_ADMIN": told["secondaryAdminConnectionString"],
    }
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(example, names)  # noqa: S102  # our own page
    found = asyncio.run(receive_all(both[0], 2))
    assert [one.text for one in found] == ["two pounds of apples"] * 2
    assert {one.properties["priority"] for one in found} == {"high"}
