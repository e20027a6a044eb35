"""Sends and settlements of a transaction on one entity are committed as a whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from tests.broker.topic_harness import LARGE, TopicHarness
from tests.support.parts import local_part
from twinbus.broker.entities.transaction import MAX_OPERATIONS, Transaction
from twinbus.broker.ports.settlement import Disposition
from twinbus.model.errors import (
    EntityDeleted,
    InvalidOperation,
    MalformedMessage,
    QuotaExceeded,
    SessionLockLost,
    StoreUnavailable,
    TransactionRolledBack,
    TransactionTooLarge,
)
from twinbus.model.queue import QueueDescription


def begin(harness: BrokerHarness) -> Transaction:
    return Transaction(harness.namespace.intake)


def commit(harness: BrokerHarness, transaction: Transaction) -> Results:
    results = Results()
    transaction.commit(results)
    harness.run_until_idle()
    return results


def test_messages_become_visible_at_the_commit_and_not_before() -> None:
    harness = BrokerHarness()
    consumer = harness.consumer(10)
    transaction = begin(harness)
    transaction.send(harness.queue.parts[0], message(b"1"), 0)
    harness.send_stored(b"between")
    transaction.send(harness.queue.parts[0], message(b"2"), 0)
    harness.run_until_idle()
    assert consumer.bodies == [b"between"]
    assert commit(harness, transaction) == [None]
    assert consumer.bodies == [b"between", b"1", b"2"]


def test_a_rollback_discards_sends_and_settlements() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"held")
    consumer = harness.consumer(1)
    transaction = begin(harness)
    transaction.send(harness.queue.parts[0], message(b"1"), 0)
    assert (
        transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
        == []
    )
    transaction.roll_back()
    harness.run_until_idle()
    assert harness.counts() == (1, 0, 0, 0)
    assert harness.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == []  # still locked
    harness.run_until_idle()
    assert harness.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("how", "counts"),
    [
        (Disposition.COMPLETE, (1, 0, 0, 0)),
        (Disposition.ABANDON, (2, 0, 0, 0)),
        (Disposition.DEFER, (1, 1, 0, 0)),
        (Disposition.DEAD_LETTER, (1, 0, 0, 1)),
        (Disposition.RELEASE, (2, 0, 0, 0)),
    ],
)
def test_every_disposition_is_applied_at_the_commit(how: Disposition, counts: tuple[int, ...]) -> None:
    harness = BrokerHarness()
    harness.send_stored(b"old")
    consumer = harness.consumer(1)
    transaction = begin(harness)
    assert (
        transaction.settle(
            harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), how, {"why": "because"}
        )
        == []
    )
    transaction.send(harness.queue.parts[0], message(b"new"), 0)
    assert harness.counts() == (1, 0, 0, 0)
    assert commit(harness, transaction) == [None]
    assert harness.counts() == counts
    assert harness.main_fragment.in_flight.locks == {}


def test_a_lock_does_not_expire_in_a_transaction_but_after_its_rollback() -> None:
    harness = BrokerHarness(QueueDescription(lock_duration_ms=10_000))
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    transaction = begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    harness.advance(60)
    assert len(consumer.deliveries) == 1
    transaction.roll_back()
    consumer.grant(1)
    harness.advance(0.1)
    assert [received.header.delivery_count for received in consumer.messages if received.header] == [0, 1]


def test_a_message_settled_in_a_transaction_cannot_be_settled_otherwise() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    transaction = begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    assert harness.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == consumer.lock_numbers()
    assert (
        begin(harness).settle(
            harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.ABANDON
        )
        == consumer.lock_numbers()
    )
    assert commit(harness, transaction) == [None]


def test_a_transaction_is_bound_to_its_first_entity() -> None:
    harness = TopicHarness()
    other = harness.add_queue(8, "other", QueueDescription())
    transaction = begin(harness)
    transaction.send(harness.queue.parts[0], message(b"1"), 0)
    with pytest.raises(InvalidOperation, match="bound to 'orders'"):
        transaction.send(other.parts[0], message(b"2"), 0)
    (result,) = commit(harness, transaction)
    assert isinstance(result, TransactionRolledBack)
    assert harness.counts() == (0, 0, 0, 0)


def test_dead_letters_can_be_settled_in_a_transaction_on_their_entity() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    harness.main_fragment.settlement.dead_letter(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    dead = harness.consumer(1, of=harness.dead_letters)
    transaction = begin(harness)
    transaction.settle(harness.queue.parts[0], harness.dead_letters, dead.lock_numbers(), Disposition.COMPLETE)
    transaction.send(harness.queue.parts[0], message(b"again"), 0)
    assert commit(harness, transaction) == [None]
    assert harness.counts() == (1, 0, 0, 0)


def test_a_malformed_message_fails_the_transaction() -> None:
    harness = BrokerHarness()
    transaction = begin(harness)
    transaction.send(harness.queue.parts[0], message(b"1"), 0)
    with pytest.raises(MalformedMessage):
        transaction.send(harness.queue.parts[0], b"\xff\xff", 0)
    (result,) = commit(harness, transaction)
    assert isinstance(result, TransactionRolledBack)
    assert harness.counts() == (0, 0, 0, 0)


def test_a_queue_that_is_full_at_the_commit_refuses_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness()
    harness.send_stored(b"held")
    consumer = harness.consumer(1)
    transaction = begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    transaction.send(harness.queue.parts[0], message(b"x" * 500), 0)
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 0.1)
    (result,) = commit(harness, transaction)
    assert isinstance(result, QuotaExceeded)
    assert harness.counts() == (1, 0, 0, 0)
    assert harness.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == []


def test_a_transaction_has_at_most_a_hundred_messages() -> None:
    harness = BrokerHarness()
    transaction = begin(harness)
    for _ in range(MAX_OPERATIONS):
        transaction.send(harness.queue.parts[0], message(b"1"), 0)
    with pytest.raises(TransactionTooLarge, match="100"):
        transaction.send(harness.queue.parts[0], message(b"1"), 0)
    assert isinstance(commit(harness, transaction)[0], TransactionRolledBack)


def test_a_lost_session_fails_the_commit() -> None:
    harness = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=5_000))
    harness.send_stored(b"1", session="s")
    consumer = harness.accept_session(b"s", 1)
    transaction = begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    harness.advance(6)
    (result,) = commit(harness, transaction)
    assert isinstance(result, SessionLockLost)
    assert harness.main_fragment.active_count == 1


def test_a_store_failure_before_the_commit_fails_it() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    transaction = begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    harness.restart()
    (result,) = commit(harness, transaction)
    assert isinstance(result, StoreUnavailable)
    assert harness.main_fragment.active_count == 1


@pytest.mark.parametrize("how", list(Disposition))
def test_a_deleted_entity_fails_the_commit(how: Disposition) -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a")
    harness.publish_stored(b"1")
    consumer, transaction = harness.consumer(1, of=local_part(subscription).main), begin(harness)
    transaction.settle(subscription.parts[0], local_part(subscription).main, consumer.lock_numbers(), how)
    harness.namespace.remove(subscription.path)
    harness.run_until_idle()
    (result,) = commit(harness, transaction)
    assert isinstance(result, EntityDeleted)
    assert not result.is_retriable


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_failed_commit_is_on_disk_as_a_whole_or_not_at_all(is_kept: bool) -> None:  # noqa: FBT001
    harness = BrokerHarness()
    harness.send_stored(b"old")
    consumer = harness.consumer(1)
    transaction = begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.DEAD_LETTER)
    transaction.send(harness.queue.parts[0], message(b"new"), 0)
    harness.fail_next_sync(keeps_changes=is_kept)
    (result,) = commit(harness, transaction)
    assert isinstance(result, StoreUnavailable)
    harness.reopen()
    harness.run_until_idle()
    assert harness.counts() == ((1, 0, 0, 1) if is_kept else (1, 0, 0, 0))
    assert harness.consumer(5).bodies[-1] == (b"new" if is_kept else b"old")


def test_duplicates_are_dropped_and_the_rest_is_committed() -> None:
    harness = BrokerHarness(QueueDescription(requires_duplicate_detection=True))
    harness.send_stored(b"1", message_id="same")
    consumer = harness.consumer(1)
    transaction = begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    for message_id in ("same", "other"):
        transaction.send(harness.queue.parts[0], message(b"2", message_id=message_id), 0)
    assert commit(harness, transaction) == [None]
    assert harness.counts() == (1, 0, 0, 0)


def test_a_topic_publishes_committed_messages() -> None:
    harness = TopicHarness()
    subscriptions = [harness.subscribe("a"), harness.subscribe("b")]
    transaction = begin(harness)
    for number in range(3):
        transaction.send(harness.topic.parts[0], message(LARGE + b"%d" % number), 0)
    assert [local_part(subscription).main.active_count for subscription in subscriptions] == [0, 0]
    assert commit(harness, transaction) == [None]
    assert harness.complete(subscriptions[0], 3) == [LARGE + b"%d" % number for number in range(3)]


def test_an_empty_transaction_is_committed_at_once() -> None:
    harness = BrokerHarness()
    assert commit(harness, begin(harness)) == [None]


def test_a_transaction_cannot_be_used_after_its_end() -> None:
    harness = BrokerHarness()
    transaction = begin(harness)
    transaction.roll_back()
    with pytest.raises(TransactionRolledBack):
        transaction.send(harness.queue.parts[0], message(b"1"), 0)
    assert isinstance(commit(harness, transaction)[0], TransactionRolledBack)


def test_the_enqueued_time_is_that_of_the_commit() -> None:
    harness = BrokerHarness()
    transaction = begin(harness)
    transaction.send(harness.queue.parts[0], message(b"1", ttl_ms=10_000), 0)
    harness.advance(30)
    commit(harness, transaction)
    annotations: Any = harness.consumer(1).messages[0].message_annotations
    assert annotations["x-opt-enqueued-time"] == harness.clock.wall_ms()


def test_a_message_is_received_and_another_sent_via_in_one_transaction() -> None:
    harness = BrokerHarness()
    target = harness.add_queue(8, "target", QueueDescription())
    harness.send_stored(b"work")
    consumer = harness.consumer(1)
    for commits in (False, True):
        transaction = begin(harness)
        transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
        transaction.send(harness.queue.parts[0], message(b"result"), 0, "target")
        if commits:
            assert commit(harness, transaction) == [None]
        else:
            transaction.roll_back()
            harness.run_until_idle()
            assert (harness.main_fragment.active_count, local_part(target).main.active_count) == (1, 0)
    assert (harness.main_fragment.active_count, local_part(target).main.active_count) == (0, 1)
    assert harness.consumer(1, of=local_part(target).main).bodies == [b"result"]


def test_a_settlement_refused_by_an_unavailable_store_fails_the_transaction() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    consumer, transaction = harness.consumer(1), begin(harness)
    transaction.send(harness.queue.parts[0], message(b"2"), 0)
    harness.commit_log.unavailable_reason = "its disk is silent"
    with pytest.raises(StoreUnavailable):
        transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    harness.commit_log.unavailable_reason = None
    assert isinstance(commit(harness, transaction)[0], TransactionRolledBack)
    assert harness.main_fragment.active_count == 1


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_messages_of_a_session_that_its_receiver_lost_are_unlocked(*, expires: bool, commits: bool) -> None:
    harness = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=5_000))
    harness.send_stored(b"1", session="s")
    consumer, transaction = harness.accept_session(b"s", 1), begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    if expires:
        harness.advance(6)
    else:
        consumer.leave()
    if commits:
        assert isinstance(commit(harness, transaction)[0], SessionLockLost)
    else:
        transaction.roll_back()
        harness.run_until_idle()
    assert harness.accept_session(None, 1).bodies == [b"1"]


def test_a_session_accepted_by_another_receiver_fails_the_commit() -> None:
    harness = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=5_000))
    harness.send_stored(b"1", session="s")
    consumer, transaction = harness.accept_session(b"s", 1), begin(harness)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    consumer.leave()
    other = harness.accept_session(b"s", 5)
    assert other.bodies == []
    assert isinstance(commit(harness, transaction)[0], SessionLockLost)
    assert other.bodies == [b"1"]
