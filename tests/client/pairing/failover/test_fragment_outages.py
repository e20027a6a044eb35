"""`park_on_fragment_outage`: a keyed send whose fragment is down is parked, and no other send is."""

from __future__ import annotations

import asyncio
import datetime as dt
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.client.pairing.observe.test_reports_to_secondary import reports
from tests.support.paired_application import Application, paired_application
from tests.support.partitioned_namespace import key_for_fragment
from twinbus.client import NO_RETRY, BrokeredMessage
from twinbus.client.pairing import EntityState, EventKind, FailedOver, MessageCannotBeParked, NotSent
from twinbus.model.errors import EntityDisabled, FailureClass, FragmentUnavailable
from twinbus.model.outage import OutageKind
from twinbus.testing import InMemoryNamespace, InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MINUTE_S: Final = 60.0
DOWN: Final = key_for_fragment(1)
"""A key of a fragment in the store that is down."""
QUEUE_OPTIONS: Final = ("requires_session", "requires_duplicate_detection")
UP: Final = key_for_fragment(2)


@asynccontextmanager
async def partitioned(store: int | None = 1, **options: Any) -> AsyncIterator[Application]:  # noqa: ANN401  # options of the pairing or of the queue
    """An application with a pair whose primary has a partitioned queue `orders`; one of four stores is down."""
    queue_options = {name: options.pop(name) for name in QUEUE_OPTIONS if name in options}
    async with InMemoryPair(stores=4) as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=True, **queue_options)
        pairing_options = {"park_on_fragment_outage": True, "ping_primary_interval": 10} | options
        async with paired_application(namespaces, **pairing_options) as app:
            if store is not None:
                namespaces.primary.outage.fail_store(store)
                await detect_store_failure(namespaces.primary)
            yield app


async def detect_store_failure(primary: InMemoryNamespace) -> None:
    """Let a send of another client detect the failed store; its message may be stored or not."""
    async with primary.factory(retry_policy=NO_RETRY) as other:
        with suppress(FragmentUnavailable):
            await other.create_queue_client("orders").send(BrokeredMessage("the last", session_id=DOWN))


async def texts_of_parked(app: Application) -> list[str]:
    return [message.text for message in await app.parked_messages()]


async def peeked(app: Application) -> list[str]:
    """The message texts in those fragments of the primary that respond."""
    return [message.text for message in await app.queue_client().peek_batch(100) if message.text != "the last"]


@in_virtual_time
@pytest.mark.parametrize("key", ["session_id", "partition_key"])
async def test_a_keyed_send_whose_fragment_is_down_is_parked_and_others_go_to_the_primary(key: str) -> None:
    async with partitioned(failover_interval=60) as app:
        orders = app.queue_client()
        apples, pears = BrokeredMessage("apples"), BrokeredMessage("pears")
        setattr(apples, key, DOWN)
        setattr(pears, key, UP)
        await orders.send(apples)
        await orders.send(pears)
        for number in range(20):
            await orders.send(BrokeredMessage(f"{number}"))
        assert await texts_of_parked(app) == ["apples"]
        assert sorted(await peeked(app)) == sorted(["pears", *map(str, range(20))])
        assert app.pairing.health_of("orders").state is EntityState.HEALTHY
        assert not app.events_of(EventKind.SUSPECTED, EventKind.FAILED_OVER)


@in_virtual_time
async def test_a_message_id_is_a_key_where_duplicates_are_detected() -> None:
    async with partitioned(requires_duplicate_detection=True) as app:
        orders = app.queue_client()
        for _ in range(2):
            await orders.send(BrokeredMessage("apples", message_id=DOWN))
            await orders.send(BrokeredMessage("pears", message_id=UP))
        assert await texts_of_parked(app) == ["apples", "apples"]
        assert await peeked(app) == ["pears"]
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(MINUTE_S)
        assert app.events_of(EventKind.FRAGMENT_BACK)
        await orders.send(BrokeredMessage("plums", message_id=DOWN))
        assert sorted(await peeked(app)) == ["pears", "plums"]


@in_virtual_time
async def test_without_the_option_a_send_whose_fragment_is_down_fails_the_entity_over() -> None:
    async with partitioned(park_on_fragment_outage=False, failover_interval=0) as app:
        orders = app.queue_client()
        await orders.send(BrokeredMessage("apples", session_id=DOWN))
        await orders.send(BrokeredMessage("pears", session_id=UP))
        assert await texts_of_parked(app) == ["apples", "pears"]
        assert isinstance(app.pairing.health_of("orders").failure, FragmentUnavailable)


@in_virtual_time
async def test_q13_without_the_option_pings_go_to_the_fragment_that_failed() -> None:
    async with partitioned(
        park_on_fragment_outage=False, failover_interval=0, requires_duplicate_detection=True
    ) as app:
        await app.queue_client().send_batch(
            [BrokeredMessage("x", message_id=UP), BrokeredMessage("y", message_id=DOWN)]
        )
        await asyncio.sleep(MINUTE_S)
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER
        assert all(ping.reason is not None for ping in app.events_of(EventKind.PINGED))
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(MINUTE_S)
        assert app.pairing.health_of("orders").state is EntityState.HEALTHY


