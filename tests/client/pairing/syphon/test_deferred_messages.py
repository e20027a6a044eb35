"""Q19: waiting messages come back in order soon after their destination accepts messages, and as fast as others."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.testing import InMemoryPair, in_virtual_time

SYPHON: Final[dict[str, Any]] = {"failover_interval": 0, "backlog_queue_count": 1, "enable_syphon": True}
LONG_S: Final = 200


async def park(app: Application, count: int, path: str = "orders", *, session_id: str | None = None) -> None:
    app.namespaces.primary.outage.stop()
    client = app.queue_client(path)
    for first in range(0, count, 50):
        numbers = range(first, min(first + 50, count))
        await client.send_batch([BrokeredMessage(str(number), session_id=session_id) for number in numbers])


async def seconds_until_arrived(app: Application, count: int, path: str = "orders") -> float:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    while len(await app.arrived_bodies(path)) < count:  # noqa: ASYNC110  # no event announces it
        await asyncio.sleep(0.05)
    return loop.time() - start_s


@in_virtual_time
async def test_q19_a_destination_that_was_busy_for_long_gets_its_messages_within_seconds() -> None:
    async with in_memory_pair_application(**SYPHON) as app:
        await park(app, 10)
        app.namespaces.primary.outage.restore()
        app.namespaces.primary.outage.busy("orders")
        await asyncio.sleep(LONG_S)
        app.namespaces.primary.outage.restore()
        assert await seconds_until_arrived(app, 10) < 6


@in_virtual_time
async def test_q19_c01_a_destination_that_was_disabled_gets_its_messages_soon_and_is_not_probed() -> None:
    async with in_memory_pair_application(**SYPHON) as app:
        await park(app, 10)
        queue = app.namespaces.primary.broker.find_sendable("orders")
        queue.set_status("Disabled")
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(LONG_S)
        assert len(app.events_of(EventKind.DEFERRED)) == 10, "no message was received again"
        queue.set_status("Active")
        assert await seconds_until_arrived(app, 10) < 1.5


@pytest.mark.parametrize("how", ["ping", "send", "mark_path_healthy"])
@in_virtual_time
async def test_q19_a_destination_known_to_be_available_gets_its_waiting_messages_at_once(how: str) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, **SYPHON | {"enable_syphon": False}) as sender:
            await park(sender, 10)
        namespaces.primary.outage.restore()
        interval = 0 if how == "ping" else 3_600
        async with paired_application(
            namespaces, **SYPHON | {"failover_interval": interval, "ping_primary_interval": 7}
        ) as app:
            client = app.queue_client()
            namespaces.primary.outage.busy("orders")
            await asyncio.sleep(LONG_S)
            namespaces.primary.outage.restore()
            if how == "send":
                await client.send(BrokeredMessage("last"))
            elif how == "mark_path_healthy":
                app.pairing.mark_path_healthy("orders")
            else:
                app.pairing.health_of("orders").ping_succeeded()
            assert await seconds_until_arrived(app, 10) < 0.2


@in_virtual_time
async def test_q19_a_pump_that_waits_for_the_primary_resumes_within_seconds() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        options = SYPHON | {"enable_syphon": False}
        async with paired_application(namespaces, **options) as sender:
            await park(sender, 10)
        async with paired_application(namespaces, **SYPHON) as app:
            await asyncio.sleep(LONG_S)
            namespaces.primary.outage.restore()
            assert await seconds_until_arrived(app, 10) < 6


@in_virtual_time
async def test_q18_q19_waiting_messages_take_about_as_long_as_others_and_keep_their_order(waiting_state: str) -> None:
    async with InMemoryPair() as namespaces:
        for path in ("orders", "baskets"):
            await namespaces.primary.create_queue(path, requires_session=True)
        async with paired_application(namespaces, **SYPHON) as app:
            for path in ("orders", "baskets"):
                for session in range(20):
                    await park(app, 100, path, session_id=str(session))
            queue = namespaces.primary.broker.find_sendable("baskets")
            queue.set_status("Disabled")
            namespaces.primary.outage.restore()
            for namespace in (namespaces.primary, namespaces.secondary):
                namespace.outage.slow(0.1)
            others_s = await seconds_until_arrived(app, 2_000)
            await asyncio.sleep(60)
            assert {message.state for message in await app.parked_messages()} == {waiting_state}
            queue.set_status("Active")
            deferred_s = await seconds_until_arrived(app, 2_000, "baskets")
            assert deferred_s < others_s + 2, "one second until the syphon detects it, and some more requests"
            for session in range(20):
                messages = [m for m in await namespaces.primary.messages("baskets") if m.session_id == str(session)]
                assert [m.text for m in messages] == [str(number) for number in range(100)]


@in_virtual_time
async def test_q18_q19_messages_behind_deferred_messages_wait_and_are_not_deferred(
    cannot_withhold: None,  # noqa: ARG001
) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("baskets", requires_session=True)
        async with paired_application(namespaces, **SYPHON) as app:
            await park(app, 20, "baskets", session_id="7")
            namespaces.primary.outage.restore()
            namespaces.primary.outage.busy("baskets")
            await asyncio.sleep(2)
            assert {message.state for message in await app.parked_messages()} == {"deferred"}
        async with paired_application(namespaces, **SYPHON | {"enable_syphon": False}) as app:
            namespaces.primary.outage.stop()
            client = app.queue_client("baskets")
            for number in range(20, 220):
                await client.send(BrokeredMessage(str(number), session_id="7"))
        namespaces.primary.outage.restore()
        namespaces.primary.outage.slow(0.1)
        async with paired_application(namespaces, **SYPHON) as app:
            await asyncio.sleep(60)
            assert await app.arrived_bodies("baskets") == [str(number) for number in range(220)]
            assert app.events_of(EventKind.DEFERRED) == []
