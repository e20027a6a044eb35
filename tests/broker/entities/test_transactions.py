"""Sends and settlements on one entity are done together, or not at all."""

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
    answers = Results()
    transaction.commit(answers)
    harness.run_until_idle()
    return answers


def test_what_is_sent_is_there_when_it_is_committed_and_not_before() -> None:
    rig = BrokerHarness()
    consumer = rig.consumer(10)
    transaction = begin(rig)
    transaction.send(rig.queue.parts[0], message(b"1"), 0)
    rig.send_stored(b"between")
    transaction.send(rig.queue.parts[0], message(b"2"), 0)
    rig.run_until_idle()
    assert consumer.bodies == [b"between"]
    assert commit(rig, transaction) == [None]
    assert consumer.bodies == [b"between", b"1", b"2"]


def test_what_is_rolled_back_never_was() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"held")
    consumer = rig.consumer(1)
    transaction = begin(rig)
    transaction.send(rig.queue.parts[0], message(b"1"), 0)
    assert (
        transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE) == []
    )
    transaction.roll_back()
    rig.run_until_idle()
    assert rig.counts() == (1, 0, 0, 0)
    assert rig.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == []  # it is locked as before
    rig.run_until_idle()
    assert rig.counts() == (0, 0, 0, 0)


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
def test_every_way_of_settling(how: Disposition, counts: tuple[int, ...]) -> None:
    rig = BrokerHarness()
    rig.send_stored(b"old")
    consumer = rig.consumer(1)
    transaction = begin(rig)
    assert (
        transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), how, {"why": "because"})
        == []
    )
    transaction.send(rig.queue.parts[0], message(b"new"), 0)
    assert rig.counts() == (1, 0, 0, 0)
    assert commit(rig, transaction) == [None]
    assert rig.counts() == counts
    assert rig.main_fragment.in_flight.locks == {}


def test_a_lock_does_not_expire_in_a_transaction_and_goes_on_when_it_is_rolled_back() -> None:
    rig = BrokerHarness(QueueDescription(lock_duration_ms=10_000))
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    transaction = begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    rig.advance(60)
    assert len(consumer.deliveries) == 1
    transaction.roll_back()
    consumer.grant(1)
    rig.advance(0.1)
    assert [found.header.delivery_count for found in consumer.messages if found.header] == [0, 1]


def test_nobody_else_settles_what_is_in_a_transaction() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    transaction = begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    assert rig.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == consumer.lock_numbers()
    assert (
        begin(rig).settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.ABANDON)
        == consumer.lock_numbers()
    )
    assert commit(rig, transaction) == [None]


def test_it_is_bound_to_the_entity_that_was_used_first() -> None:
    rig = TopicHarness()
    other = rig.add_queue(8, "other", QueueDescription())
    transaction = begin(rig)
    transaction.send(rig.queue.parts[0], message(b"1"), 0)
    with pytest.raises(InvalidOperation, match="bound to 'orders'"):
        transaction.send(other.parts[0], message(b"2"), 0)
    (answer,) = commit(rig, transaction)
    assert isinstance(answer, TransactionRolledBack)
    assert rig.counts() == (0, 0, 0, 0)


def test_dead_letters_of_the_entity_belong_to_it() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    rig.main_fragment.settlement.dead_letter(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    dead = rig.consumer(1, of=rig.dead_letters)
    transaction = begin(rig)
    transaction.settle(rig.queue.parts[0], rig.dead_letters, dead.lock_numbers(), Disposition.COMPLETE)
    transaction.send(rig.queue.parts[0], message(b"again"), 0)
    assert commit(rig, transaction) == [None]
    assert rig.counts() == (1, 0, 0, 0)


def test_a_message_that_is_wrong_fails_all_of_it() -> None:
    rig = BrokerHarness()
    transaction = begin(rig)
    transaction.send(rig.queue.parts[0], message(b"1"), 0)
    with pytest.raises(MalformedMessage):
        transaction.send(rig.queue.parts[0], b"\xff\xff", 0)
    (answer,) = commit(rig, transaction)
    assert isinstance(answer, TransactionRolledBack)
    assert rig.counts() == (0, 0, 0, 0)


def test_a_queue_that_is_full_by_then_refuses_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerHarness()
    rig.send_stored(b"held")
    consumer = rig.consumer(1)
    transaction = begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    transaction.send(rig.queue.parts[0], message(b"x" * 500), 0)
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 0.1)
    (answer,) = commit(rig, transaction)
    assert isinstance(answer, QuotaExceeded)
    assert rig.counts() == (1, 0, 0, 0)
    assert rig.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == []


def test_no_more_than_a_hundred_messages() -> None:
    rig = BrokerHarness()
    transaction = begin(rig)
    for _ in range(MAX_OPERATIONS):
        transaction.send(rig.queue.parts[0], message(b"1"), 0)
    with pytest.raises(TransactionTooLarge, match="100"):
        transaction.send(rig.queue.parts[0], message(b"1"), 0)
    assert isinstance(commit(rig, transaction)[0], TransactionRolledBack)


def test_a_lost_session_fails_it() -> None:
    rig = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=5_000))
    rig.send_stored(b"1", session="s")
    consumer = rig.accept_session(b"s", 1)
    transaction = begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    rig.advance(6)
    (answer,) = commit(rig, transaction)
    assert isinstance(answer, SessionLockLost)
    assert rig.main_fragment.active_count == 1


def test_a_store_that_failed_meanwhile_fails_it() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    transaction = begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    rig.restart()
    (answer,) = commit(rig, transaction)
    assert isinstance(answer, StoreUnavailable)
    assert rig.main_fragment.active_count == 1


