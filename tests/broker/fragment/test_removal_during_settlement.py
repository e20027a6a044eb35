"""A purge removes only messages its scan found; messages deferred meanwhile stay."""

from __future__ import annotations

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.broker.ports.fragment import RemovalCriteria, RemovalResult


def test_a_message_deferred_during_a_purge_of_deferred_messages_is_not_lost() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2", b"3")
    first, second, third = harness.consumer(3).lock_numbers()
    harness.main_fragment.settlement.defer([first, third], Results())
    harness.run_until_idle()
    outcomes: list[object] = []
    results = Results()
    harness.main_fragment.settlement.defer([second], results)
    harness.main_fragment.removal.remove_deferred(RemovalCriteria(), outcomes.append)
    harness.run_until_idle()
    (outcome,) = outcomes
    assert isinstance(outcome, RemovalResult)
    assert results == [None]
    assert outcome.removed_count == 2
    assert harness.main_fragment.message_table.committed.deferred_count == 1
    replies: list[object] = []
    harness.main_fragment.deferral.receive([2], replies.append, receive_and_delete=True)
    harness.run_until_idle()
    assert isinstance(replies[0], list)
