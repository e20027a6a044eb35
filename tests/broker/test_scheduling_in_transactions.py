"""Messages for later that are part of a transaction: they have their numbers before it is committed, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Answers
from tests.broker.messages import message
from tests.broker.rig import Rig
from tests.broker.topics import TopicRig
from twinbus.amqp.message import Message
from twinbus.broker.transaction import Transaction
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
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic


def begin(rig: Rig, *seconds: float, of: Queue | Topic | None = None) -> tuple[Transaction, list[int]]:
    """A transaction with messages that are due after so many seconds, and their numbers."""
    transaction, target, now_ms = Transaction(rig.namespace.intake), of or rig.queue, rig.clock.wall_ms()
    later = [message(b"later %d" % number, due_ms=now_ms + round(one * 1000)) for number, one in enumerate(seconds)]
    return transaction, transaction.schedule(target.parts[0], rig.parcel(*later, to=target).records)


def commit(rig: Rig, transaction: Transaction) -> Answers:
    answers = Answers()
    transaction.commit(answers)
    rig.settle()
    return answers


def peeked(rig: Rig) -> list[bytes]:
    found: list[list[bytes] | ServiceBusError] = []
    rig.main.browsing.peek(1, 100, 10_000, found.append)
    rig.settle()
    (messages,) = found
    assert isinstance(messages, list)
    return [Message(one).data[0] for one in messages]


def test_they_are_due_when_they_are_due() -> None:
    rig = Rig()
    transaction, numbers = begin(rig, 10, 20)
    rig.stored(b"between")
    assert (numbers, rig.counts()) == ([1, 2], (1, 0, 0, 0))
    assert commit(rig, transaction) == [None]
    assert rig.counts() == (1, 0, 2, 0)
    rig.wait(10)
    assert rig.counts() == (2, 0, 1, 0)
    rig.wait(10)
    assert rig.consumer(9).bodies == [b"between", b"later 0", b"later 1"]


@pytest.mark.parametrize("seconds", [-10, 0, 5])
def test_what_is_due_before_it_is_committed_comes_then(seconds: float) -> None:
    rig = Rig()
    transaction, _ = begin(rig, seconds)
    rig.stored(b"between")
    rig.wait(60)
    assert rig.counts() == (1, 0, 0, 0)
    assert commit(rig, transaction) == [None]
    rig.wait(0)
    assert rig.consumer(9).bodies == [b"between", b"later 0"]
    assert rig.counts() == (2, 0, 0, 0)
    assert rig.rows() == 0


@pytest.mark.parametrize("steps", range(8))
def test_nobody_sees_or_cancels_them_before_it_is_committed(steps: int) -> None:
    rig = Rig()
    rig.stored(b"other", due_ms=rig.clock.wall_ms() + 1_000_000)
    transaction, numbers = begin(rig, 1_000)
    rig.stored(b"between")
    assert peeked(rig) == [b"other", b"between"]
    cancelled, answers = Answers(), Answers()
    rig.main.schedule.cancel(numbers, cancelled)
    for _ in range(steps):  # the look for it may come before or after the commit
        if rig.turn or rig.mail or rig.store.pending:
            rig.step()
    transaction.commit(answers)
    rig.settle()
    assert (answers, [type(error) for error in cancelled]) == ([None], [MessageNotFound])
    assert peeked(rig) == [b"other", b"later 0", b"between"]
    rig.wait(1_000)
    assert rig.counts() == (3, 0, 0, 0)


def test_they_can_be_cancelled_once_it_is_committed() -> None:
    rig = Rig()
    transaction, numbers = begin(rig, 10, 20)
    commit(rig, transaction)
    answers = Answers()
    rig.main.schedule.cancel(numbers[:1], answers)
    rig.settle()
    assert answers == [None]
    rig.wait(60)
    assert rig.consumer(9).bodies == [b"later 1"]


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_commit_that_fails_is_whole_or_nothing_on_disk(*, is_kept: bool) -> None:
    rig = Rig()
    transaction, _ = begin(rig, 10)
    transaction.send(rig.queue.parts[0], message(b"new"), 0)
    rig.fail(is_kept=is_kept)
    assert isinstance(commit(rig, transaction)[0], StoreUnavailable)
    rig.reopen()
    rig.settle()
    assert rig.counts() == ((1, 0, 1, 0) if is_kept else (0, 0, 0, 0))
    rig.wait(10)
    assert rig.consumer(5).bodies == ([b"new", b"later 0"] if is_kept else [])


def test_numbers_are_void_if_the_store_fails_before() -> None:
    rig = Rig()
    transaction, _ = begin(rig, 10)
    rig.restart()
    assert isinstance(commit(rig, transaction)[0], StoreUnavailable)
    rig.stored(b"new")
    rig.wait(60)
    assert rig.consumer(5).bodies == [b"new"]


def test_a_queue_that_is_full_by_then_refuses_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    transaction, _ = begin(rig, 10)
    monkeypatch.setattr("twinbus.broker.part.MEGABYTE", 0.01)
    assert isinstance(commit(rig, transaction)[0], QuotaExceeded)
    assert rig.counts() == (0, 0, 0, 0)


def test_they_count_among_the_messages_of_a_transaction() -> None:
    rig = Rig()
    with pytest.raises(TransactionTooLarge, match="100"):
        begin(rig, *range(1, 102))


def test_where_duplicates_are_detected_it_is_refused() -> None:
    rig = Rig(QueueDescription(requires_duplicate_detection=True))
    transaction = Transaction(rig.namespace.intake)
    with pytest.raises(InvalidOperation, match="duplicates"):
        transaction.schedule(rig.queue.parts[0], [])
    assert isinstance(commit(rig, transaction)[0], TransactionRolledBack)


def test_a_topic_publishes_them_when_they_are_due() -> None:
    rig = TopicRig()
    subscription = rig.subscribe("a")
    transaction, _ = begin(rig, 10, of=rig.topic)
    assert commit(rig, transaction) == [None]
    assert rig.topic.runtime().scheduled_count == 1
    rig.wait(10)
    assert rig.complete(subscription) == [b"later 0"]
