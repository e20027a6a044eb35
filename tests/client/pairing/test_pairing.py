"""R001 to R009 and Q15: `pair_namespace`, its options, and the pairs that it refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging

import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage, FactoryState, MessagingFactory
from twinbus.client.errors import ConnectionFailed
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import (
    AlarmKind,
    EntityState,
    EventKind,
    PairedNamespaceOptions,
    PairingFailed,
    PairingRefused,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.model.errors import InvalidArgument
from twinbus.testing import InMemoryPair, in_virtual_time, run


def options_for(app: Application, secondary: MessagingFactory) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(secondary_factory=secondary, secondary_namespace_manager=app.manager)


@in_virtual_time
async def test_r001_r002_r003_one_call_is_all_an_application_writes() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        primary, secondary = namespaces.factories()
        string = namespaces.secondary.admin_connection_string
        async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager:
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary,
                secondary_namespace_manager=manager,
                backlog_queue_count=2,
                failover_interval=dt.timedelta(0),
                enable_syphon=True,
            )
            pairing = await primary.pair_namespace(options)
            orders = primary.create_queue_client("orders")
            namespaces.primary.outage.stop()
            await orders.send(BrokeredMessage("apples"))
            namespaces.primary.outage.restore()
            await asyncio.sleep(120)
            await orders.send(BrokeredMessage("pears"))
            assert [message.text for message in await namespaces.primary.messages("orders")] == ["apples", "pears"]
            assert [queue.path async for queue in manager.get_queues()] == [
                f"contoso/x-servicebus-transfer/{index}" for index in range(2)
            ]
            await pairing.close()
            assert primary.state is secondary.state is FactoryState.CLOSED


@in_virtual_time
async def test_q15_a_namespace_manager_of_the_primary_is_refused() -> None:
    async with InMemoryPair() as namespaces:
        primary, secondary = namespaces.factories()
        string = namespaces.primary.admin_connection_string
        async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager:
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary, secondary_namespace_manager=manager
            )
            with pytest.raises(PairingRefused, match=r"is for contoso\.servicebus\.test, the primary"):
                await primary.pair_namespace(options)
            assert primary.pairing is None


@pytest.mark.parametrize("name", ["a b", "a/b", "../x", "x" * 51, "7up", "dash-", "under_score"])
def test_q15_an_invalid_namespace_name_is_refused(name: str) -> None:
    async def refuse() -> None:
        async with in_memory_pair_application() as app:
            options = options_for(app, app.pairing.secondary)
            options.primary_namespace_name = name
            with pytest.raises(InvalidArgument, match="primary_namespace_name is"):
                options.check()

    run(refuse())


def test_r004_r005_the_base_options_have_the_failover_interval_but_no_ping_interval() -> None:
    assert "failover_interval" in PairedNamespaceOptions.__annotations__
    assert "ping_primary_interval" not in PairedNamespaceOptions.__annotations__
    assert "ping_primary_interval" in SendAvailabilityPairedNamespaceOptions.__annotations__
    assert issubclass(SendAvailabilityPairedNamespaceOptions, PairedNamespaceOptions)


@in_virtual_time
async def test_r006_r073_without_the_syphon_sends_fail_over_and_stay_parked() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        app.namespaces.primary.outage.stop()
        await app.queue_client().send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(7_200)
        assert app.pairing.health_of("orders").state is EntityState.HEALTHY
        assert [message.text for message in await app.parked_messages()] == ["apples"]


@in_virtual_time
async def test_r007_q15_factories_that_cannot_be_paired_are_refused() -> None:
    async with InMemoryPair() as namespaces, paired_application(namespaces) as app:
        primary, secondary = namespaces.factories()
        same, _ = namespaces.factories()
        with pytest.raises(PairingRefused, match=r"are both contoso\.servicebus\.test:5672"):
            await primary.pair_namespace(options_for(app, same))
        with pytest.raises(PairingRefused, match="is paired already, with contoso-backup"):
            await app.primary.pair_namespace(options_for(app, secondary))
        with pytest.raises(PairingRefused, match="is itself the primary of a pair"):
            await secondary.pair_namespace(options_for(app, app.primary))


@in_virtual_time
async def test_r008_messages_for_a_topic_are_parked_and_brought_back() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_topic("news")
        await namespaces.primary.create_subscription("news", "all")
        async with paired_application(namespaces, failover_interval=0, enable_syphon=True) as app:
            namespaces.primary.outage.stop()
            await app.primary.create_topic_client("news").send(BrokeredMessage("rain"))
            namespaces.primary.outage.restore()
            await asyncio.sleep(120)
            assert await app.arrived_bodies("news/Subscriptions/all") == ["rain"]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("failover_interval", -1, "failover_interval is -1 s; it can be 0 s to 3600 s"),
        ("failover_interval", dt.timedelta(hours=2), "failover_interval is 7200 s; it can be 0 s to 3600 s"),
        ("ping_primary_interval", 0.5, "ping_primary_interval is 0.5 s; it can be 1 s to 1800 s"),
        ("backlog_queue_count", 0, "backlog_queue_count is 0; it must be at least 1"),
    ],
)
def test_q01_q13_q15_options_outside_their_ranges_are_refused(name: str, value: object, reason: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with InMemoryPair() as namespaces:
            with pytest.raises(InvalidArgument) as error:
                async with paired_application(namespaces, **{name: value}):
                    pass
            assert str(error.value) == reason

    run()


def test_q01_r065_r071_the_defaults_are_those_of_service_bus() -> None:
    fields = SendAvailabilityPairedNamespaceOptions.__dataclass_fields__
    defaults = {name: fields[name].default for name in ("failover_interval", "ping_primary_interval", "syphon_poll")}
    minute = dt.timedelta(minutes=1)
    assert defaults == {
        "failover_interval": minute,
        "ping_primary_interval": minute,
        "syphon_poll": dt.timedelta(minutes=15),
    }
    assert fields["backlog_queue_count"].default == 10
    assert fields["enable_syphon"].default is False


@in_virtual_time
async def test_q15_pairing_never_needs_the_primary() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        namespaces.primary.outage.stop()
        async with paired_application(namespaces, failover_interval=0) as app:
            await app.queue_client().send(BrokeredMessage("apples"))
            assert len(await app.parked_messages()) == 1


@in_virtual_time
async def test_q15_an_application_can_start_unprotected_and_become_protected_later() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        namespaces.secondary.outage.stop()
        async with paired_application(namespaces, failover_interval=0, require_secondary=False) as app:
            was_protected = [app.pairing.is_protected]
            status = await app.pairing.status()
            assert not status.is_protected
            assert [alarm.kind for alarm in status.alarms] == [AlarmKind.UNPROTECTED]
            await app.queue_client().send(BrokeredMessage("apples"))
            namespaces.secondary.outage.restore()
            await asyncio.sleep(60)
            was_protected.append(app.pairing.is_protected)
            assert was_protected == [False, True]
            assert app.events_of(EventKind.PROTECTED)
            assert (await app.pairing.status()).alarms == ()
            namespaces.primary.outage.stop()
            await app.queue_client().send(BrokeredMessage("pears"))
            assert [message.text for message in await app.parked_messages()] == ["pears"]


@in_virtual_time
async def test_q15_a_sender_created_before_the_pairing_is_not_covered_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        primary, secondary = namespaces.factories()
        older_client = primary.create_queue_client("orders")
        async with paired_application(namespaces) as app:
            options = options_for(app, secondary)
            options.failover_interval = 0
            with caplog.at_level(logging.WARNING):
                await primary.pair_namespace(options)
            assert "the pairing does not cover senders created before it: orders" in caplog.text
            namespaces.primary.outage.stop()
            with pytest.raises(ConnectionFailed):
                await older_client.send(BrokeredMessage("apples"))


@in_virtual_time
async def test_q15_a_failed_pairing_can_be_tried_again() -> None:
    async with InMemoryPair() as namespaces:
        primary, secondary = namespaces.factories()
        string = namespaces.secondary.admin_connection_string
        async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager:
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary, secondary_namespace_manager=manager, backlog_queue_count=1
            )
            namespaces.secondary.outage.stop()
            with pytest.raises(PairingFailed):
                await primary.pair_namespace(options)
            namespaces.secondary.outage.restore()
            pairing = await primary.pair_namespace(options)
            assert pairing.backlog_queue_count == 1
            await pairing.close()


@in_virtual_time
async def test_q15_mark_path_healthy_sends_to_the_primary_at_once() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.restore()
        app.pairing.mark_path_healthy("ORDERS")
        await queue.send(BrokeredMessage("pears"))
        assert await app.arrived_bodies() == ["pears"]
        await asyncio.sleep(3600)
        assert not app.events_of(EventKind.PINGED)
