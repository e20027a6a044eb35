"""Deleting messages nobody has locked: the oldest, all, up to a number, by number; and resubmitting dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from tests.support.parts import local_part
from twinbus.broker.ports.fragment import RemovalCriteria, RemovalResult
from twinbus.model.errors import MessageNotFound, ServiceBusError
from twinbus.model.queue import QueueDescription


def call_and_wait(harness: BrokerHarness, call: Any, *arguments: Any) -> Any:  # noqa: ANN401  # any operation of `removal`
    replies: list[Any] = []
    call(*arguments, replies.append)
    harness.run_until_idle()
    [reply] = replies
    if isinstance(reply, ServiceBusError):
        raise reply
    return reply


def remove(harness: BrokerHarness, call: Any, criteria: RemovalCriteria) -> tuple[int, int]:  # noqa: ANN401
    outcome = call_and_wait(harness, call, criteria)
    assert isinstance(outcome, RemovalResult)
    return outcome.removed_count, outcome.skipped_count


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.removal.SCAN_BATCH_SIZE", 3)


def test_the_oldest_messages_are_deleted_and_locked_ones_are_skipped() -> None:
    harness = BrokerHarness()
    harness.send_stored(*[b"%d" % number for number in range(10)])
    consumer = harness.consumer(2)
    assert remove(harness, harness.main_fragment.removal.remove_active, RemovalCriteria(max_count=4)) == (4, 2)
    assert harness.counts() == (6, 0, 0, 0)
    harness.main_fragment.settlement.release(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    consumer.grant(20)
    harness.run_until_idle()
    assert consumer.bodies[2:] == [b"0", b"1", b"6", b"7", b"8", b"9"]


def test_a_purge_deletes_all_messages() -> None:
    harness = BrokerHarness()
    for number in range(10):
        harness.send_stored(b"x", ttl_ms=60_000 + number)
    waiting = harness.consumer()
    assert remove(harness, harness.main_fragment.removal.remove_active, RemovalCriteria()) == (10, 0)
    waiting.grant(5)
    harness.run_until_idle()
    assert (harness.counts(), harness.main_fragment.size, waiting.bodies) == ((0, 0, 0, 0), 0, [])
    assert harness.index_row_count() == 0
    harness.send_stored(b"new")
    assert waiting.bodies == [b"new"]


def test_scheduled_and_deferred_messages_are_purged_separately() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", b"b", b"active")
    harness.main_fragment.settlement.defer(harness.consumer(2).lock_numbers(), Results())
    harness.run_until_idle()
    for _ in range(5):
        harness.send_stored(b"later", due_ms=harness.clock.wall_ms() + 10_000)
    assert remove(harness, harness.main_fragment.removal.remove_scheduled, RemovalCriteria()) == (5, 0)
    assert harness.counts() == (1, 2, 0, 0)
    assert remove(harness, harness.main_fragment.removal.remove_deferred, RemovalCriteria()) == (2, 0)
    assert harness.counts() == (1, 0, 0, 0)
    harness.advance(20)
    assert harness.counts() == (1, 0, 0, 0)


def test_messages_up_to_a_number_or_before_a_time_are_deleted() -> None:
    harness = BrokerHarness()
    harness.send_stored(*[b"%d" % number for number in range(5)])
    assert remove(harness, harness.main_fragment.removal.remove_active, RemovalCriteria(max_sequence=2)) == (2, 0)
    harness.advance(10)
    harness.send_stored(b"later")
    assert remove(
        harness,
        harness.main_fragment.removal.remove_active,
        RemovalCriteria(enqueued_before_ms=harness.clock.wall_ms()),
    ) == (3, 0)
    assert harness.consumer(9).bodies == [b"later"]


def test_messages_of_one_session_are_deleted() -> None:
    harness = BrokerHarness(QueueDescription(requires_session=True))
    for number in range(6):
        harness.send_stored(b"%d" % number, session="ab"[number % 2])
    assert remove(harness, harness.main_fragment.removal.remove_active, RemovalCriteria(session_id=b"a")) == (3, 0)
    assert harness.accept_session(None, 9).bodies == [b"1", b"3", b"5"]
    assert harness.accept_session().session is None


def test_messages_in_any_state_are_deleted_by_number_unless_locked() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"deferred", b"locked", b"active")
    first, _ = harness.consumer(2).lock_numbers()
    harness.main_fragment.settlement.defer([first], Results())
    harness.run_until_idle()
    harness.send_stored(b"later", due_ms=harness.clock.wall_ms() + 10_000)
    assert call_and_wait(harness, harness.main_fragment.removal.remove_by_sequence, [1, 2, 3, 4, 99]) == [1, 3, 4]
    assert harness.counts() == (1, 0, 0, 0)


def test_a_message_being_deleted_is_not_delivered() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", b"b")
    consumer = harness.consumer()
    harness.main_fragment.removal.remove_active(RemovalCriteria(), lambda _: None)
    while harness.store.has_work and not harness.store.pending_commits:
        harness.store.step()
        while harness.store_callbacks:
            harness.store_callbacks.popleft()()
    consumer.grant(5)
    harness.run_until_idle()
    assert consumer.bodies == []
    assert harness.counts() == (0, 0, 0, 0)


# --- resubmitted dead letters -----------------------------------------------------------------------------------------


def harness_with_dead_letters(*bodies: bytes, description: QueueDescription | None = None) -> BrokerHarness:
    harness = BrokerHarness(description)
    harness.send_stored(*bodies)
    consumer = harness.consumer(len(bodies))
    harness.main_fragment.settlement.abandon(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    consumer.grant(len(bodies))
    harness.run_until_idle()
    numbers = consumer.lock_numbers()[len(bodies) :]
    harness.main_fragment.settlement.dead_letter(numbers, Results(), reason="bad", description="very")
    harness.run_until_idle()
    harness.main_fragment.dispatcher.remove(consumer)
    return harness


def resubmit(harness: BrokerHarness, numbers: list[int], edited: bytes | None = None) -> list[int]:
    replies: list[list[int] | ServiceBusError] = []
    local_part(harness.queue).resubmit(numbers, edited, harness.namespace.intake, replies.append)
    harness.run_until_idle()
    [reply] = replies
    if isinstance(reply, ServiceBusError):
        raise reply
    return reply


def test_a_resubmitted_dead_letter_is_active_like_a_new_message() -> None:
    harness = harness_with_dead_letters(b"a", b"b")
    assert harness.counts() == (0, 0, 0, 2)
    assert resubmit(harness, [2]) == [3]
    assert harness.counts() == (1, 0, 0, 1)
    [again] = harness.consumer(5).messages
    assert again.data == [b"b"]
    assert again.application_properties == {}
    assert again.header is not None
    assert again.header.delivery_count == 0


def test_a_dead_letter_can_be_resubmitted_with_another_body() -> None:
    harness = harness_with_dead_letters(b"a")
    resubmit(harness, [1], message(b"mended"))
    assert harness.consumer(5).bodies == [b"mended"]
    assert harness.counts() == (1, 0, 0, 0)


def test_either_all_dead_letters_are_resubmitted_or_none() -> None:
    harness = harness_with_dead_letters(b"a", b"b")
    with pytest.raises(MessageNotFound):
        resubmit(harness, [1, 9])
    harness.consumer(1, of=harness.dead_letters)
    with pytest.raises(MessageNotFound):
        resubmit(harness, [1, 2])
    assert harness.counts() == (0, 0, 0, 2)


def test_a_resubmitted_dead_letter_is_not_a_duplicate() -> None:
    harness = harness_with_dead_letters(b"a", description=QueueDescription(requires_duplicate_detection=True))
    resubmit(harness, [1])
    assert harness.counts() == (1, 0, 0, 0)


def test_a_store_failure_leaves_a_dead_letter_in_place() -> None:
    harness = harness_with_dead_letters(b"a")
    harness.fail_next_sync()
    replies: list[Any] = []
    local_part(harness.queue).resubmit([1], None, harness.namespace.intake, replies.append)
    harness.run_until_idle()
    harness.reopen()
    harness.run_until_idle()
    assert isinstance(replies[0], ServiceBusError)
    assert harness.counts() == (0, 0, 0, 1)
