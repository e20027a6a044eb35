"""A transaction is bound to one fragment of a partitioned queue: all in it is done there together, or not at all."""

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
    """One transaction on the queue of a rig."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.transaction = Transaction(harness.namespace.intake)

    def send(self, payload: bytes) -> None:
        self.transaction.send_to(self.harness.queue, payload, 0)

    def commit(self) -> Results:
        answers = Results()
        self.transaction.commit(answers)
        self.harness.run_until_idle()
        return answers


def test_r116_messages_of_one_key_are_there_together_after_a_commit_and_not_before() -> None:
    rig = BrokerHarness(PARTITIONED)
    work = OpenTransaction(rig)
    work.send(message(b"1", key=key_for_fragment(4)))
    work.send(message(b"2", key=key_for_fragment(4)))
    rig.run_until_idle()
    assert sum(rig.counts_by_fragment()) == 0
    assert work.commit() == [None]
    assert rig.counts_by_fragment()[4] == 2


def test_what_is_rolled_back_never_was() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(message(b"held", key=key_for_fragment(4)))
    consumer = rig.consumer(1)
    work = OpenTransaction(rig)
    work.send(message(b"1", key=key_for_fragment(4)))
    main = rig.main_fragments[4]
    numbers = main.lock_numbers([consumer.deliveries[0][1]])
    assert work.transaction.settle(rig.queue.parts[4], main, numbers, Disposition.COMPLETE) == []
    work.transaction.roll_back()
    rig.run_until_idle()
    assert rig.counts_by_fragment()[4] == 1
    assert main.settlement.complete(numbers, Results()) == []


def test_r115_without_a_key_it_is_refused_and_fails_the_transaction() -> None:
    rig = BrokerHarness(PARTITIONED)
    work = OpenTransaction(rig)
    work.send(message(key=key_for_fragment(1)))
    with pytest.raises(InvalidOperation, match="session id or a partition key"):
        work.send(message())
    (error,) = work.commit()
    assert isinstance(error, TransactionRolledBack | InvalidOperation)
    assert sum(rig.counts_by_fragment()) == 0


def test_r116_another_key_is_refused_also_if_its_fragment_is_the_same() -> None:
    rig = BrokerHarness(PARTITIONED)
    work = OpenTransaction(rig)
    work.send(message(key=key_for_fragment(1)))
    with pytest.raises(InvalidOperation, match="same session id or partition key"):
        work.send(message(key=key_for_fragment(1, salt=1)))
    assert sum(rig.counts_by_fragment()) == 0


def test_q26_a_message_id_is_a_key_only_where_duplicates_are_detected() -> None:
    rig = BrokerHarness(QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
    work = OpenTransaction(rig)
    work.send(message(message_id="one"))
    with pytest.raises(InvalidOperation):
        work.send(message(message_id="two"))


def test_a_settlement_in_another_fragment_than_that_of_what_is_sent_is_refused() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(message(b"held", key=key_for_fragment(4)))
    consumer = rig.consumer(1)
    work = OpenTransaction(rig)
    work.send(message(key=key_for_fragment(5)))
    main = rig.main_fragments[4]
    with pytest.raises(InvalidOperation, match="another fragment"):
        work.transaction.settle(
            rig.queue.parts[4], main, main.lock_numbers([consumer.deliveries[0][1]]), Disposition.COMPLETE
        )
    work.commit()
    assert rig.counts_by_fragment()[4] == 1
    assert rig.counts_by_fragment()[5] == 0


def test_where_the_store_fails_with_it_nothing_of_it_is_there() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(message(b"held", key=key_for_fragment(4)))
    consumer = rig.consumer(1)
    work = OpenTransaction(rig)
    work.send(message(b"1", key=key_for_fragment(4)))
    main = rig.main_fragments[4]
    work.transaction.settle(
        rig.queue.parts[4], main, main.lock_numbers([consumer.deliveries[0][1]]), Disposition.COMPLETE
    )
    rig.fail_next_sync(0)
    (error,) = work.commit()
    assert isinstance(error, StoreUnavailable)
    consumer.leave()
    rig.recover()
    assert rig.consumer(10).bodies == [b"held"]
