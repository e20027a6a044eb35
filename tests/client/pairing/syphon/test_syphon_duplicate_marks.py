"""Q04, Q17: a pump marks every copy of a message that may have arrived before as a possible duplicate."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import EventKind
from twinbus.client.pairing.syphon.manual_drain import ManualDrain
from twinbus.pipeline.syphon.assignment import Assignment, DriverAddress, Pair
from twinbus.pipeline.syphon.progress import TaskProgress
from twinbus.pipeline.syphon.task import running_pumps
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DUPLICATE_MARK: Final = "x-ms-possible-duplicate"
OPTIONS: Final[dict[str, Any]] = {"failover_interval": 0, "backlog_queue_count": 1}
SYPHON: Final[dict[str, Any]] = OPTIONS | {"enable_syphon": True}
COUNT: Final = 300


async def park(app: Application, count: int = COUNT, path: str = "orders") -> None:
    """Park messages that were never sent to the primary."""
    app.namespaces.primary.outage.stop()
    client = app.queue_client(path)
    for number in range(count):
        await client.send(BrokeredMessage(str(number)))
    app.namespaces.primary.outage.restore()


async def lose_responses(namespaces: InMemoryPair, path: str = "orders") -> None:
    """Let some messages reach the primary, and lose its responses."""
    namespaces.primary.outage.slow(1)
    while not await namespaces.primary.messages(path):  # noqa: ASYNC110  # no event announces it
        await asyncio.sleep(0.1)
    namespaces.primary.outage.hang()


async def copies(namespaces: InMemoryPair, path: str = "orders", count: int = COUNT) -> tuple[int, int]:
    """Count the surplus copies, and those without a mark; check that no message is lost."""
    stored = await namespaces.primary.messages(path)
    texts = Counter(message.text for message in stored)
    assert set(texts) == {str(number) for number in range(count)}, "no message is lost"
    unmarked = Counter(message.text for message in stored if DUPLICATE_MARK not in message.properties)
    return len(stored) - count, sum(number - 1 for number in unmarked.values() if number > 1)


@in_virtual_time
async def test_q04_messages_in_flight_when_the_primary_is_lost_are_sent_again_with_a_mark() -> None:
    async with in_memory_pair_application(**SYPHON) as app:
        await park(app)
        await lose_responses(app.namespaces)
        app.namespaces.primary.outage.cut()
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        extra, unmarked = await copies(app.namespaces)
        assert (extra > 0, unmarked) == (True, 0)


@pytest.mark.parametrize("how", ["connection lost", "killed", "displaced", "closed"])
@in_virtual_time
async def test_q17_messages_in_flight_when_the_backlog_queue_is_lost_are_sent_again_with_a_mark(how: str) -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, **OPTIONS) as sender:
            await park(sender)
        async with paired_application(namespaces, **SYPHON):
            await lose_responses(namespaces)
            if how == "connection lost":
                namespaces.secondary.outage.cut()
            elif how == "killed":
                namespaces.secondary.kill()
                await namespaces.secondary.start()
            elif how == "displaced":
                async with paired_application(namespaces, **SYPHON):
                    await asyncio.sleep(20)
            if how != "closed":
                await asyncio.sleep(20)
        namespaces.primary.outage.restore()
        async with paired_application(namespaces, **SYPHON):
            await asyncio.sleep(120)
        extra, unmarked = await copies(namespaces)
        assert (extra > 0, unmarked) == (True, 0)


@in_virtual_time
async def test_q04_messages_that_were_never_sent_come_back_without_a_mark() -> None:
    async with in_memory_pair_application(**SYPHON) as app:
        for _ in range(3):
            await park(app, 100)
            await asyncio.sleep(60)
        stored = await app.namespaces.primary.messages("orders")
        assert len(stored) == 300
        assert not [message.text for message in stored if DUPLICATE_MARK in message.properties]


@in_virtual_time
async def test_q04_q19_a_message_without_a_response_is_deferred_and_comes_back_with_a_mark(
    cannot_withhold: None,  # noqa: ARG001
) -> None:
    async with in_memory_pair_application(operation_timeout=20, **SYPHON) as app:
        await park(app, 10)
        app.namespaces.primary.outage.hang_store()  # the store will write them, but does not respond
        await asyncio.sleep(60)
        assert app.events_of(EventKind.DEFERRED)
        parked = await app.parked_messages()
        assert {message.state for message in parked} == {"deferred"}
        assert {message.properties.get(DUPLICATE_MARK) for message in parked} == {True}
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(120)
        _, unmarked = await copies(app.namespaces, count=10)
        assert unmarked == 0


@in_virtual_time
async def test_q04_q19_messages_in_flight_when_their_queue_is_disabled_come_back_with_a_mark() -> None:
    async with in_memory_pair_application(**SYPHON) as app:
        await park(app, 10)
        outage, queue = app.namespaces.primary.outage, app.namespaces.primary.broker.find_sendable("orders")
        outage.hang_store()  # the store will write them
        await asyncio.sleep(2)
        queue.set_status("Disabled")
        outage.restore()
        await asyncio.sleep(10)
        queue.set_status("Active")
        await asyncio.sleep(60)
        _, unmarked = await copies(app.namespaces, count=10)
        assert unmarked == 0


async def _drain_by_hand(namespaces: InMemoryPair, path: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
    primary, secondary = namespaces.factories()
    string = namespaces.secondary.admin_connection_string
    async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager, primary, secondary:
        pumps = ManualDrain(primary, secondary, manager, [path])
        pumps.start()
        await meanwhile()
        await pumps.close()


async def _drain_on_spark(namespaces: InMemoryPair, path: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
    primary, secondary = namespaces.factories()
    assignment = Assignment(
        pair=Pair(
            primary_connection_string="",
            secondary_connection_string="",
            admin_connection_string="",
            primary_name=namespaces.primary.name,
        ),
        backlog_queues=(path,),
        driver_address=DriverAddress(host="127.0.0.1", port=0, token=""),
        round=0,
        group=0,
        driver_started_ms=namespaces.clock.wall_ms(),
        poll_s=900.0,
        deduct=False,
        journal_dir=None,
    )
    async with running_pumps(primary, secondary, assignment, assignment.epoch(0), TaskProgress((path,))):
        await meanwhile()


@pytest.mark.parametrize("drain", [_drain_by_hand, _drain_on_spark])
@in_virtual_time
async def test_q17_drain_and_the_pipelines_syphon_mark_messages_that_an_earlier_host_may_have_sent(drain: Any) -> None:  # noqa: ANN401
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        async with paired_application(namespaces, **OPTIONS) as sender:
            await park(sender)
            path = sender.backlog_path(0)

        async def die() -> None:
            await lose_responses(namespaces)
            namespaces.secondary.outage.stop()
            await asyncio.sleep(1)

        async def finish() -> None:
            namespaces.primary.outage.restore()
            namespaces.secondary.outage.restore()
            await asyncio.sleep(120)

        await drain(namespaces, path, die)
        await drain(namespaces, path, finish)
        extra, unmarked = await copies(namespaces)
        assert (extra > 0, unmarked) == (True, 0)
