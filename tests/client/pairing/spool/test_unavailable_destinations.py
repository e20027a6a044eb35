"""A spooled message waits for its destination, as with the syphon: only its own faults make it refused."""

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


async def check_that_message_waits(
    namespaces: FakeNamespaces, error: ServiceBusError, folder: Path, **options: object
) -> None:
    """Spool a message whose destination fails for a while, and check that the message arrives afterwards."""
    async with pair_namespaces(namespaces, folder, **options) as pairing:
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("orders").send(BrokeredMessage("order", message_id="order"))
        namespaces.errors[PRIMARY, "orders"] = error
        namespaces.end_outage(pairing)
        requests_before = namespaces.request_count
        await namespaces.wait_until(lambda: namespaces.request_count > requests_before + 3)
        assert namespaces.event_message_ids(EventKind.SPOOL_REFUSED) == []
        refusals = [alarm for alarm in pairing.observers.alarms.raised if alarm.kind is AlarmKind.DESTINATION_REFUSES]
        assert len(refusals) == (not isinstance(error, QuotaExceeded | PartlyStored))
        assert all(alarm.reason == f"messages for 'orders' stay in the spool: {error}" for alarm in refusals)
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
async def test_q19_a_message_stays_in_the_spool_after_an_error_that_is_not_its_own_fault(
    namespaces: FakeNamespaces, tmp_path: Path, error: ServiceBusError
) -> None:
    await check_that_message_waits(namespaces, error, tmp_path)


async def test_q19_a_message_for_an_entity_that_is_missing_for_too_long_is_refused(
    namespaces: FakeNamespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_s: list[float] = []
    is_permanent = RejectionPolicy.is_permanent

    def is_permanent_later(policy: RejectionPolicy, error: ServiceBusError, _now_s: float) -> bool:
        """Pretend that 20 minutes have passed since the last call."""
        times_s.append(1200.0 * len(times_s))
        return is_permanent(policy, error, times_s[-1])

    monkeypatch.setattr(RejectionPolicy, "is_permanent", is_permanent_later)
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("gone").send(BrokeredMessage("order", message_id="order"))
        namespaces.errors[PRIMARY, "gone"] = EntityNotFound("there is no 'gone'")
        namespaces.end_outage(pairing, "gone")
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.SPOOL_REFUSED) == ["order"])
        assert times_s == [0.0, 1200.0, 2400.0, 3600.0]
        await namespaces.wait_until(
            lambda: [alarm.kind for alarm in pairing.observers.alarms.raised] == [AlarmKind.SPOOL_REFUSED]
        )
