"""Q20: a backlog that is not drained raises an alarm, and so do messages in extra backlog queues."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.client.pairing import AlarmKind, EventKind
from twinbus.client.pairing.syphon.manual_drain import ManualDrain
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    import pytest

    from tests.support.paired_application import Application

AFTER_S: Final = 900.0
CHECK_INTERVAL_S: Final = AFTER_S / 3


def alarms(app: Application) -> list[tuple[AlarmKind, str | None]]:
    return [(alarm.kind, alarm.backlog_queue) for alarm in app.pairing.observers.alarms.raised]


@in_virtual_time
async def test_q20_parked_messages_raise_one_alarm_until_they_are_drained() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1, alarm_after=AFTER_S) as app:
        app.namespaces.primary.outage.stop()
        for text in ("apples", "pears", "plums"):
            await app.queue_client().send(BrokeredMessage(text))
        await asyncio.sleep(AFTER_S + 10)
        assert alarms(app) == [], "it is too early for an alarm"
        await asyncio.sleep(4 * AFTER_S)
        (alarm,) = (await app.pairing.status()).alarms
        assert (alarm.kind, alarm.backlog_queue) == (AlarmKind.NOT_DRAINED, app.backlog_path(0))
        assert f"3 messages in '{app.backlog_path(0)}'" in alarm.reason
        assert "this program runs no syphon" in alarm.reason
        assert len(app.events_of(EventKind.ALARM)) == 1
        app.namespaces.primary.outage.restore()
        async with paired_application(app.namespaces, backlog_queue_count=1, enable_syphon=True):
            await asyncio.sleep(2 * CHECK_INTERVAL_S)
        assert sorted(await app.arrived_bodies()) == ["apples", "pears", "plums"]
        assert alarms(app) == []
        assert len(app.events_of(EventKind.ALARM_OVER)) == 1
        assert not app.pairing.observers.alarms.is_checking


def test_q20_an_alarm_is_a_log_record_a_metric_and_part_of_the_report(caplog: pytest.LogCaptureFixture) -> None:
    from prometheus_client import CollectorRegistry  # noqa: PLC0415  # optional for users, not for tests

    @in_virtual_time
    async def scenario() -> None:
        registry = CollectorRegistry()
        async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1, alarm_after=AFTER_S) as app:
            app.pairing.metrics(registry)
            app.namespaces.primary.outage.stop()
            await app.queue_client().send(BrokeredMessage("apples"))
            await asyncio.sleep(2 * AFTER_S)
            labels = {"primary": "contoso", "kind": "not_drained"}
            assert registry.get_sample_value("twinbus_pairing_alarms", labels) == 1
            labels = {"primary": "contoso", "backlog_queue": app.backlog_path(0)}
            assert registry.get_sample_value("twinbus_pairing_parked_messages", labels) == 1
            assert AlarmKind.NOT_DRAINED.value in app.pairing.observers.reports.to_json()

    with caplog.at_level(logging.ERROR, "twinbus.client.pairing"):
        scenario()
    (record,) = [item for item in caplog.records if getattr(item, "event", None) == "alarm"]
    assert record.levelno == logging.ERROR
    assert "the oldest for" in record.getMessage()


@in_virtual_time
async def test_q20_an_old_backlog_raises_no_alarm_while_it_is_being_drained() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=1, alarm_after=AFTER_S) as app:
        app.namespaces.primary.outage.stop()
        for _ in range(20):
            await app.queue_client().send(BrokeredMessage("apples"))
        slow_receiver = app.pairing.secondary.create_message_receiver(
            app.backlog_path(0), ReceiveMode.RECEIVE_AND_DELETE
        )
        for _ in range(20):
            await asyncio.sleep(CHECK_INTERVAL_S)
            assert await slow_receiver.receive(1) is not None
        assert app.events_of(EventKind.ALARM) == []


@in_virtual_time
async def test_q20_messages_in_extra_backlog_queues_raise_an_alarm_until_they_are_drained_by_hand() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        namespaces.primary.outage.stop()
        async with paired_application(namespaces, failover_interval=0, backlog_queue_count=8) as app_with_eight_queues:
            for _ in range(80):  # each client chooses its own queue; a queue stays empty once in 2^13 runs
                await app_with_eight_queues.queue_client().send(BrokeredMessage("apples"))
        counts = [
            len(await namespaces.secondary.messages(app_with_eight_queues.backlog_path(index))) for index in range(8)
        ]
        async with paired_application(
            namespaces, failover_interval=0, backlog_queue_count=3, enable_syphon=True, alarm_after=AFTER_S
        ) as app:
            await asyncio.sleep(CHECK_INTERVAL_S + 1)
            extra = [index for index in range(3, 8) if counts[index]]
            assert extra
            assert alarms(app) == [(AlarmKind.EXTRA_BACKLOG, app.backlog_path(index)) for index in extra]
            for index, alarm in zip(extra, app.pairing.observers.alarms.raised, strict=True):
                assert f"{counts[index]:,} messages in '{app.backlog_path(index)}'" in alarm.reason
                assert "twinbus pair drain --extra" in alarm.reason
            namespaces.primary.outage.restore()
            await asyncio.sleep(CHECK_INTERVAL_S)
            assert len(await app.arrived_bodies()) == sum(counts[:3]), "its syphon drains no extra queues"
            paths = [app.backlog_path(index) for index in extra]
            draining = ManualDrain(app.primary, app.pairing.secondary, app.manager, paths)
            draining.start()
            await asyncio.sleep(CHECK_INTERVAL_S + 1)
            await draining.close()
            assert len(await app.arrived_bodies()) == 80
            assert alarms(app) == []
