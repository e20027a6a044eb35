"""Deleting what nobody has: the oldest, all, up to a number, by number; and dead letters that come back."""

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


def ask(harness: BrokerHarness, call: Any, *arguments: Any) -> Any:  # noqa: ANN401  # any operation of a removal
    found: list[Any] = []
    call(*arguments, found.append)
    harness.run_until_idle()
    [answer] = found
    if isinstance(answer, ServiceBusError):
        raise answer
    return answer


def remove(harness: BrokerHarness, call: Any, wanted: RemovalCriteria) -> tuple[int, int]:  # noqa: ANN401
    outcome = ask(harness, call, wanted)
    assert isinstance(outcome, RemovalResult)
    return outcome.removed_count, outcome.skipped_count


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.removal.SCAN_BATCH_SIZE", 3)


def test_the_oldest_are_deleted_and_locked_ones_are_left() -> None:
    rig = BrokerHarness()
    rig.send_stored(*[b"%d" % number for number in range(10)])
    consumer = rig.consumer(2)
    assert remove(rig, rig.main_fragment.removal.remove_active, RemovalCriteria(max_count=4)) == (4, 2)
    assert rig.counts() == (6, 0, 0, 0)
    rig.main_fragment.settlement.release(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    consumer.grant(20)
    rig.run_until_idle()
    assert consumer.bodies[2:] == [b"0", b"1", b"6", b"7", b"8", b"9"]


def test_all_are_purged() -> None:
    rig = BrokerHarness()
    for number in range(10):
        rig.send_stored(b"x", ttl_ms=60_000 + number)
    waiting = rig.consumer()
    assert remove(rig, rig.main_fragment.removal.remove_active, RemovalCriteria()) == (10, 0)
    waiting.grant(5)
    rig.run_until_idle()
    assert (rig.counts(), rig.main_fragment.size, waiting.bodies) == ((0, 0, 0, 0), 0, [])
    assert rig.index_row_count() == 0
    rig.send_stored(b"new")
    assert waiting.bodies == [b"new"]


def test_scheduled_and_deferred_ones_are_purged_apart() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", b"b", b"active")
    rig.main_fragment.settlement.defer(rig.consumer(2).lock_numbers(), Results())
    rig.run_until_idle()
    for _ in range(5):
        rig.send_stored(b"later", due_ms=rig.clock.wall_ms() + 10_000)
    assert remove(rig, rig.main_fragment.removal.remove_scheduled, RemovalCriteria()) == (5, 0)
    assert rig.counts() == (1, 2, 0, 0)
    assert remove(rig, rig.main_fragment.removal.remove_deferred, RemovalCriteria()) == (2, 0)
    assert rig.counts() == (1, 0, 0, 0)
    rig.advance(20)
    assert rig.counts() == (1, 0, 0, 0)


def test_up_to_a_number_and_before_a_time() -> None:
    rig = BrokerHarness()
    rig.send_stored(*[b"%d" % number for number in range(5)])
    assert remove(rig, rig.main_fragment.removal.remove_active, RemovalCriteria(max_sequence=2)) == (2, 0)
    rig.advance(10)
    rig.send_stored(b"later")
    assert remove(
        rig, rig.main_fragment.removal.remove_active, RemovalCriteria(enqueued_before_ms=rig.clock.wall_ms())
    ) == (3, 0)
    assert rig.consumer(9).bodies == [b"later"]


def test_of_one_session_only() -> None:
    rig = BrokerHarness(QueueDescription(requires_session=True))
    for number in range(6):
        rig.send_stored(b"%d" % number, session="ab"[number % 2])
    assert remove(rig, rig.main_fragment.removal.remove_active, RemovalCriteria(session_id=b"a")) == (3, 0)
    assert rig.accept_session(None, 9).bodies == [b"1", b"3", b"5"]
    assert rig.accept_session().session is None


def test_by_number_whatever_their_state() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"deferred", b"locked", b"active")
    first, _ = rig.consumer(2).lock_numbers()
    rig.main_fragment.settlement.defer([first], Results())
    rig.run_until_idle()
    rig.send_stored(b"later", due_ms=rig.clock.wall_ms() + 10_000)
    assert ask(rig, rig.main_fragment.removal.remove_by_sequence, [1, 2, 3, 4, 99]) == [1, 3, 4]
    assert rig.counts() == (1, 0, 0, 0)


