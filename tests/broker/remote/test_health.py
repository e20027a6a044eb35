"""Other processes know which stores of one work, whenever they came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.rig import PARTITIONED, Rig
from twinbus.server.peers.peers import HealthReport

if TYPE_CHECKING:
    from twinbus.broker.ports.peer_protocol import Health


class Other:
    """Another process."""

    def __init__(self) -> None:
        self.heard: list[dict[int, tuple[str | None, str | None]]] = []

    def hear(self, _number: int, health: Health) -> None:
        self.heard.append(health.stores)


WELL = {1: (None, None), 3: (None, None)}


def test_one_that_comes_is_told_and_then_of_what_changes_only() -> None:
    rig, other = Rig(PARTITIONED, processes=2), Other()
    report = HealthReport(rig.far.namespace)
    report.greet(other.hear)
    report.look()
    assert other.heard == [WELL]
    rig.break_down(1)
    report.look()
    report.look()
    assert [health[1][0] is None for health in other.heard] == [True, False]


def test_one_that_came_while_a_store_did_not_work_hears_that_it_does_also_if_nobody_looked_meanwhile() -> None:
    rig, early, late = Rig(PARTITIONED, processes=2), Other(), Other()
    report = HealthReport(rig.far.namespace)
    report.greet(early.hear)
    rig.break_down(1)
    report.greet(late.hear)
    rig.recover()
    report.look()
    assert early.heard == [WELL]
    assert late.heard[-1] == WELL


def test_one_that_has_gone_is_told_nothing() -> None:
    rig, other = Rig(PARTITIONED, processes=2), Other()
    report = HealthReport(rig.far.namespace)
    report.greet(other.hear)
    report.forget(other.hear)
    rig.break_down(1)
    report.look()
    assert other.heard == [WELL]
