"""What is removed was there when it was looked at: what comes between such messages meanwhile stays."""

from __future__ import annotations

from tests.broker.consumers import Answers
from tests.broker.rig import Rig
from twinbus.broker.ports.removal import Outcome, Wanted


def test_a_message_deferred_during_a_purge_of_deferred_ones_is_not_lost() -> None:
    rig = Rig()
    rig.stored(b"1", b"2", b"3")
    first, second, third = rig.consumer(3).numbers()
    rig.main.settlement.defer([first, third], Answers())
    rig.settle()
    outcomes: list[object] = []
    answers = Answers()
    rig.main.settlement.defer([second], answers)
    rig.main.removal.remove_deferred(Wanted(), outcomes.append)
    rig.settle()
    (outcome,) = outcomes
    assert isinstance(outcome, Outcome)
    assert answers == [None]
    assert outcome.removed == 2
    assert rig.main.holdings.shown.deferred_count == 1
    found: list[object] = []
    rig.main.deferral.receive([2], found.append, deletes=True)
    rig.settle()
    assert isinstance(found[0], list)
