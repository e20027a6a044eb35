"""R028 to R049: when sends fail over to the secondary, and for which senders."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionFailed, TimedOut
from twinbus.client.pairing import EntityState, EventKind, NotSent
from twinbus.client.pairing.sender import SendAvailabilitySender
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from twinbus.model.usage import UsageRow


@in_virtual_time
async def test_r028_all_senders_of_a_paired_factory_are_of_one_type() -> None:
    async with in_memory_pair_application() as app:
        assert type(app.queue_client().sender) is SendAvailabilitySender
        assert type(app.primary.create_topic_client("news").sender) is SendAvailabilitySender
        assert type(app.primary.create_message_sender("orders")) is SendAvailabilitySender


def backlog_usage(app: Application) -> list[UsageRow]:
    """The usage rows of the backlog queues."""
    return [row for row in app.namespaces.secondary.usage() if "/x-servicebus-transfer/" in row.entity]


@in_virtual_time
async def test_r009_r029_while_the_primary_is_healthy_pairing_changes_nothing() -> None:
    async with in_memory_pair_application(ping_primary_interval=1) as app:
        usage_before = backlog_usage(app)
        await app.queue_client().send(BrokeredMessage("apples", session_id="7"))
        await asyncio.sleep(3600)
        assert backlog_usage(app) == usage_before
        (message,) = await app.namespaces.primary.messages("orders")
        assert (message.text, message.session_id, message.properties) == ("apples", "7", {})
        assert await app.parked_messages() == []
        assert app.events == []


@in_virtual_time
async def test_r030_r033_failover_engages_when_the_interval_has_passed() -> None:
    async with in_memory_pair_application(failover_interval=60) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        with pytest.raises(ConnectionFailed):
            await queue.send(BrokeredMessage("apples"))
        assert app.pairing.health_of("orders").state is EntityState.SUSPECT
        await asyncio.sleep(59)
        with pytest.raises(ConnectionFailed):
            await queue.send(BrokeredMessage("pears"))
        await asyncio.sleep(1.1)
        await queue.send(BrokeredMessage("plums"))
        assert [message.text for message in await app.parked_messages()] == ["plums"]
        assert [event.kind for event in app.events[:2]] == [EventKind.SUSPECTED, EventKind.FAILED_OVER]


@in_virtual_time
async def test_r032_a_timeout_triggers_failover() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.hang()
        await queue.send(BrokeredMessage("pears"))
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER
        assert isinstance(app.pairing.health_of("orders").failure, TimedOut)
        assert [message.text for message in await app.parked_messages()] == ["pears"]


@in_virtual_time
async def test_q04_a_message_that_a_hanging_store_may_write_later_is_marked() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.hang_store()
        for text in ("apples", "pears"):
            await queue.send(BrokeredMessage(text))
        marks = {
            message.text: "x-ms-possible-duplicate" in message.properties for message in await app.parked_messages()
        }
        assert marks == {"apples": True, "pears": False}
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(60)
        assert await app.arrived_bodies() == ["apples"]


@in_virtual_time
async def test_r034_a_success_within_the_failover_interval_prevents_the_failover() -> None:
    async with in_memory_pair_application(failover_interval=60) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        with pytest.raises(ConnectionFailed):
            await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.restore()
        await queue.send(BrokeredMessage("pears"))
        await asyncio.sleep(120)
        assert app.pairing.health_of("orders").state is EntityState.HEALTHY
        assert not app.events_of(EventKind.FAILED_OVER)


@in_virtual_time
async def test_r035_other_entities_keep_using_the_primary() -> None:
    async with InMemoryPair(stores=2, store_timeout_s=5.0) as namespaces:
        for path in ("orders", "invoices"):
            await namespaces.primary.create_queue(path)
        async with paired_application(namespaces, failover_interval=0) as app:
            orders, invoices = app.queue_client("orders"), app.queue_client("invoices")
            namespaces.primary.outage.fail_store(0)
            await orders.send(BrokeredMessage("apples"))
            await invoices.send(BrokeredMessage("a bill"))
            states = [app.pairing.health_of(path).state for path in ("orders", "invoices")]
            assert states == [EntityState.FAILED_OVER, EntityState.HEALTHY]
            assert await app.arrived_bodies("invoices") == ["a bill"]


@in_virtual_time
async def test_r036_r040_r049_sends_go_to_a_backlog_queue_and_nowhere_else() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.restore()  # but not pinged yet
        await queue.send(BrokeredMessage("pears"))
        assert [message.text for message in await app.parked_messages()] == ["apples", "pears"]
        assert await app.arrived_bodies() == []


@in_virtual_time
async def test_r044_other_senders_are_redirected_without_failing_first() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        first, second = app.queue_client(), app.primary.create_message_sender("ORDERS")
        await first.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.hang()
        await first.send(BrokeredMessage("pears"))
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        await second.send(BrokeredMessage("plums"))
        assert loop.time() - before_s < 0.1


@in_virtual_time
async def test_r037_r038_r045_r067_pings_go_on_until_one_is_answered_and_then_all_use_the_primary() -> None:
    async with in_memory_pair_application(failover_interval=0, ping_primary_interval=10) as app:
        clients = [app.queue_client(), app.queue_client()]
        app.namespaces.primary.outage.stop()
        await clients[0].send(BrokeredMessage("apples"))
        await asyncio.sleep(35)
        assert len(app.events_of(EventKind.PINGED)) == 3
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(5.1)
        for client in clients:
            await client.send(BrokeredMessage("pears"))
        assert await app.arrived_bodies() == ["pears", "pears"]
        await asyncio.sleep(3600)
        pings = app.events_of(EventKind.PINGED)
        assert len(pings) == 4
        assert [ping.reason is None for ping in pings] == [False, False, False, True]


@in_virtual_time
async def test_r048_r054_messages_of_several_entities_share_one_backlog_queue() -> None:
    async with in_memory_pair_application(("orders", "invoices"), failover_interval=0, backlog_queue_count=1) as app:
        app.namespaces.primary.outage.stop()
        for path in ("orders", "invoices"):
            await app.queue_client(path).send(BrokeredMessage("x"))
        assert [message.properties["x-ms-path"] for message in await app.parked_messages()] == ["orders", "invoices"]


@in_virtual_time
async def test_a_busy_server_never_triggers_failover_and_is_retried() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        app.namespaces.primary.outage.busy("orders")
        sending = asyncio.ensure_future(app.queue_client().send(BrokeredMessage("apples")))
        await asyncio.sleep(5)
        app.namespaces.primary.outage.restore()
        await sending
        assert await app.arrived_bodies() == ["apples"]
        assert app.events == []


@in_virtual_time
async def test_q01_the_interval_runs_from_the_first_failure() -> None:
    async with in_memory_pair_application(failover_interval=60) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        for _ in range(5):
            with pytest.raises(ConnectionFailed):
                await queue.send(BrokeredMessage("apples"))
            await asyncio.sleep(11)
        await asyncio.sleep(6)
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER


@in_virtual_time
async def test_q01_with_no_failover_interval_the_failed_send_itself_is_parked() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        app.namespaces.primary.outage.stop()
        await app.queue_client().send(BrokeredMessage("apples"))
        assert [message.text for message in await app.parked_messages()] == ["apples"]


@in_virtual_time
async def test_q02_held_sends_wait_and_are_parked() -> None:
    async with in_memory_pair_application(
        failover_interval=300, hold_during_failover_interval=True, operation_timeout=20
    ) as app:
        app.namespaces.primary.outage.stop()
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        await app.queue_client().send(BrokeredMessage("apples"))
        assert 300 <= loop.time() - before_s < 302
        assert [message.text for message in await app.parked_messages()] == ["apples"]


@in_virtual_time
async def test_q02_held_sends_are_delivered_when_the_primary_is_back_in_time() -> None:
    async with in_memory_pair_application(failover_interval=300, hold_during_failover_interval=True) as app:
        app.namespaces.primary.outage.stop()
        sending = asyncio.ensure_future(app.queue_client().send(BrokeredMessage("apples")))
        await asyncio.sleep(100)
        app.namespaces.primary.outage.restore()
        await sending
        assert await app.arrived_bodies() == ["apples"]
        assert not app.events_of(EventKind.FAILED_OVER)


@in_virtual_time
async def test_q03_a_silent_primary_does_not_use_up_the_time_for_parking() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.hang()
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        await queue.send(BrokeredMessage("pears"))
        assert 10 <= loop.time() - before_s < 11


@in_virtual_time
async def test_q03_with_no_time_left_the_error_says_that_the_message_was_not_sent() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        for namespace in (app.namespaces.primary, app.namespaces.secondary):
            namespace.outage.hang()
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        with pytest.raises(
            NotSent, match=r"the message for 'orders' was not sent\. the primary: .*; contoso/x-service"
        ):
            await app.queue_client().send(BrokeredMessage("apples"))
        assert loop.time() - before_s < 20.5


@in_virtual_time
async def test_q04_a_parked_message_that_the_primary_may_have_is_marked() -> None:
    async with in_memory_pair_application(failover_interval=0, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.hang()
        await queue.send(BrokeredMessage("pears", message_id="1"))
        await queue.send(BrokeredMessage("plums", message_id="2"))
        parked = {message.message_id: message.properties for message in await app.parked_messages()}
        assert parked["1"].get("x-ms-possible-duplicate") is True
        assert "x-ms-possible-duplicate" not in parked["2"]


@in_virtual_time
async def test_q12_the_state_belongs_to_one_factory_and_one_path_in_any_case() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("Orders")
        async with (
            paired_application(namespaces, failover_interval=0) as first,
            paired_application(namespaces) as second,
        ):
            namespaces.primary.outage.stop()
            await first.queue_client("orders").send(BrokeredMessage("apples"))
            assert first.pairing.health_of("ORDERS").state is EntityState.FAILED_OVER
            assert second.pairing.health_of("orders").state is EntityState.HEALTHY
