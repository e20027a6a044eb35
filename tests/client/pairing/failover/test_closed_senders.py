"""Closing a sender that has a send in flight does not change the entity's health; a closed sender refuses sends."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from tests.support.paired_application import in_memory_pair_application
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionLost, FactoryFaulted, ObjectClosed
from twinbus.client.pairing import EntityState, EventKind
from twinbus.testing import in_virtual_time

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


@in_virtual_time
@pytest.mark.parametrize("ended", ["client", "factory", "pairing", "fault"])
async def test_closing_a_client_with_a_send_in_flight_triggers_no_failover(ended: str) -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        client, other = app.queue_client(), app.queue_client()
        await client.send(BrokeredMessage("apples"))
        app.namespaces.primary.outage.slow(2)
        sending = asyncio.ensure_future(client.send(BrokeredMessage("pears")))
        await asyncio.sleep(1)
        if ended == "fault":
            app.primary.abort(RuntimeError("enough"))
        else:
            close_methods = {"client": client.close, "factory": app.primary.close, "pairing": app.pairing.close}
            await close_methods[ended]()
        with pytest.raises(ConnectionLost):
            await sending
        assert app.pairing.health_of("orders").state is EntityState.HEALTHY
        assert app.events_of(EventKind.SUSPECTED, EventKind.PARKED) == []
        app.namespaces.primary.outage.restore()
        await asyncio.sleep(5)
        assert await app.parked_messages() == []
        if ended == "client":
            await other.send(BrokeredMessage("plums"))
            assert (await app.arrived_bodies())[-1] == "plums"


@in_virtual_time
async def test_a_closed_client_refuses_sends_even_while_its_entity_is_failed_over() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        client = app.queue_client()
        app.namespaces.primary.outage.stop()
        await client.send(BrokeredMessage("apples"))
        await client.close()
        with pytest.raises(ObjectClosed):
            await client.send(BrokeredMessage("pears"))
        with pytest.raises(ObjectClosed):
            await client.send_batch([BrokeredMessage("pears")])
        with pytest.raises(ObjectClosed):
            await client.schedule(BrokeredMessage("pears"), LATER)
        assert [message.text for message in await app.parked_messages()] == ["apples"]


@in_virtual_time
async def test_clients_of_a_closed_or_faulted_factory_refuse_sends() -> None:
    async with in_memory_pair_application(failover_interval=0) as app:
        client = app.queue_client()
        app.namespaces.primary.outage.stop()
        await client.send(BrokeredMessage("apples"))
        app.primary.abort(RuntimeError("enough"))
        with pytest.raises(FactoryFaulted, match="enough"):
            await client.send(BrokeredMessage("pears"))
    async with in_memory_pair_application(failover_interval=0) as app:
        client = app.queue_client()
        app.namespaces.primary.outage.stop()
        await client.send(BrokeredMessage("apples"))
        await app.pairing.close()
        with pytest.raises(ObjectClosed):
            await client.send(BrokeredMessage("pears"))


@in_virtual_time
async def test_a_held_send_fails_when_its_factory_is_closed() -> None:
    async with in_memory_pair_application(failover_interval=60, hold_during_failover_interval=True) as app:
        app.namespaces.primary.outage.stop()
        sending = asyncio.ensure_future(app.queue_client().send(BrokeredMessage("apples")))
        await asyncio.sleep(5)
        await app.primary.close()
        with pytest.raises(ObjectClosed):
            await asyncio.wait_for(sending, 5)
