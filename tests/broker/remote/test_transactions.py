"""A transaction on a part that another process has is done there, all of it or nothing."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.messages import key_for, message
from tests.broker.rig import PARTITIONED, Rig
from twinbus.broker.ports.settlement import How
from twinbus.broker.transaction import Transaction
from twinbus.model.errors import InvalidOperation, StoreUnavailable, TransactionRolledBack

FRAGMENT = 1
KEY = key_for(FRAGMENT)


class Work:
    """A transaction that completes one message of a fragment, and sends another to it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.store_messages(message(b"old", key=KEY))
        self.receiver = rig.consumer(1)
        self.part = rig.queue.parts[FRAGMENT]
        self.transaction = Transaction(rig.near.namespace.intake)
        self.told: list[bool] = []
        (self.number,) = self.part.main.lock_numbers([self.receiver.deliveries[0][1]])
        self.transaction.send(self.part, message(b"new", key=KEY), 0)
        self.transaction.settle(self.part, self.part.main, [self.number], How.COMPLETE, None, self.told.append)
        rig.settle()

    def commit(self) -> Answers:
        answers = Answers()
        self.transaction.commit(answers)
        self.rig.settle()
        return answers


def test_all_of_it_is_done_by_a_commit() -> None:
    rig = Rig(PARTITIONED, processes=2)
    work = Work(rig)
    assert rig.counts_by_fragment()[FRAGMENT] == 1
    assert work.commit() == [None]
    assert work.told == [True]
    work.receiver.grant(10)
    rig.settle()
    assert work.receiver.bodies == [b"old", b"new"]
    assert rig.counts_by_fragment()[FRAGMENT] == 1


def test_nothing_of_it_is_done_by_a_roll_back() -> None:
    rig = Rig(PARTITIONED, processes=2)
    work = Work(rig)
    work.transaction.roll_back()
    rig.settle()
    assert work.told == [False]
    answers = Answers()
    work.part.main.settlement.complete([work.number], answers)
    rig.settle()
    assert answers == [None]
    assert rig.counts_by_fragment()[FRAGMENT] == 0


def test_a_lost_lock_fails_the_commit_and_nothing_is_sent() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.store_messages(message(b"old", key=KEY))
    receiver, part = rig.consumer(1), rig.queue.parts[FRAGMENT]
    (number,) = part.main.lock_numbers([receiver.deliveries[0][1]])
    part.main.settlement.complete([number], Answers())
    rig.settle()
    transaction, answers = Transaction(rig.near.namespace.intake), Answers()
    transaction.send(part, message(b"new", key=KEY), 0)
    transaction.settle(part, part.main, [number], How.COMPLETE)
    transaction.commit(answers)
    rig.settle()
    assert isinstance(answers[0], TransactionRolledBack)
    assert rig.counts_by_fragment()[FRAGMENT] == 0


def test_a_part_of_another_process_and_one_of_this_do_not_go_together() -> None:
    rig = Rig(PARTITIONED, processes=2)
    work = Work(rig)
    with pytest.raises(InvalidOperation):
        work.transaction.send(rig.queue.parts[FRAGMENT + 1], message(key=key_for(FRAGMENT + 1)), 0)
    assert isinstance(work.commit()[0], TransactionRolledBack)
    assert rig.counts_by_fragment()[FRAGMENT] == 1


def test_an_owner_that_goes_before_the_commit_rolls_it_back() -> None:
    rig = Rig(PARTITIONED, processes=2)
    work = Work(rig)
    rig.disconnect()
    assert isinstance(work.commit()[0], StoreUnavailable)
    assert work.told == [False]
    rig.connect()
    rig.wait(61.0)
    assert rig.consumer(10).bodies == [b"old"]


def test_an_owner_that_was_away_before_the_commit_does_nothing_of_it() -> None:
    rig = Rig(PARTITIONED, processes=2)
    work = Work(rig)
    rig.disconnect()
    rig.connect()
    assert isinstance(work.commit()[0], StoreUnavailable)
    assert work.told == [False]
    rig.wait(61.0)
    assert rig.consumer(10).bodies == [b"old"]
