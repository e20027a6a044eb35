"""The syphon on a cluster: no message is lost if an executor is killed or the driver is stopped."""

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
"""Generous, since each Python program starts two Java programs, which is slow on a busy machine."""


class Command:
    """The command `twinbus pipeline syphon` in a separate process."""

    def __init__(self, pair: ParkedPair, cluster: SparkCluster, log: Path, *options: str) -> None:
        strings = (pair.primary.connection_string, pair.secondary.connection_string)
        arguments = ["pipeline", "syphon", *strings, pair.secondary.admin_connection_string, "--primary-name=contoso"]
        arguments += [f"--ca-file={pair.secondary.ca_file}", f"--master={cluster.url}", *options]
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "twinbus", *arguments], stdout=output, stderr=output
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        self._process.terminate()

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return await asyncio.to_thread(self._process.wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # the condition depends on other processes
            await asyncio.sleep(0.01)


@pytest.mark.timeout(LIMIT_S)
def test_a_killed_executor_loses_nothing_and_its_duplicates_are_detected(
    tmp_path: Path, cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def scenario() -> None:
        async with run_parked_pair(tmp_path) as pair:
            # Three consecutive messages have the same destination, so that each backlog queue has messages for both.
            texts = {f"order {number}": ORDERS if number // 3 % 2 else DEDUPLICATED for number in range(COUNT)}
            await pair.park([parked_payload(text, path) for text, path in texts.items()])
            with Command(pair, cluster, tmp_path / "said", "--available-now") as command:
                await until(lambda: pair.primary.message_counts(ORDERS)[0] > 0)
                pair.primary.pause()  # sends stay unconfirmed until their executor is dead
                cluster.kill_executor()
                pair.primary.resume()
                assert await command.wait() == 0, command.output
            assert pair.parked_count() == 0
            arrived = Counter(await pair.arrived(COUNT // 2) + await pair.arrived(COUNT // 2, DEDUPLICATED))
            assert set(arrived) == set(texts), "nothing is lost"
            assert [text for text, count in arrived.items() if count > 1 and texts[text] == DEDUPLICATED] == []
            assert ">=" in command.output, "the count of a lost task is a lower bound"
            secrets = [pair.primary.key.encode(), pair.secondary.key.encode()]
            logs = [file for file in tmp_path_factory.getbasetemp().glob("cluster*/**/*") if file.is_file()]
            assert any("work" in file.parts for file in logs)
            for text in (command.output.encode(), *(file.read_bytes() for file in logs)):
                assert not any(secret in text for secret in secrets)

    uvloop.run(scenario())


@pytest.mark.timeout(LIMIT_S)
def test_a_stopped_syphon_finishes_its_sends_and_reports(tmp_path: Path, cluster: SparkCluster) -> None:
    async def scenario() -> None:
        async with run_parked_pair(tmp_path) as pair:
            await pair.park([parked_payload(f"order {number}") for number in range(COUNT)])
            with Command(pair, cluster, tmp_path / "said") as command:
                await until(lambda: pair.primary.message_counts(ORDERS)[0] > 0)
                command.stop()
                assert await command.wait() == 0, command.output
            left = pair.parked_count()
            arrived = await pair.arrived(COUNT - left)
            assert len(set(arrived)) == len(arrived) == COUNT - left, "no message is lost or duplicated"
            assert f"{len(arrived):,} messages were moved, 0 dead-lettered." in command.output

    uvloop.run(scenario())
