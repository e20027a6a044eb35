"""The syphon on a cluster: an executor is killed in the middle, or the driver is told to stop, and nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final, Self

import pytest
import uvloop

from tests.pipeline.syphon.parked_pair import DEDUPLICATED, ORDERS, parked_payload, run_parked_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.pipeline.spark_cluster import SparkCluster
    from tests.pipeline.syphon.parked_pair import ParkedPair

COUNT: Final = 12_000
TIMEOUT_S: Final = 200.0
LIMIT_S: Final = 400
"""Two programs in Java for each in Python: where others keep the processors busy they start slowly."""


class Command:
    """`twinbus pipeline syphon`, as a user types it."""

    def __init__(self, here: ParkedPair, cluster: SparkCluster, log: Path, *options: str) -> None:
        strings = (here.primary.connection_string, here.secondary.connection_string)
        words = ["pipeline", "syphon", *strings, here.secondary.admin_connection_string, "--primary-name=contoso"]
        words += [f"--ca-file={here.secondary.ca_file}", f"--master={cluster.url}", *options]
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen([sys.executable, "-m", "twinbus", *words], stdout=output, stderr=output)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        self._process.terminate()

    async def ended(self) -> int:
        """Its exit code."""
        return await asyncio.to_thread(self._process.wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # it happens in other processes
            await asyncio.sleep(0.01)


@pytest.mark.timeout(LIMIT_S)
def test_an_executor_killed_in_the_middle_costs_nothing_but_duplicates_that_are_detected(
    tmp_path: Path, cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def test() -> None:
        async with run_parked_pair(tmp_path) as here:
            # Three in a row to the same destination: each backlog queue has some for both.
            texts = {f"order {number}": ORDERS if number // 3 % 2 else DEDUPLICATED for number in range(COUNT)}
            await here.park([parked_payload(text, path) for text, path in texts.items()])
            with Command(here, cluster, tmp_path / "said", "--available-now") as command:
                await until(lambda: here.primary.message_counts(ORDERS)[0] > 0)
                here.primary.pause()  # what is on its way stays so until nobody is there who would hear of it
                cluster.kill_executor()
                here.primary.resume()
                assert await command.ended() == 0, command.said
            assert here.parked_count() == 0
            arrived = Counter(await here.arrived(COUNT // 2) + await here.arrived(COUNT // 2, DEDUPLICATED))
            assert set(arrived) == set(texts), "nothing is lost"
            assert [text for text, count in arrived.items() if count > 1 and texts[text] == DEDUPLICATED] == []
            assert ">=" in command.said, "of a task that was lost it is not known what it moved last"
            secrets = [here.primary.key.encode(), here.secondary.key.encode()]
            logs = [file for file in tmp_path_factory.getbasetemp().glob("cluster*/**/*") if file.is_file()]
            assert any("work" in file.parts for file in logs)
            for text in (command.said.encode(), *(file.read_bytes() for file in logs)):
                assert not any(secret in text for secret in secrets)

    uvloop.run(test())


@pytest.mark.timeout(LIMIT_S)
def test_told_to_stop_it_finishes_what_is_on_its_way_and_reports(tmp_path: Path, cluster: SparkCluster) -> None:
    async def test() -> None:
        async with run_parked_pair(tmp_path) as here:
            await here.park([parked_payload(f"order {number}") for number in range(COUNT)])
            with Command(here, cluster, tmp_path / "said") as command:
                await until(lambda: here.primary.message_counts(ORDERS)[0] > 0)
                command.stop()
                assert await command.ended() == 0, command.said
            left = here.parked_count()
            arrived = await here.arrived(COUNT - left)
            assert len(set(arrived)) == len(arrived) == COUNT - left, "nothing half done: neither lost nor twice"
            assert f"{len(arrived):,} messages were moved, 0 dead-lettered." in command.said

    uvloop.run(test())
