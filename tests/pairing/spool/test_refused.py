"""A spooled message that will never be taken is kept aside with the reason, and can be brought back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.pairing.spool.world import PRIMARY, SECONDARY, World, make_world, paired
from twinbus.client.errors import EntityNotFound
from twinbus.client.pairing import EventKind
from twinbus.model.errors import Unauthorized
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(monkeypatch)


def message(name: str, session_id: str | None = None) -> BrokeredMessage:
    return BrokeredMessage(name, message_id=name, session_id=session_id)


async def test_a_refused_message_is_kept_with_the_reason_and_what_is_behind_it_goes_on(
    world: World, tmp_path: Path
) -> None:
    names = [f"refused {number}" for number in range(12)]
    async with paired(world, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        gone = pairing.primary.create_message_sender("gone")
        world.down = {PRIMARY, SECONDARY}
        for name in names:
            await gone.send(message(name, "a"))
        await orders.send(message("order"))
        world.errors[PRIMARY, "gone"] = EntityNotFound("there is no 'gone'")
        world.end_outage(pairing, "orders", "gone")
        await world.until(lambda: world.heard(EventKind.SPOOL_REFUSED) == names)
        await world.until(lambda: world.heard(EventKind.UNSPOOLED) == ["order"])
        reasons = sorted((tmp_path / "contoso" / "refused").glob("*.txt"))
        assert len(reasons) == len(names)
        assert "there is no 'gone'" in reasons[0].read_text()
        assert "refused 0" in reasons[0].read_text()
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 0
    world.errors, world.down = {}, set()
    for file in (tmp_path / "contoso" / "refused").glob("*.spool"):
        file.rename(tmp_path / "contoso" / file.name)
    async with paired(world, tmp_path):
        await world.until(lambda: world.heard(EventKind.UNSPOOLED)[1:] == names)
    assert world.names(PRIMARY, "gone") == names


async def test_what_a_wrong_key_refuses_stays_in_the_spool(world: World, tmp_path: Path) -> None:
    async with paired(world, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        world.down = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        world.errors[PRIMARY, "orders"] = Unauthorized("the key is an old one")
        world.end_outage(pairing)
        asked = world.asked
        await world.until(lambda: world.asked > asked + 3)
        assert world.heard(EventKind.SPOOL_REFUSED) == []
        world.errors.clear()
        await world.until(lambda: world.heard(EventKind.UNSPOOLED) == ["order"])


async def test_a_refused_message_that_cannot_be_put_aside_stays_in_the_spool(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with paired(world, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        world.down = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        world.errors[PRIMARY, "orders"] = EntityNotFound("there is no 'orders'")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            world.end_outage(pairing)
            asked = world.asked
            await world.until(lambda: world.asked > asked + 3)
            assert world.heard(EventKind.SPOOL_REFUSED) == []
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 1
        await world.until(lambda: world.heard(EventKind.SPOOL_REFUSED) == ["order"])


def full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


async def test_a_closed_factory_refuses_nothing(world: World, tmp_path: Path) -> None:
    async with paired(world, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        world.down = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        await pairing.primary.close()
        asked = world.asked
        world.end_outage(pairing)
        await world.until(lambda: world.asked > asked)
    assert not list((tmp_path / "contoso" / "refused").iterdir())
    world.down = set()
    async with paired(world, tmp_path):
        await world.until(lambda: world.names(PRIMARY) == ["order"])
