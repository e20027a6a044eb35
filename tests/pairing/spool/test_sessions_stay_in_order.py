"""Inside a session nothing overtakes what is spooled; other messages need not wait for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.pairing.spool.world import PRIMARY, SECONDARY, World, make_world, paired
from twinbus.client.pairing import EventKind, FailedOver
from twinbus.model.errors import QuotaExceeded
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(monkeypatch)


def message(name: str, session_id: str | None = None) -> BrokeredMessage:
    return BrokeredMessage(name, message_id=name, session_id=session_id)


async def test_a_session_with_spooled_messages_is_spooled_behind_them_and_others_go_directly(
    world: World, tmp_path: Path
) -> None:
    async with paired(world, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        other = pairing.primary.create_message_sender("Orders")
        world.down = {PRIMARY, SECONDARY}
        await sender.send(message("a1", "a"))
        answer = world.held["a1"] = asyncio.Event()
        world.end_outage(pairing)
        await other.send(message("a2", "a"))
        await sender.send(message("b1", "b"))
        await sender.send(message("1"))
        assert world.names() == ["b1", "1"]
        assert world.heard(EventKind.SPOOLED) == ["a1", "a2"]
        with pytest.raises(FailedOver, match="has messages in the spool"):
            async with pairing.primary.transaction() as transaction:
                await sender.send(message("a3", "a"), transaction=transaction)
        answer.set()
        await world.until(lambda: world.heard(EventKind.UNSPOOLED) == ["a1", "a2"])
        assert world.names(PRIMARY) == ["b1", "1", "a1", "a2"]
        await sender.send(message("a4", "a"))
        assert world.heard(EventKind.SPOOLED) == ["a1", "a2"], "nothing is in its way any more"


async def test_many_sessions_come_out_each_in_its_order(world: World, tmp_path: Path) -> None:
    async with paired(world, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        world.down = {PRIMARY, SECONDARY}
        for number in range(20):
            for session in "abc":
                await sender.send(message(f"{session}{number:02d}", session))
            await sender.send(message(f"-{number:02d}"))
        world.end_outage(pairing)
        await world.until(lambda: len(world.heard(EventKind.UNSPOOLED)) == 80)
        arrived = list(map(str, world.names(PRIMARY)))
        assert len(arrived) == 80
        for session in "abc-":
            of_session = [name for name in arrived if name.startswith(session)]
            assert of_session == [f"{session}{number:02d}" for number in range(20)]


async def test_an_entity_that_takes_nothing_does_not_hold_up_another(world: World, tmp_path: Path) -> None:
    async with paired(world, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        invoices = pairing.primary.create_message_sender("invoices")
        world.down = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        await invoices.send(message("invoice"))
        world.errors[PRIMARY, "orders"] = QuotaExceeded("it is full")
        world.end_outage(pairing, "orders", "invoices")
        await world.until(lambda: world.heard(EventKind.UNSPOOLED) == ["invoice"])
        asked = world.asked
        await world.until(lambda: world.asked > asked + 3)  # it goes on asking
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 1
        del world.errors[PRIMARY, "orders"]
        await world.until(lambda: world.heard(EventKind.UNSPOOLED) == ["invoice", "order"])
