"""A spooled message waits for its destination: only a fault of its own puts it aside, as with the syphon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pairing.spool.world import PRIMARY, SECONDARY, World, make_world, paired
from twinbus.client.errors import EntityNotFound
from twinbus.client.pairing import AlarmKind, EventKind
from twinbus.client.pairing.blame import Patience
from twinbus.model.errors import (
    EntityDisabled,
    NotImplementedHere,
    PartlyStored,
    QuotaExceeded,
    ServiceBusError,
    Unauthorized,
)
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(monkeypatch)


async def spool(world: World, error: ServiceBusError, folder: Path, **options: object) -> None:
    """Spool a message that meets an error for a while, and see that it arrives afterwards."""
    async with paired(world, folder, **options) as pairing:
        world.down = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("orders").send(BrokeredMessage("order", message_id="order"))
        world.errors[PRIMARY, "orders"] = error
        world.end_outage(pairing)
        asked = world.asked
        await world.until(lambda: world.asked > asked + 3)
        assert world.heard(EventKind.SPOOL_REFUSED) == []
        refusals = [one for one in pairing.seen.alarms.raised if one.kind is AlarmKind.DESTINATION_REFUSES]
        assert len(refusals) == (not isinstance(error, QuotaExceeded | PartlyStored))
        assert all(one.reason == f"messages for 'orders' stay in the spool: {error}" for one in refusals)
        world.errors.clear()
        await world.until(lambda: world.heard(EventKind.UNSPOOLED) == ["order"])
        assert pairing.seen.alarms.raised == ()


@pytest.mark.parametrize(
    "error",
    [
        EntityDisabled("it is disabled"),
        Unauthorized("the key is an old one"),
        EntityNotFound("there is no 'orders'"),
        QuotaExceeded("it is full"),
        NotImplementedHere("an older server"),
        PartlyStored("one of two is stored"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_q19_a_message_waits_in_the_spool_for_a_fault_that_is_not_its_own(
    world: World, tmp_path: Path, error: ServiceBusError
) -> None:
    await spool(world, error, tmp_path)


async def test_q19_a_message_for_an_entity_that_is_missing_for_too_long_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    is_over = Patience.is_over

    def hours_later(patience: Patience, error: ServiceBusError, _now_s: float) -> bool:
        """Each look is 20 minutes after the one before."""
        seen.append(1200.0 * len(seen))
        return is_over(patience, error, seen[-1])

    monkeypatch.setattr(Patience, "is_over", hours_later)
    async with paired(world, tmp_path) as pairing:
        world.down = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("gone").send(BrokeredMessage("order", message_id="order"))
        world.errors[PRIMARY, "gone"] = EntityNotFound("there is no 'gone'")
        world.end_outage(pairing, "gone")
        await world.until(lambda: world.heard(EventKind.SPOOL_REFUSED) == ["order"])
        assert seen == [0.0, 1200.0, 2400.0, 3600.0]
        await world.until(lambda: [one.kind for one in pairing.seen.alarms.raised] == [AlarmKind.SPOOL_REFUSED])
