"""A pair in memory: two namespaces on one clock that fail independently."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.client import NO_RETRY, BrokeredMessage, ConnectionString
from twinbus.client.errors import ConnectionFailed
from twinbus.testing import InMemoryPair, in_virtual_time


@in_virtual_time
async def test_one_namespace_works_while_the_other_is_stopped() -> None:
    async with InMemoryPair() as pair:
        for namespace in (pair.primary, pair.secondary):
            await namespace.create_queue("orders")
        primary, secondary = [
            factory.create_queue_client("orders") for factory in pair.factories(retry_policy=NO_RETRY)
        ]
        pair.primary.outage.stop()
        with pytest.raises(ConnectionFailed):
            await primary.send(BrokeredMessage("apples"))
        await secondary.send(BrokeredMessage("apples"))
        assert len(await pair.secondary.messages("orders")) == 1
        assert await pair.primary.messages("orders") == []


@in_virtual_time
async def test_the_namespaces_have_different_names_and_keys() -> None:
    async with InMemoryPair() as pair:
        strings = [ConnectionString.parse(namespace.connection_string) for namespace in (pair.primary, pair.secondary)]
        assert [string.namespace for string in strings] == ["contoso", "contoso-backup"]
        assert strings[0].key != strings[1].key


@in_virtual_time
async def test_both_namespaces_have_the_same_time() -> None:
    async with InMemoryPair() as pair:
        before_ms = pair.clock.wall_ms()
        await asyncio.sleep(86_400)
        assert pair.primary.clock.wall_ms() == pair.secondary.clock.wall_ms() == before_ms + 86_400_000


@in_virtual_time
async def test_a_pair_closes_during_an_outage() -> None:
    async with InMemoryPair() as pair:
        await pair.primary.create_queue("orders")
        primary, _ = pair.factories()
        await primary.create_queue_client("orders").send(BrokeredMessage("apples"))
        pair.primary.outage.hang()
        pair.secondary.kill()
    assert not pair.primary.is_running
    assert not pair.secondary.is_running
    assert primary.state.value == "closed"
