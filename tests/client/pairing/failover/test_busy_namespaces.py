"""A busy namespace, primary or secondary, is waited for within the operation's time, however short that is."""

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
"""Less than the ten seconds that a busy server is given."""
BUSY_S = 0.8 * LIMIT_S


def busy_backlog(app: Application) -> None:
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
async def test_a_primary_that_stays_busy_fails_each_send_late_and_is_asked_few_times() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S, retry_policy=NO_RETRY) as app:
        queue, loop = app.queue_client(), asyncio.get_running_loop()
        await queue.send(BrokeredMessage("before"))
        app.namespaces.primary.outage.busy("orders")
        for _ in range(3):
            begun_s = loop.time()
            with pytest.raises(ServerBusy, match="'orders' is too busy"):
                await queue.send(BrokeredMessage("apples"))
            assert 0.75 * LIMIT_S < loop.time() - begun_s <= LIMIT_S
        assert sum(row.failed_sends for row in app.namespaces.primary.usage()) == 3 * 4
        assert app.events == []


@in_virtual_time
async def test_a_schedule_at_a_busy_primary_is_tried_again_within_a_short_timeout() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S) as app:
        outage, loop = app.namespaces.primary.outage, asyncio.get_running_loop()
        when = dt.datetime.fromtimestamp(app.namespaces.clock.wall_ms() / 1000 + 3600, dt.UTC)
        outage.busy("orders")
        loop.call_later(BUSY_S, outage.restore)
        assert await app.queue_client().schedule(BrokeredMessage("apples"), when) > 0
        outage.busy("orders")
        begun_s = loop.time()
        with pytest.raises(ServerBusy):
            await app.queue_client().schedule(BrokeredMessage("pears"), when)
        assert 0.75 * LIMIT_S < loop.time() - begun_s <= LIMIT_S


@in_virtual_time
async def test_what_the_triggers_call_throttled_is_waited_for_in_the_same_way() -> None:
    async with in_memory_pair_application(
        operation_timeout=LIMIT_S, triggers={QuotaExceeded: FailureClass.THROTTLED}
    ) as app:
        queue, loop = app.queue_client(), asyncio.get_running_loop()
        entity = app.namespaces.primary.broker.find_sendable("orders")
        local_part(entity).stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
        begun_s = loop.time()
        with pytest.raises(QuotaExceeded):
            await queue.send(BrokeredMessage("apples"))
        assert 0.75 * LIMIT_S < loop.time() - begun_s <= LIMIT_S


@in_virtual_time
async def test_a_send_that_has_to_be_parked_waits_for_a_busy_secondary() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S) as app:
        outage, loop = app.namespaces.secondary.outage, asyncio.get_running_loop()
        app.namespaces.primary.outage.stop()
        busy_backlog(app)
        loop.call_later(BUSY_S, outage.restore)
        await app.queue_client().send(BrokeredMessage("apples"))
        assert [message.text for message in await app.parked_messages()] == ["apples"]


@in_virtual_time
async def test_a_secondary_that_stays_busy_fails_the_send_late() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=LIMIT_S) as app:
        app.namespaces.primary.outage.stop()
        busy_backlog(app)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(NotSent, match="is too busy"):
            await app.queue_client().send(BrokeredMessage("apples"))
        assert 0.75 * LIMIT_S < loop.time() - begun_s <= LIMIT_S