@pytest.mark.parametrize("how", list(Disposition))
def test_an_entity_that_was_deleted_meanwhile_fails_it(how: Disposition) -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a")
    rig.publish_stored(b"1")
    consumer, transaction = rig.consumer(1, of=local_part(subscription).main), begin(rig)
    transaction.settle(subscription.parts[0], local_part(subscription).main, consumer.lock_numbers(), how)
    rig.namespace.remove(subscription.path)
    rig.run_until_idle()
    (answer,) = commit(rig, transaction)
    assert isinstance(answer, EntityDeleted)
    assert not answer.is_retriable


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_commit_that_fails_is_whole_or_nothing_on_disk(is_kept: bool) -> None:  # noqa: FBT001
    rig = BrokerHarness()
    rig.send_stored(b"old")
    consumer = rig.consumer(1)
    transaction = begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.DEAD_LETTER)
    transaction.send(rig.queue.parts[0], message(b"new"), 0)
    rig.fail_next_sync(keeps_changes=is_kept)
    (answer,) = commit(rig, transaction)
    assert isinstance(answer, StoreUnavailable)
    rig.reopen()
    rig.run_until_idle()
    assert rig.counts() == ((1, 0, 0, 1) if is_kept else (1, 0, 0, 0))
    assert rig.consumer(5).bodies[-1] == (b"new" if is_kept else b"old")


def test_duplicates_are_dropped_and_the_rest_is_done() -> None:
    rig = BrokerHarness(QueueDescription(requires_duplicate_detection=True))
    rig.send_stored(b"1", message_id="same")
    consumer = rig.consumer(1)
    transaction = begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    for message_id in ("same", "other"):
        transaction.send(rig.queue.parts[0], message(b"2", message_id=message_id), 0)
    assert commit(rig, transaction) == [None]
    assert rig.counts() == (1, 0, 0, 0)


def test_a_topic_publishes_what_was_committed() -> None:
    rig = TopicHarness()
    subscriptions = [rig.subscribe("a"), rig.subscribe("b")]
    transaction = begin(rig)
    for number in range(3):
        transaction.send(rig.topic.parts[0], message(LARGE + b"%d" % number), 0)
    assert [local_part(one).main.active_count for one in subscriptions] == [0, 0]
    assert commit(rig, transaction) == [None]
    assert rig.complete(subscriptions[0], 3) == [LARGE + b"%d" % number for number in range(3)]


def test_an_empty_one_is_committed_at_once() -> None:
    rig = BrokerHarness()
    assert commit(rig, begin(rig)) == [None]


def test_nothing_is_done_after_its_end() -> None:
    rig = BrokerHarness()
    transaction = begin(rig)
    transaction.roll_back()
    with pytest.raises(TransactionRolledBack):
        transaction.send(rig.queue.parts[0], message(b"1"), 0)
    assert isinstance(commit(rig, transaction)[0], TransactionRolledBack)


def test_the_time_of_a_message_begins_with_the_commit() -> None:
    rig = BrokerHarness()
    transaction = begin(rig)
    transaction.send(rig.queue.parts[0], message(b"1", ttl_ms=10_000), 0)
    rig.advance(30)
    commit(rig, transaction)
    found: Any = rig.consumer(1).messages[0].message_annotations
    assert found["x-opt-enqueued-time"] == rig.clock.wall_ms()


def test_it_is_received_here_and_sent_there_together() -> None:
    rig = BrokerHarness()
    target = rig.add_queue(8, "target", QueueDescription())
    rig.send_stored(b"work")
    consumer = rig.consumer(1)
    for commits in (False, True):
        transaction = begin(rig)
        transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
        transaction.send(rig.queue.parts[0], message(b"result"), 0, "target")
        if commits:
            assert commit(rig, transaction) == [None]
        else:
            transaction.roll_back()
            rig.run_until_idle()
            assert (rig.main_fragment.active_count, local_part(target).main.active_count) == (1, 0)
    assert (rig.main_fragment.active_count, local_part(target).main.active_count) == (0, 1)
    assert rig.consumer(1, of=local_part(target).main).bodies == [b"result"]


def test_a_settlement_that_a_silent_store_refuses_fails_it() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    consumer, transaction = rig.consumer(1), begin(rig)
    transaction.send(rig.queue.parts[0], message(b"2"), 0)
    rig.commit_log.unavailable_reason = "its disk is silent"
    with pytest.raises(StoreUnavailable):
        transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    rig.commit_log.unavailable_reason = None
    assert isinstance(commit(rig, transaction)[0], TransactionRolledBack)
    assert rig.main_fragment.active_count == 1


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_messages_of_a_session_that_its_receiver_has_no_more_are_free(*, expires: bool, commits: bool) -> None:
    rig = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=5_000))
    rig.send_stored(b"1", session="s")
    consumer, transaction = rig.accept_session(b"s", 1), begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    if expires:
        rig.advance(6)
    else:
        consumer.leave()
    if commits:
        assert isinstance(commit(rig, transaction)[0], SessionLockLost)
    else:
        transaction.roll_back()
        rig.run_until_idle()
    assert rig.accept_session(None, 1).bodies == [b"1"]


def test_a_session_that_another_receiver_has_meanwhile_fails_it() -> None:
    rig = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=5_000))
    rig.send_stored(b"1", session="s")
    consumer, transaction = rig.accept_session(b"s", 1), begin(rig)
    transaction.settle(rig.queue.parts[0], rig.main_fragment, consumer.lock_numbers(), Disposition.COMPLETE)
    consumer.leave()
    other = rig.accept_session(b"s", 5)
    assert other.bodies == []
    assert isinstance(commit(rig, transaction)[0], SessionLockLost)
    assert other.bodies == [b"1"]
