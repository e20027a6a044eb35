"""A transaction on a fragment of another process is committed there as a whole or not at all."""

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


class RemoteTransaction:
    """A transaction that completes one message of a fragment and sends another to it."""

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
        results = Results()
        self.transaction.commit(results)
        self.harness.run_until_idle()
        return results


def test_a_commit_applies_all_operations() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    remote = RemoteTransaction(harness)
    assert harness.counts_by_fragment()[FRAGMENT] == 1
    assert remote.commit() == [None]
    assert remote.results == [True]
    remote.receiver.grant(10)
    harness.run_until_idle()
    assert remote.receiver.bodies == [b"old", b"new"]
    assert harness.counts_by_fragment()[FRAGMENT] == 1


def test_a_rollback_applies_nothing() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    remote = RemoteTransaction(harness)
    remote.transaction.roll_back()
    harness.run_until_idle()
    assert remote.results == [False]
    results = Results()
    remote.part.main.settlement.complete([remote.number], results)
    harness.run_until_idle()
    assert results == [None]
    assert harness.counts_by_fragment()[FRAGMENT] == 0


def test_a_lost_lock_fails_the_commit_and_nothing_is_sent() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"old", key=KEY))
    receiver, part = harness.consumer(1), harness.queue.parts[FRAGMENT]
    (number,) = part.main.lock_numbers([receiver.deliveries[0][1]])
    part.main.settlement.complete([number], Results())
    harness.run_until_idle()
    transaction, results = Transaction(harness.first_process.namespace.intake), Results()
    transaction.send(part, message(b"new", key=KEY), 0)
    transaction.settle(part, part.main, [number], Disposition.COMPLETE)
    transaction.commit(results)
    harness.run_until_idle()
    assert isinstance(results[0], TransactionRolledBack)
    assert harness.counts_by_fragment()[FRAGMENT] == 0


def test_a_transaction_cannot_span_fragments_of_two_processes() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    remote = RemoteTransaction(harness)
    with pytest.raises(InvalidOperation):
        remote.transaction.send(harness.queue.parts[FRAGMENT + 1], message(key=key_for_fragment(FRAGMENT + 1)), 0)
    assert isinstance(remote.commit()[0], TransactionRolledBack)
    assert harness.counts_by_fragment()[FRAGMENT] == 1


def test_a_commit_fails_if_the_owner_is_disconnected() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    remote = RemoteTransaction(harness)
    harness.disconnect()
    assert isinstance(remote.commit()[0], StoreUnavailable)
    assert remote.results == [False]
    harness.connect()
    harness.advance(61.0)
    assert harness.consumer(10).bodies == [b"old"]


def test_a_commit_fails_if_the_owner_was_disconnected_before() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    remote = RemoteTransaction(harness)
    harness.disconnect()
    harness.connect()
    assert isinstance(remote.commit()[0], StoreUnavailable)
    assert remote.results == [False]
    harness.advance(61.0)
    assert harness.consumer(10).bodies == [b"old"]
