"""R058 to R067, Q13 and Q14: the pings that a paired client sends."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.amqp.message import Message, Section
from twinbus.client import BrokeredMessage
from twinbus.client.errors import EntityNotFound
from twinbus.client.pairing import EntityState, EventKind
from twinbus.client.sender import MessageSender
from twinbus.model.errors import DiskFull, FailureClass
from twinbus.model.queue import QueueRuntime
from twinbus.testing import InMemoryPair, in_virtual_time


class Recorder:
    """Records what senders without pairing send to the primary: the pings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pings: list[Message] = []
        deliver = MessageSender.deliver

        async def record(sender: MessageSender, payload: bytes, message_format: int = 0, **options: object) -> None:
            if type(sender) is MessageSender and not sender.path.startswith("contoso/"):
                self.pings.append(Message(payload))
            await deliver(sender, payload, message_format, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(MessageSender, "deliver", record)


@in_virtual_time
async def test_r058_r059_r060_a_ping_is_empty_and_has_its_content_type_and_a_second_to_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(monkeypatch)
    async with in_memory_pair_application(failover_interval=0) as app:
        app.namespaces.primary.outage.stop()
        await app.queue_client().send(BrokeredMessage("apples"))
        await asyncio.sleep(61)
    (ping,) = recorder.pings
    assert ping.data == [b""]
    assert ping.field(Section.PROPERTIES, 6) == "application/vnd.ms-servicebus-ping"
    assert ping.header is not None
    assert ping.header.ttl == 1_000


@in_virtual_time
async def test_r061_r062_no_receiver_gets_a_ping() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(61)
        assert [event.reason for event in app.events_of(EventKind.PINGED)] == [None]
        assert await queue.receive(5) is None
        counts = app.namespaces.primary.counts("orders")
        assert isinstance(counts, QueueRuntime)
        assert counts.active_count == 0


@in_virtual_time
async def test_r063_r064_q13_each_factory_pings_each_unavailable_entity_once_an_interval() -> None:
    async with InMemoryPair() as namespaces:
        for path in ("orders", "invoices", "idle"):
            await namespaces.primary.create_queue(path)
        options = {"failover_interval": 0, "ping_primary_interval": 60}
        async with (
            paired_application(namespaces, **options) as first,
            paired_application(namespaces, **options) as second,
        ):
            first.queue_client("idle")
            namespaces.primary.outage.stop()
            for app in (first, second):
                for path in ("orders", "invoices"):
                    for _ in range(3):
                        await app.queue_client(path).send(BrokeredMessage("x"))
            await asyncio.sleep(45 * 60 + 1)
            for app in (first, second):
                pings = app.events_of(EventKind.PINGED)
                assert len(pings) == 2 * 45
                assert {ping.path for ping in pings} == {"orders", "invoices"}
            assert {message.text for message in await first.parked_messages()} == {"x"}, "no ping is parked"


@in_virtual_time
async def test_r065_r066_q13_pings_are_at_fixed_multiples_of_the_interval_after_the_failover() -> None:
    async with in_memory_pair_application(failover_interval=0, ping_primary_interval=7) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.stop()
        await queue.send(BrokeredMessage("apples"))
        start_ms = app.events_of(EventKind.FAILED_OVER)[0].at_ms
        await asyncio.sleep(36)
        assert [ping.at_ms - start_ms for ping in app.events_of(EventKind.PINGED)] == [
            7_000,
            14_000,
            21_000,
            28_000,
            35_000,
        ]


@in_virtual_time
async def test_q13_a_ping_without_a_response_is_abandoned_when_the_next_is_due() -> None:
    async with in_memory_pair_application(failover_interval=0, ping_primary_interval=10, operation_timeout=20) as app:
        queue = app.queue_client()
        await queue.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.hang()
        await queue.send(BrokeredMessage("pears"))
        start_ms = app.events_of(EventKind.FAILED_OVER)[0].at_ms
        await asyncio.sleep(101)
        end_times_ms = [ping.at_ms - start_ms for ping in app.events_of(EventKind.PINGED)]
        assert len(end_times_ms) == 9
        assert all(
            10_000 * (number + 2) >= end_ms > 10_000 * (number + 1) for number, end_ms in enumerate(end_times_ms)
        )


@in_virtual_time
async def test_q13_a_ping_carries_the_key_of_the_send_that_triggered_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    async with in_memory_pair_application(("orders", "invoices"), failover_interval=0) as app:
        app.namespaces.primary.outage.stop()
        await app.queue_client("orders").send(BrokeredMessage("apples", session_id="basket 7"))
        await app.queue_client("invoices").send(BrokeredMessage("a bill", partition_key="key"))
        await app.queue_client("invoices").send(BrokeredMessage("a bill", partition_key="other"))
        await asyncio.sleep(61)
    sessions = [ping.field(Section.PROPERTIES, 10) for ping in recorder.pings]
    keys = [ping.lookup(Section.MESSAGE_ANNOTATIONS, "x-opt-partition-key") for ping in recorder.pings]
    assert sorted(zip(sessions, keys, strict=True), key=str) == [("basket 7", None), (None, "key")]


@in_virtual_time
async def test_q13_an_entity_with_sessions_accepts_the_ping_with_a_session_id() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, failover_interval=0) as app:
            namespaces.primary.outage.stop()
            await app.queue_client("baskets").send(BrokeredMessage("apples", session_id="7"))
            namespaces.primary.outage.restore()
            await asyncio.sleep(61)
            assert app.pairing.health_of("baskets").state is EntityState.HEALTHY


@in_virtual_time
async def test_q13_an_entity_with_a_full_disk_stays_failed_over() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue = app.queue_client()
        app.namespaces.primary.outage.fill_disk()
        await queue.send(BrokeredMessage("apples"))
        await asyncio.sleep(301)
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER
        assert isinstance(app.pairing.health_of("orders").failure, DiskFull)
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(61)
        assert app.pairing.health_of("orders").state is EntityState.HEALTHY


@in_virtual_time
async def test_q14_the_triggers_decide_which_ping_errors_are_refusals() -> None:
    async with in_memory_pair_application(
        failover_interval=0, triggers={EntityNotFound: FailureClass.UNAVAILABLE}
    ) as app:
        queue, primary = app.queue_client(), app.namespaces.primary
        await primary.entities.delete("orders")
        for _ in range(3):
            await queue.send(BrokeredMessage("parked: it will be made again"))
            await asyncio.sleep(61)
        assert app.pairing.health_of("orders").state is EntityState.FAILED_OVER
        assert len(await app.parked_messages()) == 3


@in_virtual_time
async def test_q14_two_refused_pings_make_sends_fail_until_one_succeeds() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        queue, primary = app.queue_client(), app.namespaces.primary
        primary.outage.stop()
        await queue.send(BrokeredMessage("apples"))
        await primary.entities.delete("orders")
        primary.outage.restore()
        await asyncio.sleep(61)
        await queue.send(BrokeredMessage("parked after one refusal"))
        await asyncio.sleep(60)
        assert app.pairing.health_of("orders").state is EntityState.UNREACHABLE
        with pytest.raises(EntityNotFound):
            await queue.send(BrokeredMessage("pears"))
        assert len(await app.parked_messages()) == 2
        await primary.create_queue("orders")
        await asyncio.sleep(60)
        await queue.send(BrokeredMessage("plums"))
        assert await app.arrived_bodies() == ["plums"]
