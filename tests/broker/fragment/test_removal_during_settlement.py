"""What is removed was there when it was looked at: what comes between such messages meanwhile stays."""

from __future__ import annotations

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.broker.ports.fragment import RemovalCriteria, RemovalResult


def test_a_message_deferred_during_a_purge_of_deferred_ones_is_not_lost() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2", b"3")
    first, second, third = rig.consumer(3).lock_numbers()
    rig.main_fragment.settlement.defer([first, third], Results())
    rig.run_until_idle()
    outcomes: list[object] = []
    answers = Results()
    rig.main_fragment.settlement.defer([second], answers)
    rig.main_fragment.removal.remove_deferred(RemovalCriteria(), outcomes.append)
    rig.run_until_idle()
    (outcome,) = outcomes
    assert isinstance(outcome, RemovalResult)
    assert answers == [None]
    assert outcome.removed_count == 2
    assert rig.main_fragment.message_table.committed.deferred_count == 1
    found: list[object] = []
    rig.main_fragment.deferral.receive([2], found.append, receive_and_delete=True)
    rig.run_until_idle()
    assert isinstance(found[0], list)
