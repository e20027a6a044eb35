"""A spooled message waits for its destination: only a fault of its own puts it aside, as with the syphon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.spool.fake_namespaces import (
    PRIMARY,
    SECONDARY,
    FakeNamespaces,
    make_fake_namespaces,
    pair_namespaces,
)
from twinbus.client.errors import EntityNotFound
from twinbus.client.pairing import AlarmKind, EventKind
from twinbus.client.pairing.delivery_failure import RejectionPolicy
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
def namespaces(monkeypatch: pytest.MonkeyPatch) -> FakeNamespaces:
    return make_fake_namespaces(monkeypatch)


async def spool(namespaces: FakeNamespaces, error: ServiceBusError, folder: Path, **options: object) -> None:
    """Spool a message that meets an error for a while, and see that it arrives afterwards."""
    async with pair_namespaces(namespaces, folder, **options) as pairing:
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("orders").send(BrokeredMessage("order", message_id="order"))
        namespaces.errors[PRIMARY, "orders"] = error
        namespaces.end_outage(pairing)
        asked = namespaces.request_count
        await namespaces.wait_until(lambda: namespaces.request_count > asked + 3)
        assert namespaces.event_message_ids(EventKind.SPOOL_REFUSED) == []
        refusals = [one for one in pairing.observers.alarms.raised if one.kind is AlarmKind.DESTINATION_REFUSES]
        assert len(refusals) == (not isinstance(error, QuotaExceeded | PartlyStored))
        assert all(one.reason == f"messages for 'orders' stay in the spool: {error}" for one in refusals)
        namespaces.errors.clear()
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["order"])
        assert pairing.observers.alarms.raised == ()


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
    namespaces: FakeNamespaces, tmp_path: Path, error: ServiceBusError
) -> None:
    await spool(namespaces, error, tmp_path)


async def test_q19_a_message_for_an_entity_that_is_missing_for_too_long_is_refused(
    namespaces: FakeNamespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    is_over = RejectionPolicy.is_permanent

    def hours_later(patience: RejectionPolicy, error: ServiceBusError, _now_s: float) -> bool:
        """Each look is 20 minutes after the one before."""
        seen.append(1200.0 * len(seen))
        return is_over(patience, error, seen[-1])

    monkeypatch.setattr(RejectionPolicy, "is_permanent", hours_later)
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("gone").send(BrokeredMessage("order", message_id="order"))
        namespaces.errors[PRIMARY, "gone"] = EntityNotFound("there is no 'gone'")
        namespaces.end_outage(pairing, "gone")
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.SPOOL_REFUSED) == ["order"])
        assert seen == [0.0, 1200.0, 2400.0, 3600.0]
        await namespaces.wait_until(
            lambda: [one.kind for one in pairing.observers.alarms.raised] == [AlarmKind.SPOOL_REFUSED]
        )
