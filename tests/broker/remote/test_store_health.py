"""Processes are notified which stores of another process are available, whenever they connect."""

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


HEALTHY = {1: (None, None), 3: (None, None)}


def test_a_new_peer_gets_the_health_and_then_changes_only() -> None:
    harness, other = BrokerHarness(PARTITIONED, processes=2), FakeSubscriber()
    publisher = HealthPublisher(harness.last_process.namespace)
    publisher.add_peer(other.on_health)
    publisher.publish_changes()
    assert other.received == [HEALTHY]
    harness.fail_stores(1)
    publisher.publish_changes()
    publisher.publish_changes()
    assert [health[1][0] is None for health in other.received] == [True, False]


def test_a_peer_that_connected_during_a_failure_is_notified_of_the_recovery() -> None:
    harness, early, late = BrokerHarness(PARTITIONED, processes=2), FakeSubscriber(), FakeSubscriber()
    publisher = HealthPublisher(harness.last_process.namespace)
    publisher.add_peer(early.on_health)
    harness.fail_stores(1)
    publisher.add_peer(late.on_health)
    harness.recover()
    publisher.publish_changes()
    assert early.received == [HEALTHY]
    assert late.received[-1] == HEALTHY


def test_a_removed_peer_is_not_notified() -> None:
    harness, other = BrokerHarness(PARTITIONED, processes=2), FakeSubscriber()
    publisher = HealthPublisher(harness.last_process.namespace)
    publisher.add_peer(other.on_health)
    publisher.remove_peer(other.on_health)
    harness.fail_stores(1)
    publisher.publish_changes()
    assert other.received == [HEALTHY]
