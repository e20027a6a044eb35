"""Messages for later that are part of a transaction: they have their numbers before it is committed, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from tests.broker.topic_harness import TopicHarness
from twinbus.amqp.message import Message
from twinbus.broker.entities.transaction import Transaction
from twinbus.model.errors import (
    InvalidOperation,
    MessageNotFound,
    QuotaExceeded,
    ServiceBusError,
    StoreUnavailable,
    TransactionRolledBack,
    TransactionTooLarge,
)
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.topic import Topic


def begin(harness: BrokerHarness, *seconds: float, of: Queue | Topic | None = None) -> tuple[Transaction, list[int]]:
    """A transaction with messages that are due after so many seconds, and their numbers."""
    transaction, target, now_ms = Transaction(harness.namespace.intake), of or harness.queue, harness.clock.wall_ms()
    later = [message(b"later %d" % number, due_ms=now_ms + round(one * 1000)) for number, one in enumerate(seconds)]
    return transaction, transaction.schedule(target.parts[0], harness.incoming_batch(*later, to=target).records)


def commit(harness: BrokerHarness, transaction: Transaction) -> Results:
    answers = Results()
    transaction.commit(answers)
    harness.run_until_idle()
    return answers


def peeked(harness: BrokerHarness) -> list[bytes]:
    found: list[list[bytes] | ServiceBusError] = []
    harness.main_fragment.browser.peek(1, 100, 10_000, found.append)
    harness.run_until_idle()
    (messages,) = found
    assert isinstance(messages, list)
    return [Message(one).data[0] for one in messages]


def test_they_are_due_when_they_are_due() -> None:
    rig = BrokerHarness()
    transaction, numbers = begin(rig, 10, 20)
    rig.send_stored(b"between")
    assert (numbers, rig.counts()) == ([1, 2], (1, 0, 0, 0))
    assert commit(rig, transaction) == [None]
    assert rig.counts() == (1, 0, 2, 0)
    rig.advance(10)
    assert rig.counts() == (2, 0, 1, 0)
    rig.advance(10)
    assert rig.consumer(9).bodies == [b"between", b"later 0", b"later 1"]


@pytest.mark.parametrize("seconds", [-10, 0, 5])
def test_what_is_due_before_it_is_committed_comes_then(seconds: float) -> None:
    rig = BrokerHarness()
    transaction, _ = begin(rig, seconds)
    rig.send_stored(b"between")
    rig.advance(60)
    assert rig.counts() == (1, 0, 0, 0)
    assert commit(rig, transaction) == [None]
    rig.advance(0)
    assert rig.consumer(9).bodies == [b"between", b"later 0"]
    assert rig.counts() == (2, 0, 0, 0)
    assert rig.index_row_count() == 0


@pytest.mark.parametrize("steps", range(8))
def test_nobody_sees_or_cancels_them_before_it_is_committed(steps: int) -> None:
    rig = BrokerHarness()
    rig.send_stored(b"other", due_ms=rig.clock.wall_ms() + 1_000_000)
    transaction, numbers = begin(rig, 1_000)
    rig.send_stored(b"between")
    assert peeked(rig) == [b"other", b"between"]
    cancelled, answers = Results(), Results()
    rig.main_fragment.schedule.cancel(numbers, cancelled)
    for _ in range(steps):  # the look for it may come before or after the commit
        if rig.deferred_calls or rig.store_callbacks or rig.store.has_work:
            rig.step()
    transaction.commit(answers)
    rig.run_until_idle()
    assert (answers, [type(error) for error in cancelled]) == ([None], [MessageNotFound])
    assert peeked(rig) == [b"other", b"later 0", b"between"]
    rig.advance(1_000)
    assert rig.counts() == (3, 0, 0, 0)


def test_they_can_be_cancelled_once_it_is_committed() -> None:
    rig = BrokerHarness()
    transaction, numbers = begin(rig, 10, 20)
    commit(rig, transaction)
    answers = Results()
    rig.main_fragment.schedule.cancel(numbers[:1], answers)
    rig.run_until_idle()
    assert answers == [None]
    rig.advance(60)
    assert rig.consumer(9).bodies == [b"later 1"]


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_commit_that_fails_is_whole_or_nothing_on_disk(*, is_kept: bool) -> None:
    rig = BrokerHarness()
    transaction, _ = begin(rig, 10)
    transaction.send(rig.queue.parts[0], message(b"new"), 0)
    rig.fail_next_sync(keeps_changes=is_kept)
    assert isinstance(commit(rig, transaction)[0], StoreUnavailable)
    rig.reopen()
    rig.run_until_idle()
    assert rig.counts() == ((1, 0, 1, 0) if is_kept else (0, 0, 0, 0))
    rig.advance(10)
    assert rig.consumer(5).bodies == ([b"new", b"later 0"] if is_kept else [])


def test_numbers_are_void_if_the_store_fails_before() -> None:
    rig = BrokerHarness()
    transaction, _ = begin(rig, 10)
    rig.restart()
    assert isinstance(commit(rig, transaction)[0], StoreUnavailable)
    rig.send_stored(b"new")
    rig.advance(60)
    assert rig.consumer(5).bodies == [b"new"]


def test_a_queue_that_is_full_by_then_refuses_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerHarness()
    transaction, _ = begin(rig, 10)
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 0.01)
    assert isinstance(commit(rig, transaction)[0], QuotaExceeded)
    assert rig.counts() == (0, 0, 0, 0)


def test_they_count_among_the_messages_of_a_transaction() -> None:
    rig = BrokerHarness()
    with pytest.raises(TransactionTooLarge, match="100"):
        begin(rig, *range(1, 102))


def test_where_duplicates_are_detected_it_is_refused() -> None:
    rig = BrokerHarness(QueueDescription(requires_duplicate_detection=True))
    transaction = Transaction(rig.namespace.intake)
    with pytest.raises(InvalidOperation, match="duplicates"):
        transaction.schedule(rig.queue.parts[0], [])
    assert isinstance(commit(rig, transaction)[0], TransactionRolledBack)


def test_a_topic_publishes_them_when_they_are_due() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a")
    transaction, _ = begin(rig, 10, of=rig.topic)
    assert commit(rig, transaction) == [None]
    assert rig.topic.runtime().scheduled_count == 1
    rig.advance(10)
    assert rig.complete(subscription) == [b"later 0"]
