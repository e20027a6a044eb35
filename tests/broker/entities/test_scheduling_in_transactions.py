"""Messages scheduled in a transaction get their sequence numbers before the commit, and become visible with it."""

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
    """Begin a transaction with messages due after these delays; return it with their sequence numbers."""
    transaction, target, now_ms = Transaction(harness.namespace.intake), of or harness.queue, harness.clock.wall_ms()
    later = [
        message(b"later %d" % number, due_ms=now_ms + round(delay_s * 1000)) for number, delay_s in enumerate(seconds)
    ]
    return transaction, transaction.schedule(target.parts[0], harness.incoming_batch(*later, to=target).records)


def commit(harness: BrokerHarness, transaction: Transaction) -> Results:
    results = Results()
    transaction.commit(results)
    harness.run_until_idle()
    return results


def peeked(harness: BrokerHarness) -> list[bytes]:
    replies: list[list[bytes] | ServiceBusError] = []
    harness.main_fragment.browser.peek(1, 100, 10_000, replies.append)
    harness.run_until_idle()
    (messages,) = replies
    assert isinstance(messages, list)
    return [Message(payload).data[0] for payload in messages]


def test_scheduled_messages_become_active_when_due() -> None:
    harness = BrokerHarness()
    transaction, numbers = begin(harness, 10, 20)
    harness.send_stored(b"between")
    assert (numbers, harness.counts()) == ([1, 2], (1, 0, 0, 0))
    assert commit(harness, transaction) == [None]
    assert harness.counts() == (1, 0, 2, 0)
    harness.advance(10)
    assert harness.counts() == (2, 0, 1, 0)
    harness.advance(10)
    assert harness.consumer(9).bodies == [b"between", b"later 0", b"later 1"]


@pytest.mark.parametrize("seconds", [-10, 0, 5])
def test_a_message_due_before_the_commit_becomes_active_at_the_commit(seconds: float) -> None:
    harness = BrokerHarness()
    transaction, _ = begin(harness, seconds)
    harness.send_stored(b"between")
    harness.advance(60)
    assert harness.counts() == (1, 0, 0, 0)
    assert commit(harness, transaction) == [None]
    harness.advance(0)
    assert harness.consumer(9).bodies == [b"between", b"later 0"]
    assert harness.counts() == (2, 0, 0, 0)
    assert harness.index_row_count() == 0


@pytest.mark.parametrize("steps", range(8))
def test_scheduled_messages_cannot_be_seen_or_cancelled_before_the_commit(steps: int) -> None:
    harness = BrokerHarness()
    harness.send_stored(b"other", due_ms=harness.clock.wall_ms() + 1_000_000)
    transaction, numbers = begin(harness, 1_000)
    harness.send_stored(b"between")
    assert peeked(harness) == [b"other", b"between"]
    cancelled, results = Results(), Results()
    harness.main_fragment.schedule.cancel(numbers, cancelled)
    for _ in range(steps):  # the lookup may come before or after the commit
        if harness.deferred_calls or harness.store_callbacks or harness.store.has_work:
            harness.step()
    transaction.commit(results)
    harness.run_until_idle()
    assert (results, [type(error) for error in cancelled]) == ([None], [MessageNotFound])
    assert peeked(harness) == [b"other", b"later 0", b"between"]
    harness.advance(1_000)
    assert harness.counts() == (3, 0, 0, 0)


def test_scheduled_messages_can_be_cancelled_after_the_commit() -> None:
    harness = BrokerHarness()
    transaction, numbers = begin(harness, 10, 20)
    commit(harness, transaction)
    results = Results()
    harness.main_fragment.schedule.cancel(numbers[:1], results)
    harness.run_until_idle()
    assert results == [None]
    harness.advance(60)
    assert harness.consumer(9).bodies == [b"later 1"]


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_failed_commit_is_on_disk_as_a_whole_or_not_at_all(*, is_kept: bool) -> None:
    harness = BrokerHarness()
    transaction, _ = begin(harness, 10)
    transaction.send(harness.queue.parts[0], message(b"new"), 0)
    harness.fail_next_sync(keeps_changes=is_kept)
    assert isinstance(commit(harness, transaction)[0], StoreUnavailable)
    harness.reopen()
    harness.run_until_idle()
    assert harness.counts() == ((1, 0, 1, 0) if is_kept else (0, 0, 0, 0))
    harness.advance(10)
    assert harness.consumer(5).bodies == ([b"new", b"later 0"] if is_kept else [])


def test_a_commit_fails_if_the_store_failed_before() -> None:
    harness = BrokerHarness()
    transaction, _ = begin(harness, 10)
    harness.restart()
    assert isinstance(commit(harness, transaction)[0], StoreUnavailable)
    harness.send_stored(b"new")
    harness.advance(60)
    assert harness.consumer(5).bodies == [b"new"]


def test_a_queue_that_is_full_at_the_commit_refuses_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness()
    transaction, _ = begin(harness, 10)
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 0.01)
    assert isinstance(commit(harness, transaction)[0], QuotaExceeded)
    assert harness.counts() == (0, 0, 0, 0)


def test_scheduled_messages_count_against_the_limit_of_a_transaction() -> None:
    harness = BrokerHarness()
    with pytest.raises(TransactionTooLarge, match="100"):
        begin(harness, *range(1, 102))


def test_scheduling_in_a_transaction_is_refused_with_duplicate_detection() -> None:
    harness = BrokerHarness(QueueDescription(requires_duplicate_detection=True))
    transaction = Transaction(harness.namespace.intake)
    with pytest.raises(InvalidOperation, match="duplicates"):
        transaction.schedule(harness.queue.parts[0], [])
    assert isinstance(commit(harness, transaction)[0], TransactionRolledBack)


def test_a_topic_publishes_scheduled_messages_when_they_are_due() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a")
    transaction, _ = begin(harness, 10, of=harness.topic)
    assert commit(harness, transaction) == [None]
    assert harness.topic.runtime().scheduled_count == 1
    harness.advance(10)
    assert harness.complete(subscription) == [b"later 0"]
