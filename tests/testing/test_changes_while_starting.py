"""Changes made to a namespace while its server is starting are in effect when it serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from twinbus.client import BrokeredMessage
from twinbus.testing import InMemoryNamespace, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.testing.outage import Outage

TURNS = 40
"""Turns of the loop after the start; in one of them the server has read the old state and does not serve yet."""


def revoke(outage: Outage) -> None:
    outage.revoke_key()


def give_back(outage: Outage) -> None:
    outage.give_key_back()


def fill(outage: Outage) -> None:
    outage.fill_disk()


def empty(outage: Outage) -> None:
    outage.restore_disks()


@pytest.mark.parametrize(("begin", "end"), [(revoke, give_back), (fill, empty)])
def test_an_outage_that_ends_during_the_start_is_not_in_effect(
    begin: Callable[[Outage], None], end: Callable[[Outage], None]
) -> None:
    @in_virtual_time
    async def try_each_turn() -> None:
        async with InMemoryNamespace() as namespace:
            await namespace.create_queue("orders")
            for turns in range(TURNS):
                namespace.kill()
                begin(namespace.outage)
                starting = asyncio.ensure_future(namespace.start())
                for _ in range(turns):
                    await asyncio.sleep(0)
                end(namespace.outage)
                await starting
                async with namespace.factory() as factory:
                    await factory.create_message_sender("orders").send(BrokeredMessage(str(turns)))
            assert len(await namespace.messages("orders")) == TURNS

    try_each_turn()
