"""The connection between a task and the driver: tasks report moved messages, and learn when their round ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.syphon import driver_connection
from twinbus.pipeline.syphon.driver_connection import DRIVER_LOST, TaskId, TaskServer, connect_to_driver
from twinbus.pipeline.syphon.progress import MovedCount, TaskProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.pipeline.syphon.assignment import DriverAddress

TASK = TaskId(1, 0, 0)


class Driver:
    """A driver that records the reports of its tasks."""

    def __init__(self) -> None:
        self.received: list[tuple[TaskId, list[MovedCount], dict[str, str]]] = []
        self.report_arrived = asyncio.Event()
        self.server = TaskServer(self._on_call)
        self.address: DriverAddress

    def _on_call(self, task: TaskId, rows: list[MovedCount], problems: dict[str, str]) -> None:
        self.received.append((task, rows, problems))
        self.report_arrived.set()


@contextlib.asynccontextmanager
async def listening_driver() -> AsyncIterator[Driver]:
    driver = Driver()
    driver.address = await driver.server.open("127.0.0.1", "127.0.0.1")
    try:
        yield driver
    finally:
        await driver.server.close()


async def test_a_task_reports_its_current_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_connection, "REPORT_INTERVAL_S", 0.01)
    progress = TaskProgress(["backlog"])
    async with listening_driver() as driver, connect_to_driver(driver.address, TASK) as connection:
        reporting = asyncio.ensure_future(connection.send_reports(progress))
        for number in (1, 2, 3):
            progress.count_moved("backlog", "orders", number)
        while not any(rows for _, rows, _ in driver.received):
            driver.report_arrived.clear()
            await driver.report_arrived.wait()
        reporting.cancel()
    task, rows, _ = driver.received[-1]
    assert task == TASK
    assert rows == [MovedCount("backlog", "orders", 3, 0, 1, 3)]


async def test_many_destinations_are_reported_in_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_connection, "REPORT_INTERVAL_S", 0.01)
    progress = TaskProgress(["backlog"])
    for number in range(450):
        progress.count_moved("backlog", f"orders-{number}", number)
    async with listening_driver() as driver, connect_to_driver(driver.address, TASK) as connection:
        reporting = asyncio.ensure_future(connection.send_reports(progress))
        while sum(len(rows) for _, rows, _ in driver.received) < 450:
            driver.report_arrived.clear()
            await driver.report_arrived.wait()
        reporting.cancel()
    assert {row.destination for _, rows, _ in driver.received for row in rows} == {f"orders-{n}" for n in range(450)}


async def test_the_end_of_a_round_reaches_only_the_tasks_of_that_round() -> None:
    async with (
        listening_driver() as driver,
        connect_to_driver(driver.address, TASK) as connection,
        connect_to_driver(driver.address, TaskId(2, 0, 0)) as other,
    ):
        assert driver.server.connected_tasks(1) == [TASK]
        driver.server.end_round(1, "enough")
        assert await connection.end_reason == "enough"
        assert not other.end_reason.done()


async def test_a_task_that_connects_after_the_end_of_its_round_ends_at_once() -> None:
    async with listening_driver() as driver:
        driver.server.end_round(1, "enough")
        async with connect_to_driver(driver.address, TASK) as connection:
            assert connection.end_reason.done()
            assert connection.end_reason.result() == "enough"


async def test_a_task_ends_with_its_driver() -> None:
    async with listening_driver() as driver, connect_to_driver(driver.address, TASK) as connection:
        await driver.server.close()
        assert await connection.end_reason == DRIVER_LOST


async def test_a_task_with_a_wrong_token_is_refused() -> None:
    async with (
        listening_driver() as driver,
        connect_to_driver(replace(driver.address, token="guessed"), TASK) as connection,
    ):
        assert connection.end_reason.result() == DRIVER_LOST
        assert driver.received == []
        assert driver.server.connected_tasks(1) == []


@pytest.mark.parametrize("first_bytes", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b'{"token": 7}\n', b"\xff\n"])
async def test_a_connection_without_a_valid_hello_is_closed(first_bytes: bytes) -> None:
    async with listening_driver() as driver:
        reader, writer = await asyncio.open_connection(driver.address.host, driver.address.port)
        writer.write(first_bytes)
        assert await reader.read() == b""
        writer.close()
        assert driver.received == []


async def test_an_invalid_report_closes_only_the_connection_of_its_task() -> None:
    async with listening_driver() as driver, connect_to_driver(driver.address, TASK) as good:
        reader, writer = await asyncio.open_connection(driver.address.host, driver.address.port)
        hello = {"token": driver.address.token, "round": 1, "group": 1, "attempt": 0}
        writer.write(json.dumps(hello).encode() + b'\n{"moved": 7}\n')
        assert json.loads(await reader.readline()) == {"go": True}
        assert await reader.read() == b""
        writer.close()
        assert driver.server.connected_tasks(1) == [TASK]
        assert not good.end_reason.done()


async def test_an_unreachable_driver_is_named() -> None:
    async with listening_driver() as driver:
        pass
    with pytest.raises(PipelineError, match=f"127.0.0.1:{driver.address.port}.*spark.driver.host"):
        async with connect_to_driver(driver.address, TASK):
            pass