def test_a_message_that_is_deleted_is_not_handed_out_meanwhile() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", b"b")
    consumer = rig.consumer()
    rig.main_fragment.removal.remove_active(RemovalCriteria(), lambda _: None)
    while rig.store.has_work and not rig.store.pending_commits:
        rig.store.step()
        while rig.store_callbacks:
            rig.store_callbacks.popleft()()
    consumer.grant(5)
    rig.run_until_idle()
    assert consumer.bodies == []
    assert rig.counts() == (0, 0, 0, 0)


# --- dead letters that come back --------------------------------------------------------------------------------------


def with_dead_letters(*bodies: bytes, description: QueueDescription | None = None) -> BrokerHarness:
    rig = BrokerHarness(description)
    rig.send_stored(*bodies)
    consumer = rig.consumer(len(bodies))
    rig.main_fragment.settlement.abandon(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    consumer.grant(len(bodies))
    rig.run_until_idle()
    numbers = consumer.lock_numbers()[len(bodies) :]
    rig.main_fragment.settlement.dead_letter(numbers, Results(), reason="bad", description="very")
    rig.run_until_idle()
    rig.main_fragment.dispatcher.remove(consumer)
    return rig


def resubmit(harness: BrokerHarness, numbers: list[int], edited: bytes | None = None) -> list[int]:
    found: list[list[int] | ServiceBusError] = []
    local_part(harness.queue).resubmit(numbers, edited, harness.namespace.intake, found.append)
    harness.run_until_idle()
    [answer] = found
    if isinstance(answer, ServiceBusError):
        raise answer
    return answer


def test_a_dead_letter_is_active_again_as_if_it_were_new() -> None:
    rig = with_dead_letters(b"a", b"b")
    assert rig.counts() == (0, 0, 0, 2)
    assert resubmit(rig, [2]) == [3]
    assert rig.counts() == (1, 0, 0, 1)
    [again] = rig.consumer(5).messages
    assert again.data == [b"b"]
    assert again.application_properties == {}
    assert again.header is not None
    assert again.header.delivery_count == 0


def test_or_with_other_contents() -> None:
    rig = with_dead_letters(b"a")
    resubmit(rig, [1], message(b"mended"))
    assert rig.consumer(5).bodies == [b"mended"]
    assert rig.counts() == (1, 0, 0, 0)


def test_all_of_them_or_none() -> None:
    rig = with_dead_letters(b"a", b"b")
    with pytest.raises(MessageNotFound):
        resubmit(rig, [1, 9])
    rig.consumer(1, of=rig.dead_letters)
    with pytest.raises(MessageNotFound):
        resubmit(rig, [1, 2])
    assert rig.counts() == (0, 0, 0, 2)


def test_it_is_no_duplicate() -> None:
    rig = with_dead_letters(b"a", description=QueueDescription(requires_duplicate_detection=True))
    resubmit(rig, [1])
    assert rig.counts() == (1, 0, 0, 0)


def test_a_store_that_fails_leaves_it_where_it_was() -> None:
    rig = with_dead_letters(b"a")
    rig.fail_next_sync()
    found: list[Any] = []
    local_part(rig.queue).resubmit([1], None, rig.namespace.intake, found.append)
    rig.run_until_idle()
    rig.reopen()
    rig.run_until_idle()
    assert isinstance(found[0], ServiceBusError)
    assert rig.counts() == (0, 0, 0, 1)
