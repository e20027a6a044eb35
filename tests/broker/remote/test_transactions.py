"""A transaction on a part that another process has is done there, all of it or nothing."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.broker.entities.transaction import Transaction
from twinbus.broker.ports.settlement import Disposition
from twinbus.model.errors import InvalidOperation, StoreUnavailable, TransactionRolledBack

FRAGMENT = 1
KEY = key_for_fragment(FRAGMENT)


class RemoteWork:
    """A transaction that completes one message of a fragment, and sends another to it."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        harness.store_messages(message(b"old", key=KEY))
        self.receiver = harness.consumer(1)
        self.part = harness.queue.parts[FRAGMENT]
        self.transaction = Transaction(harness.first_process.namespace.intake)
        self.results: list[bool] = []
        (self.number,) = self.part.main.lock_numbers([self.receiver.deliveries[0][1]])
        self.transaction.send(self.part, message(b"new", key=KEY), 0)
        self.transaction.settle(
            self.part, self.part.main, [self.number], Disposition.COMPLETE, None, self.results.append
        )
        harness.run_until_idle()

    def commit(self) -> Results:
        answers = Results()
        self.transaction.commit(answers)
        self.harness.run_until_idle()
        return answers


def test_all_of_it_is_done_by_a_commit() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    work = RemoteWork(rig)
    assert rig.counts_by_fragment()[FRAGMENT] == 1
    assert work.commit() == [None]
    assert work.results == [True]
    work.receiver.grant(10)
    rig.run_until_idle()
    assert work.receiver.bodies == [b"old", b"new"]
    assert rig.counts_by_fragment()[FRAGMENT] == 1


def test_nothing_of_it_is_done_by_a_roll_back() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    work = RemoteWork(rig)
    work.transaction.roll_back()
    rig.run_until_idle()
    assert work.results == [False]
    answers = Results()
    work.part.main.settlement.complete([work.number], answers)
    rig.run_until_idle()
    assert answers == [None]
    assert rig.counts_by_fragment()[FRAGMENT] == 0


def test_a_lost_lock_fails_the_commit_and_nothing_is_sent() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"old", key=KEY))
    receiver, part = rig.consumer(1), rig.queue.parts[FRAGMENT]
    (number,) = part.main.lock_numbers([receiver.deliveries[0][1]])
    part.main.settlement.complete([number], Results())
    rig.run_until_idle()
    transaction, answers = Transaction(rig.first_process.namespace.intake), Results()
    transaction.send(part, message(b"new", key=KEY), 0)
    transaction.settle(part, part.main, [number], Disposition.COMPLETE)
    transaction.commit(answers)
    rig.run_until_idle()
    assert isinstance(answers[0], TransactionRolledBack)
    assert rig.counts_by_fragment()[FRAGMENT] == 0


def test_a_part_of_another_process_and_one_of_this_do_not_go_together() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    work = RemoteWork(rig)
    with pytest.raises(InvalidOperation):
        work.transaction.send(rig.queue.parts[FRAGMENT + 1], message(key=key_for_fragment(FRAGMENT + 1)), 0)
    assert isinstance(work.commit()[0], TransactionRolledBack)
    assert rig.counts_by_fragment()[FRAGMENT] == 1


def test_an_owner_that_goes_before_the_commit_rolls_it_back() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    work = RemoteWork(rig)
    rig.disconnect()
    assert isinstance(work.commit()[0], StoreUnavailable)
    assert work.results == [False]
    rig.connect()
    rig.advance(61.0)
    assert rig.consumer(10).bodies == [b"old"]


def test_an_owner_that_was_away_before_the_commit_does_nothing_of_it() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    work = RemoteWork(rig)
    rig.disconnect()
    rig.connect()
    assert isinstance(work.commit()[0], StoreUnavailable)
    assert work.results == [False]
    rig.advance(61.0)
    assert rig.consumer(10).bodies == [b"old"]
