"""A send waits for a busy primary or secondary within its operation timeout, however short that is."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from tests.support.paired_application import Application, in_memory_pair_application
from tests.support.parts import local_part
from twinbus.client import NO_RETRY, BrokeredMessage
from twinbus.client.pairing import NotSent
from twinbus.model.errors import FailureClass, QuotaExceeded, ServerBusy
from twinbus.testing import in_virtual_time

LIMIT_S = 8.0
"""Shorter than the ten seconds that a client waits for a busy server."""
BUSY_S = 0.8 * LIMIT_S


def make_backlog_busy(app: Application) -> None:
    app.namespaces.secondary.outage.busy(*[queue.path for queue in app.pairing.rotation.queues])


@in_virtual_time
async def test_a_send_to_a_busy_primary_is_tried_again_within_a_short_timeout() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S) as app:
        outage, loop = app.namespaces.primary.outage, asyncio.get_running_loop()
        outage.busy("orders")
        loop.call_later(BUSY_S, outage.restore)
        await app.queue_client().send(BrokeredMessage("apples"))
        assert await app.arrived_bodies() == ["apples"]
        assert app.events == []


@in_virtual_time
async def test_sends_to_a_primary_that_stays_busy_fail_near_their_timeout_after_few_attempts() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S, retry_policy=NO_RETRY) as app:
        queue, loop = app.queue_client(), asyncio.get_running_loop()
        await queue.send(BrokeredMessage("before"))
        app.namespaces.primary.outage.busy("orders")
        for _ in range(3):
            started_s = loop.time()
            with pytest.raises(ServerBusy, match="'orders' is too busy"):
                await queue.send(BrokeredMessage("apples"))
            assert 0.75 * LIMIT_S < loop.time() - started_s <= LIMIT_S
        assert sum(row.failed_sends for row in app.namespaces.primary.usage()) == 3 * 4
        assert app.events == []


@in_virtual_time
async def test_a_schedule_request_to_a_busy_primary_is_tried_again_within_a_short_timeout() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S) as app:
        outage, loop = app.namespaces.primary.outage, asyncio.get_running_loop()
        when = dt.datetime.fromtimestamp(app.namespaces.clock.wall_ms() / 1000 + 3600, dt.UTC)
        outage.busy("orders")
        loop.call_later(BUSY_S, outage.restore)
        assert await app.queue_client().schedule(BrokeredMessage("apples"), when) > 0
        outage.busy("orders")
        started_s = loop.time()
        with pytest.raises(ServerBusy):
            await app.queue_client().schedule(BrokeredMessage("pears"), when)
        assert 0.75 * LIMIT_S < loop.time() - started_s <= LIMIT_S


@in_virtual_time
async def test_errors_that_the_triggers_classify_as_throttled_are_retried_in_the_same_way() -> None:
    async with in_memory_pair_application(
        operation_timeout=LIMIT_S, triggers={QuotaExceeded: FailureClass.THROTTLED}
    ) as app:
        queue, loop = app.queue_client(), asyncio.get_running_loop()
        entity = app.namespaces.primary.broker.find_sendable("orders")
        local_part(entity).stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
        started_s = loop.time()
        with pytest.raises(QuotaExceeded):
            await queue.send(BrokeredMessage("apples"))
        assert 0.75 * LIMIT_S < loop.time() - started_s <= LIMIT_S


@in_virtual_time
async def test_a_send_that_has_to_be_parked_waits_for_a_busy_secondary() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S) as app:
        outage, loop = app.namespaces.secondary.outage, asyncio.get_running_loop()
        app.namespaces.primary.outage.stop()
        make_backlog_busy(app)
        loop.call_later(BUSY_S, outage.restore)
        await app.queue_client().send(BrokeredMessage("apples"))
        assert [message.text for message in await app.parked_messages()] == ["apples"]


@in_virtual_time
async def test_a_send_to_a_secondary_that_stays_busy_fails_near_its_timeout() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S) as app:
        app.namespaces.primary.outage.stop()
        make_backlog_busy(app)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        with pytest.raises(NotSent, match="is too busy"):
            await app.queue_client().send(BrokeredMessage("apples"))
        assert 0.75 * LIMIT_S < loop.time() - started_s <= LIMIT_S
