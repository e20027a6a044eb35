"""Q22, Q02 to Q04 and Q07: in a pair, schedule requests fail over, are parked and time out like sends."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from tests.support.paired_application import Application, in_memory_pair_application
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionFailed, EntityNotFound
from twinbus.client.events import SendFailed
from twinbus.client.pairing import EntityState, EventKind, ReservedPropertyName
from twinbus.model.errors import ServerBusy
from twinbus.testing import in_virtual_time


def later(app: Application) -> dt.datetime:
    return dt.datetime.fromtimestamp(app.namespaces.clock.wall_ms() / 1000 + 7200, dt.UTC)


@in_virtual_time
async def test_q07_a_reserved_property_name_is_refused_while_the_primary_is_healthy() -> None:
    async with in_memory_pair_application() as app:
        with pytest.raises(ReservedPropertyName, match="x-ms-path"):
            await app.queue_client().schedule(BrokeredMessage("x", properties={"x-ms-path": "y"}), later(app))
        assert await app.namespaces.primary.messages("orders") == []


@in_virtual_time
async def test_q01_q03_a_failed_schedule_request_triggers_failover_and_is_parked_in_time() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.schedule(BrokeredMessage("apples"), later(app))
        app.namespaces.primary.outage.hang()
        before_s = asyncio.get_running_loop().time()
        assert await queue.schedule(BrokeredMessage("pears"), later(app)) == 0
        assert asyncio.get_running_loop().time() - before_s < 20
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER
        (parked,) = await app.parked_messages()
        assert parked.text == "pears"
        assert "x-ms-possible-duplicate" in parked.properties, (
            "the primary may have stored it: only the response is missing"
        )


@in_virtual_time
async def test_q02_within_the_failover_interval_the_caller_gets_the_error() -> None:
    async with in_memory_pair_application(failover_interval=60) as app:
        app.namespaces.primary.outage.stop()
        with pytest.raises(ConnectionFailed):
            await app.queue_client().schedule(BrokeredMessage("apples"), later(app))
        assert app.pairing.health_of("orders").state is EntityState.SUSPECT
        await asyncio.sleep(61)
        assert await app.queue_client().schedule(BrokeredMessage("pears"), later(app)) == 0
        assert [message.text for message in await app.parked_messages()] == ["pears"]


@in_virtual_time
async def test_r034_a_success_within_the_failover_interval_prevents_the_failover() -> None:
    async with in_memory_pair_application(failover_interval=60) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        with pytest.raises(ConnectionFailed):
            await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.restore()
        assert await queue.schedule(BrokeredMessage("pears"), later(app)) > 0
        await asyncio.sleep(120)
        assert not app.events_of(EventKind.FAILED_OVER)


@in_virtual_time
async def test_a_schedule_request_to_a_busy_primary_is_retried_and_returns_a_number() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.busy("orders")
        scheduling = asyncio.ensure_future(queue.schedule(BrokeredMessage("apples"), later(app)))
        await asyncio.sleep(15)
        app.namespaces.primary.outage.restore()
        assert await scheduling > 0
        app.namespaces.primary.outage.busy("orders")
        with pytest.raises(ServerBusy):
            await queue.schedule(BrokeredMessage("pears"), later(app))
        assert await app.parked_messages() == []


@in_virtual_time
async def test_only_a_schedule_request_that_was_not_parked_is_reported_as_failed() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        failures: list[SendFailed] = []
        app.primary.events.listen(failures.append, {SendFailed})
        with pytest.raises(EntityNotFound):
            await app.queue_client("missing").schedule(BrokeredMessage("x", message_id="1"), later(app))
        app.namespaces.primary.outage.stop()
        await app.queue_client().schedule(BrokeredMessage("x", message_id="2"), later(app))
        failed = [
            (message.message_id, type(failure.error).__name__) for failure in failures for message in failure.messages
        ]
        assert failed == [("1", "EntityNotFound")]
        assert [event.message_id for event in app.events_of(EventKind.PARKED)] == ["2"]
