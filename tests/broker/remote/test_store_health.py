"""Other processes know which stores of one work, whenever they came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.harness import PARTITIONED, BrokerHarness
from twinbus.server.cluster.peer_network import HealthPublisher

if TYPE_CHECKING:
    from twinbus.broker.ports.peer_protocol import StoreHealth


class FakeSubscriber:
    """Another process."""

    def __init__(self) -> None:
        self.received: list[dict[int, tuple[str | None, str | None]]] = []

    def on_health(self, _number: int, health: StoreHealth) -> None:
        self.received.append(health.stores)


WELL = {1: (None, None), 3: (None, None)}


def test_one_that_comes_is_told_and_then_of_what_changes_only() -> None:
    rig, other = BrokerHarness(PARTITIONED, processes=2), FakeSubscriber()
    report = HealthPublisher(rig.last_process.namespace)
    report.add_peer(other.on_health)
    report.publish_changes()
    assert other.received == [WELL]
    rig.fail_stores(1)
    report.publish_changes()
    report.publish_changes()
    assert [health[1][0] is None for health in other.received] == [True, False]


def test_one_that_came_while_a_store_did_not_work_hears_that_it_does_also_if_nobody_looked_meanwhile() -> None:
    rig, early, late = BrokerHarness(PARTITIONED, processes=2), FakeSubscriber(), FakeSubscriber()
    report = HealthPublisher(rig.last_process.namespace)
    report.add_peer(early.on_health)
    rig.fail_stores(1)
    report.add_peer(late.on_health)
    rig.recover()
    report.publish_changes()
    assert early.received == [WELL]
    assert late.received[-1] == WELL


def test_one_that_has_gone_is_told_nothing() -> None:
    rig, other = BrokerHarness(PARTITIONED, processes=2), FakeSubscriber()
    report = HealthPublisher(rig.last_process.namespace)
    report.add_peer(other.on_health)
    report.remove_peer(other.on_health)
    rig.fail_stores(1)
    report.publish_changes()
    assert other.received == [WELL]
