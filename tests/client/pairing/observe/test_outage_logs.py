"""An outage of a namespace is logged once when it begins and once when it ends, not by each pump and attempt."""

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


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The log records of the client at INFO and above: level and text."""
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name.startswith("twinbus.client") and record.levelno >= logging.INFO
    ]


@in_virtual_time
async def test_x02_the_syphon_logs_one_line_when_an_outage_of_the_primary_begins_and_one_at_its_end(
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
        lines = [line for line in logged(caplog) if "'orders' is " not in line[1]]
        assert [level for level, _ in lines] == ["WARNING", "INFO"], lines
        address = app.pairing.primary.address
        assert lines[0][1].startswith(f"primary lost: {address} cannot be reached: ")
        assert lines[1][1] == f"primary back: {address}"
        assert len([text for _, text in logged(caplog) if "'orders' is " in text]) == 3, "suspect, failed over, healthy"
        assert len(app.events_of(EventKind.PUMP_FAILED)) >= QUEUES, "listeners get an event for each pump"


@in_virtual_time
async def test_x02_an_outage_of_the_secondary_is_one_line_and_its_end_is_another(
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
        lines = logged(caplog)
        assert [level for level, _ in lines] == ["WARNING", "INFO"], lines
        address = app.pairing.secondary.address
        assert lines[0][1].startswith(f"secondary lost: {address}")
        assert lines[1][1] == f"secondary back: {address}"
        assert len(app.events_of(EventKind.PUMP_FAILED)) >= QUEUES


@in_virtual_time
async def test_parking_while_the_secondary_is_down_logs_one_line_not_one_per_backlog_queue(
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
        lines = [line for line in logged(caplog) if "'orders' is " not in line[1]]
        assert [level for level, _ in lines] == ["WARNING", "INFO"], lines
        assert len(app.events_of(EventKind.QUEUE_OUT)) == QUEUES


@in_virtual_time
async def test_a_pump_that_fails_for_another_reason_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with in_memory_pair_application(backlog_queue_count=2, enable_syphon=True) as app:
        await asyncio.sleep(5)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            await app.manager.delete_queue(app.backlog_path(1))
            await asyncio.sleep(60)
        (line,) = logged(caplog)
        assert line[0] == "WARNING"
        assert line[1].startswith(f"pump failed, backlog queue '{app.backlog_path(1)}': ")
