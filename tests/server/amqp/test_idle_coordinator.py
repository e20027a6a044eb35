"""A coordinator link whose transactions have ended does not keep the connection busy, however they ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.harness import BrokerHarness
from twinbus.amqp.message import value
from twinbus.amqp.outcomes import Declare, Declared, Discharge
from twinbus.server.amqp.transactions import MAX_TRANSACTION_S, CoordinatorLink, Transactions


class FakeDelivery:
    state = None

    def __init__(self, request: object) -> None:
        self.payload = value(request)


class FakeLink:
    def __init__(self) -> None:
        self.states: list[Any] = []

    def accept(self) -> None:
        """Do nothing."""

    def keep_credit(self, credit: int) -> None:
        assert credit

    def settle(self, _deliveries: list[FakeDelivery], state: object) -> None:
        self.states.append(state)


@pytest.mark.parametrize("end", ["discharged", "timed out"])
def test_a_coordinator_link_is_idle_when_its_transaction_was(end: str) -> None:
    harness, link = BrokerHarness(), FakeLink()
    engine_link: Any = link
    coordinator = CoordinatorLink(engine_link, Transactions(harness.namespace), harness.namespace)
    declare: Any = FakeDelivery(Declare())
    coordinator.on_deliveries([declare])
    assert isinstance(link.states[0], Declared)
    assert coordinator.is_busy
    if end == "timed out":
        harness.advance(MAX_TRANSACTION_S + 1)
    else:
        discharge: Any = FakeDelivery(Discharge(txn_id=link.states[0].txn_id, fail=True))
        coordinator.on_deliveries([discharge])
    assert not coordinator.is_busy
