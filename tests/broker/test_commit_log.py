"""The commit log: one commit per turn, results after the sync, hanging and failed stores, and refused sends."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.model.errors import DiskFull, ServerBusy, StoreUnavailable
from twinbus.model.limits import NamespaceLimits
from twinbus.server.runtime.disk_space import low_space_reason
from twinbus.store.memory import StoreStep


def test_requests_of_one_turn_are_one_commit() -> None:
    harness = BrokerHarness()
    results = [harness.send(b"1"), harness.send(b"2", b"3")]
    harness.run_until_idle()
    assert results == [[None], [None]]
    assert harness.store.commits == 1


def test_no_send_succeeds_and_no_message_is_visible_before_the_sync() -> None:
    harness = BrokerHarness()
    consumer = harness.consumer(10)
    results = harness.send(b"1")
    while harness.deferred_calls:
        harness.deferred_calls.popleft()()
    harness.store.step()
    assert harness.store.next_step is StoreStep.SYNC
    assert not harness.store_callbacks
    assert (results, harness.main_fragment.active_count, consumer.deliveries) == ([], 0, [])
    harness.run_until_idle()
    assert (results, harness.main_fragment.active_count, len(consumer.deliveries)) == ([None], 1, 1)


def test_a_hanging_store_is_unavailable_until_it_responds() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    results = harness.send(b"2")
    harness.store.hang()
    harness.run_until_idle()
    harness.advance(9.9)
    assert results == []
    harness.advance(0.2)
    assert [type(error) for error in results] == [StoreUnavailable]
    with pytest.raises(StoreUnavailable, match="has not answered for 10 s"):
        harness.send(b"3")
    with pytest.raises(StoreUnavailable):
        harness.main_fragment.settlement.complete(consumer.lock_numbers(), Results())
    with pytest.raises(StoreUnavailable):
        harness.main_fragment.browser.peek(1, 1, 1_000, lambda _: None)
    harness.store.resume()
    harness.run_until_idle()
    assert len(results) == 1  # the sender is not notified twice
    assert harness.main_fragment.active_count == 2
    harness.send_stored(b"4")
    assert harness.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == []
    assert not harness.failed_logs


def test_a_failed_store_refuses_all_pending_sends() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    harness.fail_next_sync()
    results = harness.send(b"2")
    harness.run_until_idle()
    assert [type(error) for error in results] == [StoreUnavailable]
    assert harness.failed_logs == [harness.commit_log]
    assert not harness.queue.runtime().is_available
    assert "input/output error" in harness.commit_log.last_failure
    with pytest.raises(StoreUnavailable, match="it failed and is being reopened"):
        harness.send(b"3")


def test_messages_on_disk_are_available_after_the_store_is_reopened() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2")
    consumer = harness.consumer(1)
    held = consumer.lock_numbers()
    harness.fail_next_sync()
    harness.send(b"3")
    harness.run_until_idle()
    harness.reopen()
    with pytest.raises(StoreUnavailable, match="being opened"):
        harness.send(b"4")
    harness.run_until_idle()
    assert harness.main_fragment.settlement.complete(
        harness.main_fragment.lock_numbers([consumer.deliveries[0][1]]), Results()
    ) == [0]
    assert harness.main_fragment.active_count == 2
    harness.send_stored(b"5")
    consumer.grant(10)
    harness.run_until_idle()
    assert consumer.bodies == [b"1", b"1", b"2", b"5"]
    assert held != [0]


def test_a_drain_waits_while_the_counters_are_loaded() -> None:
    harness = BrokerHarness()
    consumer = harness.consumer()
    harness.fail_next_sync(keeps_changes=True)
    results = harness.send(b"1")
    harness.run_until_idle()
    assert [type(error) for error in results] == [StoreUnavailable]
    harness.reopen()
    consumer.credit = 5
    consumer.drain()
    harness.run_until_idle()
    assert consumer.bodies == [b"1"]
    assert consumer.drain_count == 1


def test_a_drain_of_a_failed_store_ends_after_a_tenth_of_a_second() -> None:
    harness = BrokerHarness()
    consumer = harness.consumer()
    harness.fail_next_sync()
    harness.send(b"1")
    harness.run_until_idle()
    consumer.drain()
    assert consumer.drain_count == 0
    harness.advance(0.1)
    assert consumer.drain_count == 1


def test_a_full_disk_refuses_sends_and_allows_settlements() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    harness.commit_log.disk_full_reason = low_space_reason(0)
    with pytest.raises(DiskFull, match="takes no messages: its disk is full"):
        harness.send(b"2")
    consumer, results = harness.consumer(1), Results()
    harness.main_fragment.settlement.complete(consumer.lock_numbers(), results)
    harness.run_until_idle()
    assert results == [None]
    harness.commit_log.disk_full_reason = None
    harness.send_stored(b"2")


def test_sends_are_refused_while_too_many_bytes_are_pending() -> None:
    harness = BrokerHarness(limits=NamespaceLimits(max_pending_bytes=1_000))
    harness.send(bytes(2_000))
    with pytest.raises(ServerBusy, match="waiting to be written"):
        harness.send(b"1")
    harness.run_until_idle()
    assert harness.commit_log.pending_bytes == 0
    harness.send_stored(b"1")
