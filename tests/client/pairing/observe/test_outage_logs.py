"""An outage of a namespace is told once at its beginning and once at its end, not by every pump and every attempt."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tests.support.paired_application import in_memory_pair_application
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    import pytest

QUEUES = 10


def written(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Records of the client at INFO and above: level and text."""
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name.startswith("twinbus.client") and record.levelno >= logging.INFO
    ]


@in_virtual_time
async def test_x02_an_outage_of_the_primary_is_one_line_for_the_syphon_and_one_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with in_memory_pair_application(backlog_queue_count=QUEUES, enable_syphon=True, failover_interval=0) as app:
        await asyncio.sleep(5)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            app.namespaces.primary.outage.stop()
            for number in range(40):
                await app.queue_client().send(BrokeredMessage(str(number)))
                await asyncio.sleep(5)
            app.namespaces.primary.outage.restore()
            await asyncio.sleep(120)
        assert len(app.events_of(EventKind.MOVED)) == 40
        lines = [line for line in written(caplog) if "'orders' is " not in line[1]]
        assert [level for level, _ in lines] == ["WARNING", "INFO"], lines
        address = app.pairing.primary.address
        assert lines[0][1].startswith(f"primary lost: {address} cannot be reached: ")
        assert lines[1][1] == f"primary back: {address}"
        assert len([text for _, text in written(caplog) if "'orders' is " in text]) == 3, (
            "suspect, failed over, healthy"
        )
        assert len(app.events_of(EventKind.PUMP_FAILED)) >= QUEUES, "programs hear of each pump"


@in_virtual_time
async def test_x02_an_outage_of_the_secondary_is_one_line_and_one_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with in_memory_pair_application(backlog_queue_count=QUEUES, enable_syphon=True, failover_interval=0) as app:
        await asyncio.sleep(5)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            app.namespaces.secondary.outage.stop()
            await asyncio.sleep(300)
            app.namespaces.secondary.outage.restore()
            await asyncio.sleep(120)
        assert all(pump.is_active for pump in app.pairing.syphon.pumps)  # type: ignore[union-attr]
        lines = written(caplog)
        assert [level for level, _ in lines] == ["WARNING", "INFO"], lines
        address = app.pairing.secondary.address
        assert lines[0][1].startswith(f"secondary lost: {address}")
        assert lines[1][1] == f"secondary back: {address}"
        assert len(app.events_of(EventKind.PUMP_FAILED)) >= QUEUES


@in_virtual_time
async def test_parking_while_the_secondary_is_down_is_one_line_not_one_for_each_backlog_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with in_memory_pair_application(backlog_queue_count=QUEUES, failover_interval=0, operation_timeout=5) as app:
        with caplog.at_level(logging.INFO):
            app.namespaces.primary.outage.stop()
            app.namespaces.secondary.outage.stop()
            for _ in range(5):
                await asyncio.gather(app.queue_client().send(BrokeredMessage()), return_exceptions=True)
                await asyncio.sleep(60)
            app.namespaces.secondary.outage.restore()
            await app.queue_client().send(BrokeredMessage("parked"))
        lines = [line for line in written(caplog) if "'orders' is " not in line[1]]
        assert [level for level, _ in lines] == ["WARNING", "INFO"], lines
        assert len(app.events_of(EventKind.QUEUE_OUT)) == QUEUES


@in_virtual_time
async def test_a_pump_that_fails_for_another_reason_still_warns(caplog: pytest.LogCaptureFixture) -> None:
    async with in_memory_pair_application(backlog_queue_count=2, enable_syphon=True) as app:
        await asyncio.sleep(5)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            await app.manager.delete_queue(app.backlog_path(1))
            await asyncio.sleep(60)
        (line,) = written(caplog)
        assert line[0] == "WARNING"
        assert line[1].startswith(f"pump failed, backlog queue '{app.backlog_path(1)}': ")
