"""Frozen processes: no code of the process runs, not even its timers, while time passes for all others."""

from __future__ import annotations

import asyncio

import pytest

from tests.testing.test_network_faults import connect, network, serve
from tests.testing.test_network_in_memory import turns
from twinbus.client import NO_RETRY, BrokeredMessage
from twinbus.model.errors import OperationTimeout
from twinbus.testing import InMemoryNamespace, in_virtual_time, on_host
from twinbus.testing.loop import fake_time_loop


def start_ticking(host: str | None, ticks: list[float]) -> asyncio.Task[None]:
    async def tick() -> None:
        while True:
            await asyncio.sleep(1.0)
            ticks.append(fake_time_loop().time())

    with on_host(host):
        return asyncio.ensure_future(tick())


@in_virtual_time
async def test_tasks_on_a_frozen_host_pause_and_continue_when_it_is_thawed() -> None:
    loop = fake_time_loop()
    frozen: list[float] = []
    others: list[float] = []
    start_ticking("app-1", frozen)
    start_ticking("app-2", others)
    await asyncio.sleep(2.5)
    loop.freeze("app-1")
    await asyncio.sleep(10)
    assert (len(frozen), len(others)) == (2, 12)
    thawed_s = loop.time()
    loop.thaw("app-1")
    await asyncio.sleep(2.1)
    assert frozen[2] == pytest.approx(thawed_s)  # the timer was overdue
    assert (len(frozen), len(others)) == (5, 14)


@in_virtual_time
async def test_bytes_sent_to_a_frozen_process_arrive_when_it_is_thawed() -> None:
    with on_host("server"):
        ends = await serve()
    client = await connect()
    await turns()
    fake_time_loop().freeze("server")
    client.transport.write(b"are you there?")
    await asyncio.sleep(3600)
    assert ends[0].data == b""
    fake_time_loop().thaw("server")
    await turns()
    assert ends[0].data == b"are you there?"


@in_virtual_time
async def test_a_process_killed_while_frozen_never_runs_again() -> None:
    ends = await serve()
    ticks: list[float] = []
    start_ticking("app-1", ticks)
    with on_host("app-1"):
        client = await connect()
    await turns()
    fake_time_loop().freeze("app-1")
    network().switch_off("app-1")
    assert isinstance(await ends[0].lost, ConnectionResetError)
    await asyncio.sleep(60)
    assert ticks == []
    assert not client.lost.done()
    fake_time_loop().thaw("app-1")  # so that the tasks can be cancelled


@in_virtual_time
async def test_a_frozen_namespace_does_not_respond_until_it_is_thawed() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        orders = namespace.factory(retry_policy=NO_RETRY, operation_timeout=10).create_queue_client("orders")
        await orders.send(BrokeredMessage("first"))
        namespace.outage.freeze()
        with pytest.raises(OperationTimeout):
            await orders.send(BrokeredMessage("second"))
        namespace.outage.restore()
        await orders.send(BrokeredMessage("third"))
        assert [message.text for message in await namespace.messages("orders")] == ["first", "second", "third"]


@in_virtual_time
async def test_a_frozen_namespace_can_be_killed_and_started() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        orders = namespace.factory(operation_timeout=10).create_queue_client("orders")
        await orders.send(BrokeredMessage("first"))
        namespace.outage.freeze()
        namespace.kill()
        await namespace.start()
        await orders.send(BrokeredMessage("second"))
        assert [message.text for message in await namespace.messages("orders")] == ["first", "second"]
