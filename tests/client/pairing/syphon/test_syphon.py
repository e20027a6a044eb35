"""R069 to R074 and Q17 to Q19: the syphon moves parked messages to the primary."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.client.pairing.syphon.idle_syphon import run_idle_syphon
from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.amqp.message import Properties, build, data
from twinbus.amqp.types import Timestamp
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing import AlarmKind, EventKind
from twinbus.client.sender import MessageSender
from twinbus.testing import InMemoryPair, in_virtual_time, run

OUTAGE: Final[dict[str, Any]] = {"failover_interval": 0, "enable_syphon": True}


async def park(app: Application, *texts: str, path: str = "orders", session_id: str | None = None) -> None:
    """Send while the primary is down."""
    app.namespaces.primary.outage.stop()
    client = app.queue_client(path)
    for text in texts:
        await client.send(BrokeredMessage(text, session_id=session_id))


async def drain(app: Application, seconds: float = 120) -> None:
    app.namespaces.primary.outage.restore()
    await asyncio.sleep(seconds)


@in_virtual_time
async def test_r069_r070_all_backlog_queues_are_drained_and_each_message_reaches_its_entity() -> None:
    async with in_memory_pair_application(("orders", "invoices"), **OUTAGE) as app:
        for number in range(30):
            await park(app, f"order {number}")
            await park(app, f"invoice {number}", path="invoices")
        assert len({event.backlog_queue for event in app.events_of(EventKind.PARKED)}) == 3
        await drain(app)
        assert sorted(await app.arrived_bodies("orders")) == sorted(f"order {number}" for number in range(30))
        assert sorted(await app.arrived_bodies("invoices")) == sorted(f"invoice {number}" for number in range(30))
        assert await app.parked_messages() == []


@pytest.mark.parametrize(("hours", "calls"), [(1, 40), (24, 960)])
def test_r071_r072_r083_ten_idle_queues_make_forty_receive_calls_an_hour(hours: int, calls: int) -> None:
    assert run(run_idle_syphon(hours)) == calls


@in_virtual_time
async def test_r074_new_messages_may_arrive_before_older_ones() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        await park(app, "old")
        await drain(app)
        await app.queue_client().send(BrokeredMessage("new"))
        assert await app.arrived_bodies() == ["new"]
        assert [message.text for message in await app.parked_messages()] == ["old"]


@in_virtual_time
async def test_q17_one_pump_is_active_across_hosts_and_the_newer_displaces_the_older() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, **OUTAGE) as older:
            await asyncio.sleep(10)
            async with paired_application(namespaces, **OUTAGE) as newer:
                await asyncio.sleep(10)
                assert len(older.events_of(EventKind.PUMP_DISPLACED)) == 3
                assert not newer.events_of(EventKind.PUMP_DISPLACED)
                await park(newer, "apples")
                await drain(newer)
                assert not older.events_of(EventKind.MOVED)
                assert len(newer.events_of(EventKind.MOVED)) == 1
            await park(older, "pears")
            await drain(older)
            assert len(older.events_of(EventKind.MOVED)) == 1


@in_virtual_time
async def test_q17_a_message_is_completed_only_after_the_primary_has_it() -> None:
    async with in_memory_pair_application(**OUTAGE) as app:
        await park(app, "apples")
        namespaces = app.namespaces
        namespaces.primary.outage.restore()
        namespaces.primary.outage.hang_store()
        await asyncio.sleep(5)
        assert len(await app.parked_messages()) == 1
        assert not app.events_of(EventKind.MOVED)
        namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        assert await app.arrived_bodies() == ["apples"]
        assert await app.parked_messages() == []


@in_virtual_time
async def test_q17_locks_are_renewed_while_a_send_is_pending() -> None:
    async with in_memory_pair_application(operation_timeout=600, **OUTAGE) as app:
        await park(app, "apples")
        app.namespaces.primary.outage.restore()
        app.namespaces.primary.outage.slow(100)
        await asyncio.sleep(2_000)
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(600)
        assert await app.arrived_bodies() == ["apples"]


@in_virtual_time
async def test_q17_locks_of_messages_that_were_deferred_before_are_renewed_too() -> None:
    async with in_memory_pair_application(operation_timeout=600, backlog_queue_count=1, **OUTAGE) as app:
        await park(app, "apples", "pears")
        outage = app.namespaces.primary.outage
        outage.restore()
        outage.busy("orders")
        await asyncio.sleep(30)
        outage.restore()
        outage.slow(45)  # an attach and a send take longer than a lock lasts
        await asyncio.sleep(1_000)
        outage.restore()
        await asyncio.sleep(60)
        assert await app.arrived_bodies() == ["apples", "pears"]
        assert await app.parked_messages() == []


@in_virtual_time
async def test_q18_the_order_within_a_session_is_kept() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, **OUTAGE) as app:
            namespaces.primary.outage.stop()
            client = app.queue_client("baskets")
            for number in range(100):
                await client.send(BrokeredMessage(str(number), session_id=f"basket {number % 5}"))
            await drain(app)
            messages = await namespaces.primary.messages("baskets")
            assert len(messages) == 100
            for basket in range(5):
                texts = [int(message.text) for message in messages if message.session_id == f"basket {basket}"]
                assert texts == sorted(texts)


@pytest.mark.interpreted
@in_virtual_time
async def test_q18_at_most_one_send_of_a_session_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, **OUTAGE) as app:
            await park(app, *[str(number) for number in range(20)], path="baskets", session_id="7")
            most_in_flight = 0
            link = MessageSender.link

            async def link_with_counter(sender: MessageSender, *arguments: object) -> object:
                attached = await link(sender, *arguments)  # type: ignore[arg-type]
                send = attached.send

                def count_in_flight(*parts: object) -> object:
                    nonlocal most_in_flight
                    future = send(*parts)  # type: ignore[arg-type]
                    most_in_flight = max(most_in_flight, len(attached._pending) + len(attached._waiting_for_credit))  # noqa: SLF001
                    return future

                monkeypatch.setattr(attached, "send", count_in_flight)
                return attached

            monkeypatch.setattr(MessageSender, "link", link_with_counter)
            await drain(app)
            assert most_in_flight == 1
            assert await app.arrived_bodies("baskets") == [str(number) for number in range(20)]


def poisoned(aliases: dict[str, object] | None) -> bytes:
    return build(properties=Properties(message_id="1"), application_properties=aliases, body=data(b"poison"))


@pytest.mark.parametrize(
    ("aliases", "description"),
    [
        (None, "it has no property x-ms-path: its destination is unknown"),
        ({}, "it has no property x-ms-path: its destination is unknown"),
        ({"x-ms-path": 17}, "its property x-ms-path is 17, not the path of an entity"),
        (
            {"x-ms-path": Timestamp(1_700_000_000_000)},
            "its property x-ms-path is Timestamp(1700000000000), not the path of an entity",
        ),
        ({"x-ms-path": "orders", "x-ms-sessionid": 1}, "its property x-ms-sessionid is 1, not a string"),
    ],
)
def test_q05_q19_a_malformed_message_is_dead_lettered_and_the_others_are_moved(
    aliases: dict[str, object] | None, description: str
) -> None:
    async def poison() -> None:
        async with in_memory_pair_application(backlog_queue_count=1, **OUTAGE) as app:
            backlog = app.pairing.secondary.create_message_sender(app.backlog_path(0))
            await backlog.deliver(poisoned(aliases))
            await park(app, "apples")
            await drain(app)
            assert await app.arrived_bodies() == ["apples"]
            (dead,) = await app.namespaces.secondary.messages(f"{app.backlog_path(0)}/$DeadLetterQueue")
            assert dead.dead_letter_reason == "ParkedMessageMalformed"
            assert dead.dead_letter_error_description == description

    run(poison())


async def dead_letters(app: Application) -> list[BrokeredMessage]:
    paths = [f"{queue.path}/$DeadLetterQueue" for queue in app.pairing.rotation.queues]
    return [message for path in paths for message in await app.namespaces.secondary.messages(path)]


@in_virtual_time
async def test_q19_messages_for_a_missing_entity_are_dead_lettered_after_a_configured_time() -> None:
    async with in_memory_pair_application(
        ("orders", "invoices"), backlog_queue_count=1, not_found_grace=600, **OUTAGE
    ) as app:
        await park(app, "apples")
        await park(app, "a bill", "another bill", path="invoices")
        await app.namespaces.primary.entities.delete("invoices")
        await drain(app, 590)
        assert await app.arrived_bodies() == ["apples"]
        assert [message.text for message in await app.parked_messages()] == ["a bill", "another bill"]
        assert [alarm.kind for alarm in app.pairing.observers.alarms.raised] == [AlarmKind.DESTINATION_REFUSES]
        await asyncio.sleep(90)
        assert [message.text for message in await dead_letters(app)] == ["a bill", "another bill"]
        (dead, _) = await dead_letters(app)
        assert dead.dead_letter_reason == "EntityNotFound"
        assert "could not be found" in str(dead.dead_letter_error_description)
        (alarm,) = app.pairing.observers.alarms.raised
        assert alarm.kind is AlarmKind.DEAD_LETTERED
        await asyncio.sleep(900)
        (alarm,) = app.pairing.observers.alarms.raised
        assert alarm.reason.startswith("2 messages in 'contoso/x-servicebus-transfer/0/$DeadLetterQueue', ")


@in_virtual_time
async def test_q19_an_entity_that_is_created_again_in_time_gets_its_messages() -> None:
    async with in_memory_pair_application(backlog_queue_count=1, **OUTAGE) as app:
        await park(app, "apples", "pears")
        await app.namespaces.primary.entities.delete("orders")
        await drain(app, 1800)
        await app.namespaces.primary.create_queue("orders")
        await asyncio.sleep(120)
        assert await app.arrived_bodies() == ["apples", "pears"]
        assert await dead_letters(app) == []


@in_virtual_time
async def test_q19_the_grace_period_of_a_missing_entity_starts_again_after_each_interruption() -> None:
    async with in_memory_pair_application(backlog_queue_count=1, not_found_grace=600, **OUTAGE) as app:
        primary = app.namespaces.primary
        await park(app, "apples")
        await primary.entities.delete("orders")
        await drain(app, 300)
        await primary.create_queue("orders")
        primary.broker.find_sendable("orders").set_status("SendDisabled")
        await asyncio.sleep(600)
        await primary.entities.delete("orders")
        await asyncio.sleep(300)
        await primary.create_queue("orders")
        await asyncio.sleep(120)
        assert await app.arrived_bodies() == ["apples"]


@in_virtual_time
async def test_q19_messages_for_a_disabled_destination_wait_and_raise_an_alarm() -> None:
    async with in_memory_pair_application(
        ("orders", "invoices"), backlog_queue_count=1, not_found_grace=0, **OUTAGE
    ) as app:
        await park(app, "apples", "pears", session_id="7")
        await park(app, "a bill", path="invoices")
        app.namespaces.primary.broker.find_sendable("orders").set_status("SendDisabled")
        await drain(app, 1200)
        assert await app.arrived_bodies("invoices") == ["a bill"]
        (alarm,) = [item for item in app.pairing.observers.alarms.raised if item.kind is AlarmKind.DESTINATION_REFUSES]
        assert "messages for 'orders' stay in 'contoso/x-servicebus-transfer/0': " in alarm.reason
        app.namespaces.primary.broker.find_sendable("orders").set_status("Active")
        await asyncio.sleep(120)
        assert await app.arrived_bodies() == ["apples", "pears"]
        assert await dead_letters(app) == []
        await asyncio.sleep(900)
        assert app.pairing.observers.alarms.raised == ()


@in_virtual_time
async def test_q19_messages_wait_and_raise_an_alarm_while_the_primary_refuses_the_key() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, failover_interval=0) as app:
            await park(app, "apples")
            namespaces.primary.outage.restore()
            options = app.pairing.options
            options.secondary_factory, options.enable_syphon = namespaces.secondary.factory(), True
            string = namespaces.primary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=no")
            unauthorised = MessagingFactory.from_connection_string(string, clock=namespaces.clock)
            async with await unauthorised.pair_namespace(options) as pairing:
                await asyncio.sleep(600)
                assert [alarm.kind for alarm in pairing.observers.alarms.raised] == [AlarmKind.DESTINATION_REFUSES]
                assert [message.text for message in await app.parked_messages()] == ["apples"]
        async with paired_application(namespaces, **OUTAGE) as app:
            await asyncio.sleep(60)
            assert await app.arrived_bodies() == ["apples"]
            assert await dead_letters(app) == []


@in_virtual_time
async def test_q19_a_busy_destination_does_not_hold_up_the_others_and_gets_its_messages_in_order(
    waiting_state: str,
) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        await namespaces.primary.create_queue("invoices")
        async with paired_application(namespaces, backlog_queue_count=1, **OUTAGE) as app:
            await park(app, *[str(number) for number in range(30)], path="baskets", session_id="7")
            await park(app, "a bill", path="invoices")
            namespaces.primary.outage.restore()
            namespaces.primary.outage.busy("baskets")
            await asyncio.sleep(60)
            assert await app.arrived_bodies("invoices") == ["a bill"]
            assert await app.arrived_bodies("baskets") == []
            states = [message.state for message in await app.parked_messages()]
            assert states == [waiting_state] * 30
            namespaces.primary.outage.restore()
            await asyncio.sleep(120)
            assert await app.arrived_bodies("baskets") == [str(number) for number in range(30)]
            assert await app.parked_messages() == []


@in_virtual_time
async def test_q19_a_new_pump_moves_messages_that_an_earlier_pump_deferred(waiting_state: str) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, backlog_queue_count=1, **OUTAGE) as app:
            await park(app, *[str(number) for number in range(10)], path="baskets", session_id="7")
            namespaces.primary.outage.restore()
            namespaces.primary.outage.busy("baskets")
            await asyncio.sleep(30)
            assert {message.state for message in await app.parked_messages()} == {waiting_state}
        namespaces.primary.outage.restore()
        async with paired_application(namespaces, backlog_queue_count=1, **OUTAGE) as app:
            await asyncio.sleep(60)
            assert await app.arrived_bodies("baskets") == [str(number) for number in range(10)]


@in_virtual_time
async def test_a_syphon_drains_messages_that_were_parked_before_it_started() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, failover_interval=0) as app:
            await park(app, "apples", "pears")
        namespaces.primary.outage.restore()
        async with paired_application(namespaces, **OUTAGE) as app:
            await asyncio.sleep(5)
            assert sorted(await app.arrived_bodies()) == ["apples", "pears"]


@in_virtual_time
async def test_a_restart_of_the_secondary_loses_no_parked_message() -> None:
    async with in_memory_pair_application(**OUTAGE) as app:
        await park(app, *[str(number) for number in range(100)])
        app.namespaces.secondary.kill()
        await asyncio.sleep(1)
        await app.namespaces.secondary.start()
        await drain(app)
        assert sorted(await app.arrived_bodies(), key=int) == [str(number) for number in range(100)]


@in_virtual_time
async def test_closing_a_syphon_while_it_drains_duplicates_no_message() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, failover_interval=0) as app:
            await park(app, *[str(number) for number in range(1_200)])
        namespaces.primary.outage.restore()
        namespaces.primary.outage.slow(0.02)
        remaining, loop = 1_200, asyncio.get_running_loop()
        while remaining:
            async with paired_application(namespaces, **OUTAGE) as app:
                async for event in app.pairing.events():
                    if event.kind is EventKind.MOVED:
                        break
                await asyncio.sleep(0.01)
                before_s = loop.time()
            assert loop.time() - before_s < 1
            remaining = len(await app.parked_messages())
        texts = [message.text for message in await namespaces.primary.messages("orders")]
        assert sorted(texts, key=int) == [str(number) for number in range(1_200)]


@in_virtual_time
async def test_a_listener_gets_events_of_its_kinds_until_it_is_removed() -> None:
    async with in_memory_pair_application(failover_interval=0, enable_syphon=True) as app:
        kinds: list[EventKind] = []
        stop_listening = app.pairing.on_event(lambda event: kinds.append(event.kind), {EventKind.MOVED})
        await park(app, "order 1", "order 2")
        await drain(app)
        assert kinds == [EventKind.MOVED] * 2
        stop_listening()
        await park(app, "order 3")
        await drain(app)
        assert len(app.events_of(EventKind.MOVED)) == 3
        assert kinds == [EventKind.MOVED] * 2


@in_virtual_time
async def test_q19_a_refused_message_does_not_affect_the_others_of_its_batch() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, backlog_queue_count=1, **OUTAGE) as app:
            namespaces.primary.outage.stop()
            client = app.queue_client("baskets")
            for number in range(30):
                session_id = None if number in (7, 8, 21) else f"basket {number % 3}"
                await client.send(BrokeredMessage(str(number), session_id=session_id))
            await drain(app)
            messages = await namespaces.primary.messages("baskets")
            assert sorted(int(item.text) for item in messages) == [item for item in range(30) if item not in (7, 8, 21)]
            for basket in range(3):
                texts = [int(item.text) for item in messages if item.session_id == f"basket {basket}"]
                assert texts == sorted(texts)
            dead = await namespaces.secondary.messages(f"{app.backlog_path(0)}/$DeadLetterQueue")
            assert [item.text for item in dead] == ["7", "8", "21"]
            assert all("session" in str(item.dead_letter_error_description).lower() for item in dead)
            assert await app.parked_messages() == []


@pytest.mark.interpreted
@in_virtual_time
async def test_q18_waiting_messages_are_sent_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, backlog_queue_count=1, **OUTAGE) as app:
            namespaces.primary.outage.stop()
            client = app.queue_client("baskets")
            for number in range(300):
                await client.send(BrokeredMessage(str(number), session_id=f"basket {number % 7}"))
            sends = 0
            link = MessageSender.link

            async def link_with_counter(sender: MessageSender, *arguments: object) -> object:
                attached = await link(sender, *arguments)  # type: ignore[arg-type]
                send = attached.send

                def count_send(*parts: object) -> object:
                    nonlocal sends
                    sends += 1
                    return send(*parts)  # type: ignore[arg-type]

                monkeypatch.setattr(attached, "send", count_send)
                return attached

            monkeypatch.setattr(MessageSender, "link", link_with_counter)
            await drain(app)
            assert len(await namespaces.primary.messages("baskets")) == 300
            assert sends < 60
