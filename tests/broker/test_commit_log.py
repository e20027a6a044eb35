"""The journal: one commit a turn, told when it is on disk; silence, failure and refusals."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.model.errors import DiskFull, ServerBusy, StoreUnavailable
from twinbus.model.limits import NamespaceLimits
from twinbus.server.runtime.disk_space import low_space_reason
from twinbus.store.memory import StoreStep


def test_what_is_asked_in_one_turn_is_one_commit() -> None:
    rig = BrokerHarness()
    answers = [rig.send(b"1"), rig.send(b"2", b"3")]
    rig.run_until_idle()
    assert answers == [[None], [None]]
    assert rig.store.commits == 1


def test_nothing_is_answered_or_shown_before_the_sync() -> None:
    rig = BrokerHarness()
    consumer = rig.consumer(10)
    answers = rig.send(b"1")
    while rig.deferred_calls:
        rig.deferred_calls.popleft()()
    rig.store.step()
    assert rig.store.next_step is StoreStep.SYNC
    assert not rig.store_callbacks
    assert (answers, rig.main_fragment.active_count, consumer.deliveries) == ([], 0, [])
    rig.run_until_idle()
    assert (answers, rig.main_fragment.active_count, len(consumer.deliveries)) == ([None], 1, 1)


def test_a_silent_store_is_unavailable_until_it_speaks() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    answers = rig.send(b"2")
    rig.store.hang()
    rig.run_until_idle()
    rig.advance(9.9)
    assert answers == []
    rig.advance(0.2)
    assert [type(error) for error in answers] == [StoreUnavailable]
    with pytest.raises(StoreUnavailable, match="has not answered for 10 s"):
        rig.send(b"3")
    with pytest.raises(StoreUnavailable):
        rig.main_fragment.settlement.complete(consumer.lock_numbers(), Results())
    with pytest.raises(StoreUnavailable):
        rig.main_fragment.browser.peek(1, 1, 1_000, lambda _: None)
    rig.store.resume()
    rig.run_until_idle()
    assert len(answers) == 1  # and is not told again
    assert rig.main_fragment.active_count == 2
    rig.send_stored(b"4")
    assert rig.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == []
    assert not rig.failed_logs


def test_a_failed_store_refuses_all_that_waits() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    rig.fail_next_sync()
    answers = rig.send(b"2")
    rig.run_until_idle()
    assert [type(error) for error in answers] == [StoreUnavailable]
    assert rig.failed_logs == [rig.commit_log]
    assert not rig.queue.runtime().is_available
    assert "input/output error" in rig.commit_log.last_failure
    with pytest.raises(StoreUnavailable, match="it failed, and is being opened again"):
        rig.send(b"3")


def test_what_the_disk_holds_is_there_when_the_store_is_opened_anew() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2")
    consumer = rig.consumer(1)
    held = consumer.lock_numbers()
    rig.fail_next_sync()
    rig.send(b"3")
    rig.run_until_idle()
    rig.reopen()
    with pytest.raises(StoreUnavailable, match="being opened"):
        rig.send(b"4")
    rig.run_until_idle()
    assert rig.main_fragment.settlement.complete(
        rig.main_fragment.lock_numbers([consumer.deliveries[0][1]]), Results()
    ) == [0]
    assert rig.main_fragment.active_count == 2
    rig.send_stored(b"5")
    consumer.grant(10)
    rig.run_until_idle()
    assert consumer.bodies == [b"1", b"1", b"2", b"5"]
    assert held != [0]


def test_a_drain_while_the_marks_are_read_waits_for_them() -> None:
    rig = BrokerHarness()
    consumer = rig.consumer()
    rig.fail_next_sync(keeps_changes=True)
    answers = rig.send(b"1")
    rig.run_until_idle()
    assert [type(error) for error in answers] == [StoreUnavailable]
    rig.reopen()
    consumer.credit = 5
    consumer.drain()
    rig.run_until_idle()
    assert consumer.bodies == [b"1"]
    assert consumer.drain_count == 1


def test_a_drain_on_a_store_that_does_not_work_ends_after_a_tenth_of_a_second() -> None:
    rig = BrokerHarness()
    consumer = rig.consumer()
    rig.fail_next_sync()
    rig.send(b"1")
    rig.run_until_idle()
    consumer.drain()
    assert consumer.drain_count == 0
    rig.advance(0.1)
    assert consumer.drain_count == 1


def test_on_a_full_disk_nothing_is_sent_and_the_rest_goes_on() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    rig.commit_log.disk_full_reason = low_space_reason(0)
    with pytest.raises(DiskFull, match="takes no messages: its disk is full"):
        rig.send(b"2")
    consumer, answers = rig.consumer(1), Results()
    rig.main_fragment.settlement.complete(consumer.lock_numbers(), answers)
    rig.run_until_idle()
    assert answers == [None]
    rig.commit_log.disk_full_reason = None
    rig.send_stored(b"2")


def test_when_too_much_waits_senders_wait() -> None:
    rig = BrokerHarness(limits=NamespaceLimits(max_pending_bytes=1_000))
    rig.send(bytes(2_000))
    with pytest.raises(ServerBusy, match="wait to be written"):
        rig.send(b"1")
    rig.run_until_idle()
    assert rig.commit_log.pending_bytes == 0
    rig.send_stored(b"1")
