"""The line between task and driver: what is moved is told, and the end is heard, whoever is gone."""

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
    """One that keeps what it hears."""

    def __init__(self) -> None:
        self.received: list[tuple[TaskId, list[MovedCount], dict[str, str]]] = []
        self.news = asyncio.Event()
        self.exchange = TaskServer(self._on_call)
        self.address: DriverAddress

    def _on_call(self, caller: TaskId, rows: list[MovedCount], troubles: dict[str, str]) -> None:
        self.received.append((caller, rows, troubles))
        self.news.set()


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Driver]:
    driver = Driver()
    driver.address = await driver.exchange.open("127.0.0.1", "127.0.0.1")
    try:
        yield driver
    finally:
        await driver.exchange.close()


async def test_what_a_task_moves_is_told_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_connection, "REPORT_INTERVAL_S", 0.01)
    tally = TaskProgress(["backlog"])
    async with listening() as driver, connect_to_driver(driver.address, TASK) as call:
        telling = asyncio.ensure_future(call.send_reports(tally))
        for number in (1, 2, 3):
            tally.count_moved("backlog", "orders", number)
        while not any(rows for _, rows, _ in driver.received):
            driver.news.clear()
            await driver.news.wait()
        telling.cancel()
    caller, rows, _ = driver.received[-1]
    assert caller == TASK
    assert rows == [MovedCount("backlog", "orders", 3, 0, 1, 3)]


async def test_many_destinations_are_told_in_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_connection, "REPORT_INTERVAL_S", 0.01)
    tally = TaskProgress(["backlog"])
    for number in range(450):
        tally.count_moved("backlog", f"orders-{number}", number)
    async with listening() as driver, connect_to_driver(driver.address, TASK) as call:
        telling = asyncio.ensure_future(call.send_reports(tally))
        while sum(len(rows) for _, rows, _ in driver.received) < 450:
            driver.news.clear()
            await driver.news.wait()
        telling.cancel()
    assert {row.destination for _, rows, _ in driver.received for row in rows} == {f"orders-{n}" for n in range(450)}


async def test_a_task_hears_that_its_round_is_over_and_no_other_round_does() -> None:
    async with (
        listening() as driver,
        connect_to_driver(driver.address, TASK) as call,
        connect_to_driver(driver.address, TaskId(2, 0, 0)) as other,
    ):
        assert driver.exchange.connected_tasks(1) == [TASK]
        driver.exchange.end_round(1, "enough")
        assert await call.end_reason == "enough"
        assert not other.end_reason.done()


async def test_a_task_that_calls_when_its_round_is_over_ends_before_it_begins() -> None:
    async with listening() as driver:
        driver.exchange.end_round(1, "enough")
        async with connect_to_driver(driver.address, TASK) as call:
            assert call.end_reason.done()
            assert call.end_reason.result() == "enough"


async def test_a_task_ends_with_its_driver() -> None:
    async with listening() as driver, connect_to_driver(driver.address, TASK) as call:
        await driver.exchange.close()
        assert await call.end_reason == DRIVER_LOST


async def test_who_does_not_know_the_token_is_not_heard() -> None:
    async with listening() as driver, connect_to_driver(replace(driver.address, token="guessed"), TASK) as call:
        assert call.end_reason.result() == DRIVER_LOST
        assert driver.received == []
        assert driver.exchange.connected_tasks(1) == []


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b'{"token": 7}\n', b"\xff\n"])
async def test_what_is_no_task_of_ours_is_shown_the_door(said: bytes) -> None:
    async with listening() as driver:
        reader, writer = await asyncio.open_connection(driver.address.host, driver.address.port)
        writer.write(said)
        assert await reader.read() == b""
        writer.close()
        assert driver.received == []


async def test_nonsense_from_a_task_ends_its_call_and_nothing_else() -> None:
    async with listening() as driver, connect_to_driver(driver.address, TASK) as good:
        reader, writer = await asyncio.open_connection(driver.address.host, driver.address.port)
        hello = {"token": driver.address.token, "round": 1, "group": 1, "attempt": 0}
        writer.write(json.dumps(hello).encode() + b'\n{"moved": 7}\n')
        assert json.loads(await reader.readline()) == {"go": True}
        assert await reader.read() == b""
        writer.close()
        assert driver.exchange.connected_tasks(1) == [TASK]
        assert not good.end_reason.done()


async def test_a_driver_that_is_not_reached_is_named() -> None:
    async with listening() as driver:
        pass
    with pytest.raises(PipelineError, match=f"127.0.0.1:{driver.address.port}.*spark.driver.host"):
        async with connect_to_driver(driver.address, TASK):
            pass