@in_virtual_time
async def test_q18_after_one_message_of_a_key_is_parked_later_ones_are_until_a_ping_succeeds() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        await orders.send(BrokeredMessage("first", session_id=DOWN))
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(5)  # the store is available again, but not pinged yet
        await orders.send(BrokeredMessage("second", session_id=DOWN))
        await app.primary.create_message_sender("ORDERS").send(BrokeredMessage("third", session_id=DOWN))
        assert sorted(await texts_of_parked(app)) == ["first", "second", "third"]
        await asyncio.sleep(10)
        await orders.send(BrokeredMessage("fourth", session_id=DOWN))
        assert await peeked(app) == ["fourth"]


@in_virtual_time
async def test_q13_each_fragment_that_is_down_is_pinged_once_an_interval_with_one_of_its_keys() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        for fragment in (1, 5, 1, 2):
            for number in range(3):
                await orders.send(BrokeredMessage("x", session_id=key_for_fragment(fragment, number)))
        await asyncio.sleep(35)
        pings = app.events_of(EventKind.PINGED)
        assert sorted(ping.fragment for ping in pings if ping.fragment is not None) == [1, 1, 1, 5, 5, 5]
        assert all(ping.path == "orders" and ping.reason is not None for ping in pings)
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(MINUTE_S)
        count = len(app.events_of(EventKind.PINGED))
        await asyncio.sleep(10 * MINUTE_S)
        assert len(app.events_of(EventKind.PINGED)) == count, "pings have stopped"
        assert sorted(event.fragment or 0 for event in app.events_of(EventKind.FRAGMENT_BACK)) == [1, 5]


@in_virtual_time
async def test_a_send_that_waits_for_a_hanging_store_is_parked_as_a_possible_duplicate() -> None:
    async with partitioned(None) as app:
        orders = app.queue_client()
        app.namespaces.primary.outage.hang_store(1)
        await orders.send(BrokeredMessage("apples", session_id=DOWN))
        await orders.send(BrokeredMessage("pears", session_id=DOWN))
        marks = {
            message.text: "x-ms-possible-duplicate" in message.properties for message in await app.parked_messages()
        }
        assert marks == {"apples": True, "pears": False}, "only the first was sent to the primary"
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(MINUTE_S)
        assert await app.arrived_bodies() == ["apples"], "the store has written it after all"


@in_virtual_time
async def test_if_the_fragment_and_the_secondary_are_down_the_send_fails_with_both_reasons() -> None:
    async with partitioned(operation_timeout=10) as app:
        orders = app.queue_client()
        await orders.send(BrokeredMessage("apples", session_id=DOWN))
        app.namespaces.secondary.outage.stop()
        with pytest.raises(NotSent, match=r"primary: fragment 1: store 1 is unavailable.*x-servicebus-transfer"):
            await orders.send(BrokeredMessage("pears", session_id=DOWN))
        await orders.send(BrokeredMessage("plums", session_id=UP))


@in_virtual_time
async def test_a_message_too_large_to_park_is_refused_if_its_fragment_is_down() -> None:
    async with partitioned() as app:
        overhead = len(BrokeredMessage(b"x" * 1_000, session_id=DOWN).encode(0)) - 1_000
        large = BrokeredMessage(b"x" * (262_144 - overhead - 10), session_id=DOWN)
        assert not app.primary.create_message_sender("orders").can_be_parked(large)
        with pytest.raises(MessageCannotBeParked):
            await app.queue_client().send(large)
        large.session_id = UP
        await app.queue_client().send(large)


@in_virtual_time
async def test_q22_a_transaction_is_refused_while_its_fragment_is_down_and_others_succeed() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        await orders.send(BrokeredMessage("first", session_id=DOWN))
        with pytest.raises(FailedOver, match="a fragment of 'orders' is down"):
            async with app.primary.transaction() as transaction:
                await orders.send(BrokeredMessage("second", session_id=DOWN), transaction=transaction)
        async with app.primary.transaction() as transaction:
            await orders.send(BrokeredMessage("other", session_id=UP), transaction=transaction)
        assert await peeked(app) == ["other"]
        assert await texts_of_parked(app) == ["first"]


@in_virtual_time
async def test_q22_a_scheduled_message_whose_fragment_is_down_is_parked_with_its_time() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        when = dt.datetime.fromtimestamp(app.namespaces.clock.wall_ms() / 1000 + 3600, dt.UTC)
        for _ in range(2):
            assert await orders.schedule(BrokeredMessage("apples", session_id=DOWN), when) == 0
        assert await orders.schedule(BrokeredMessage("pears", session_id=UP), when) > 0
        parked = await app.parked_messages()
        assert [message.properties["x-ms-scheduledenqueuetimeutc"] for message in parked] == [when, when]


