"""A transaction on a partitioned queue is bound to one fragment, and committed as a whole or not at all."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.broker.entities.transaction import Transaction
from twinbus.broker.ports.settlement import Disposition
from twinbus.model.errors import InvalidOperation, StoreUnavailable, TransactionRolledBack
from twinbus.model.queue import QueueDescription


class OpenTransaction:
    """A transaction on the queue of a harness."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.transaction = Transaction(harness.namespace.intake)

    def send(self, payload: bytes) -> None:
        self.transaction.send_to(self.harness.queue, payload, 0)

    def commit(self) -> Results:
        results = Results()
        self.transaction.commit(results)
        self.harness.run_until_idle()
        return results


def test_r116_messages_of_one_key_become_visible_together_at_the_commit() -> None:
    harness = BrokerHarness(PARTITIONED)
    open_transaction = OpenTransaction(harness)
    open_transaction.send(message(b"1", key=key_for_fragment(4)))
    open_transaction.send(message(b"2", key=key_for_fragment(4)))
    harness.run_until_idle()
    assert sum(harness.counts_by_fragment()) == 0
    assert open_transaction.commit() == [None]
    assert harness.counts_by_fragment()[4] == 2


def test_a_rollback_discards_sends_and_settlements() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(message(b"held", key=key_for_fragment(4)))
    consumer = harness.consumer(1)
    open_transaction = OpenTransaction(harness)
    open_transaction.send(message(b"1", key=key_for_fragment(4)))
    main = harness.main_fragments[4]
    numbers = main.lock_numbers([consumer.deliveries[0][1]])
    assert open_transaction.transaction.settle(harness.queue.parts[4], main, numbers, Disposition.COMPLETE) == []
    open_transaction.transaction.roll_back()
    harness.run_until_idle()
    assert harness.counts_by_fragment()[4] == 1
    assert main.settlement.complete(numbers, Results()) == []


def test_r115_a_message_without_a_key_is_refused_and_fails_the_transaction() -> None:
    harness = BrokerHarness(PARTITIONED)
    open_transaction = OpenTransaction(harness)
    open_transaction.send(message(key=key_for_fragment(1)))
    with pytest.raises(InvalidOperation, match="session id or a partition key"):
        open_transaction.send(message())
    (error,) = open_transaction.commit()
    assert isinstance(error, TransactionRolledBack | InvalidOperation)
    assert sum(harness.counts_by_fragment()) == 0


def test_r116_another_key_is_refused_even_in_the_same_fragment() -> None:
    harness = BrokerHarness(PARTITIONED)
    open_transaction = OpenTransaction(harness)
    open_transaction.send(message(key=key_for_fragment(1)))
    with pytest.raises(InvalidOperation, match="same session id or partition key"):
        open_transaction.send(message(key=key_for_fragment(1, salt=1)))
    assert sum(harness.counts_by_fragment()) == 0


def test_q26_a_message_id_is_a_key_only_with_duplicate_detection() -> None:
    harness = BrokerHarness(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
    open_transaction = OpenTransaction(harness)
    open_transaction.send(message(message_id="one"))
    with pytest.raises(InvalidOperation):
        open_transaction.send(message(message_id="two"))


def test_a_settlement_in_another_fragment_than_the_sends_is_refused() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(message(b"held", key=key_for_fragment(4)))
    consumer = harness.consumer(1)
    open_transaction = OpenTransaction(harness)
    open_transaction.send(message(key=key_for_fragment(5)))
    main = harness.main_fragments[4]
    with pytest.raises(InvalidOperation, match="another fragment"):
        open_transaction.transaction.settle(
            harness.queue.parts[4], main, main.lock_numbers([consumer.deliveries[0][1]]), Disposition.COMPLETE
        )
    open_transaction.commit()
    assert harness.counts_by_fragment()[4] == 1
    assert harness.counts_by_fragment()[5] == 0


def test_a_store_failure_during_the_commit_leaves_nothing_of_the_transaction() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(message(b"held", key=key_for_fragment(4)))
    consumer = harness.consumer(1)
    open_transaction = OpenTransaction(harness)
    open_transaction.send(message(b"1", key=key_for_fragment(4)))
    main = harness.main_fragments[4]
    open_transaction.transaction.settle(
        harness.queue.parts[4], main, main.lock_numbers([consumer.deliveries[0][1]]), Disposition.COMPLETE
    )
    harness.fail_next_sync(0)
    (error,) = open_transaction.commit()
    assert isinstance(error, StoreUnavailable)
    consumer.leave()
    harness.recover()
    assert harness.consumer(10).bodies == [b"held"]