@in_virtual_time
async def test_triggers_take_precedence_over_parking_by_fragment() -> None:
    async with partitioned(triggers={FragmentUnavailable: FailureClass.CALLER}) as app:
        with pytest.raises(FragmentUnavailable):
            await app.queue_client().send(BrokeredMessage("apples", session_id=DOWN))
        assert await app.parked_messages() == []


@in_virtual_time
async def test_an_outage_of_the_whole_primary_fails_the_entity_over_and_all_fragments_recover() -> None:
    async with partitioned(failover_interval=0) as app:
        orders, outage = app.queue_client(), app.namespaces.primary.outage
        await orders.send(BrokeredMessage("1", session_id=DOWN))
        outage.stop()
        await orders.send(BrokeredMessage("2", session_id=UP))
        await orders.send(BrokeredMessage("3", session_id=DOWN))
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER
        outage.restore()
        await asyncio.sleep(MINUTE_S)
        health = app.pairing.health_of("orders")
        assert (health.state, health.fragment_outages.down) == (EntityState.HEALTHY, {})
        await orders.send(BrokeredMessage("4", session_id=DOWN))
        await orders.send(BrokeredMessage("5", session_id=UP))
        assert sorted(await peeked(app)) == ["4", "5"]


@in_virtual_time
async def test_q14_after_two_refused_pings_the_next_send_fails_with_the_reason() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        await orders.send(BrokeredMessage("1", session_id=DOWN))
        app.namespaces.primary.broker.find_sendable("orders").set_status("SendDisabled")
        await asyncio.sleep(15)
        await orders.send(BrokeredMessage("2", session_id=DOWN))
        await asyncio.sleep(15)
        with pytest.raises(EntityDisabled):
            await orders.send(BrokeredMessage("3", session_id=DOWN))
        assert await texts_of_parked(app) == ["1", "2"]


@in_virtual_time
async def test_mark_path_healthy_covers_fragments_too() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        await orders.send(BrokeredMessage("1", session_id=DOWN))
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(5)
        app.pairing.mark_path_healthy("Orders")
        await orders.send(BrokeredMessage("2", session_id=DOWN))
        assert await peeked(app) == ["2"]
        assert [event.fragment for event in app.events_of(EventKind.FRAGMENT_BACK)] == [1]


@in_virtual_time
async def test_events_status_and_reports_show_a_fragment_outage() -> None:
    async with partitioned() as app:
        await app.queue_client().send(BrokeredMessage("1", session_id=DOWN))
        (down,) = app.events_of(EventKind.FRAGMENT_DOWN)
        assert (down.path, down.fragment) == ("orders", 1)
        assert "store 1 is unavailable" in str(down.reason)
        (entity,) = (await app.pairing.status()).entities
        assert entity.state is EntityState.HEALTHY
        (fragment,) = entity.fragments_down
        assert fragment.number == 1
        assert "store 1 is unavailable" in fragment.why
        assert fragment.next_ping is not None
        assert (fragment.next_ping - fragment.since) == dt.timedelta(seconds=10)
        await asyncio.sleep(1)
        (report,) = await reports(app)
        (reported,) = report["entities"]
        assert reported["state"] == "healthy"
        assert [outage["fragment"] for outage in reported["fragments_down"]] == [1]


@in_virtual_time
async def test_an_entity_without_partitions_fails_over_as_a_whole() -> None:
    async with partitioned(failover_interval=0) as app:
        await app.namespaces.primary.create_queue("plain")
        plain = app.queue_client("plain")
        for store in range(4):
            app.namespaces.primary.outage.fail_store(store)
        await plain.send(BrokeredMessage("1", session_id=DOWN))
        assert app.pairing.health_of("plain").state is EntityState.FAILED_OVER


@in_virtual_time
async def test_a_rehearsed_outage_fails_over_the_entity_and_no_fragment() -> None:
    async with partitioned(None, failover_interval=0) as app:
        app.namespaces.primary.broker.outages.begin("orders", OutageKind.REFUSE, 30)
        await app.queue_client().send(BrokeredMessage("1", session_id=DOWN))
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER
        assert not app.events_of(EventKind.FRAGMENT_DOWN)


@in_virtual_time
async def test_q02_a_held_send_to_a_fragment_that_is_down_fails_while_other_fragments_succeed() -> None:
    """Each success of another fragment prevents the failover, so the send must not wait for a failover forever."""
    options = {"park_on_fragment_outage": False, "hold_during_failover_interval": True, "failover_interval": 15}
    async with partitioned(operation_timeout=10, **options) as app:
        loop = asyncio.get_running_loop()
        orders, before_s = app.queue_client(), loop.time()
        held = asyncio.ensure_future(orders.send(BrokeredMessage("apples", session_id=DOWN)))
        while not held.done() and loop.time() < before_s + 100:
            await orders.send(BrokeredMessage("pears", session_id=UP))
            await asyncio.sleep(5)
        assert isinstance(held.exception(), FragmentUnavailable)
        assert loop.time() - before_s <= 15 + 10 + 5 + 2
        assert not app.events_of(EventKind.FAILED_OVER)
