"""Receive-and-delete: a message is deleted from disk before it is delivered, and is received at most once."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.remote.fake_links import attach_browser
from twinbus.amqp.message import Message


def test_a_message_is_deleted_before_it_is_delivered() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    consumer = harness.consumer(deletes=True)
    consumer.grant(1)
    while harness.main_fragment.active_count:
        assert consumer.deliveries == []
        (
            harness.deferred_calls or harness.store_callbacks
        ).popleft()() if harness.deferred_calls or harness.store_callbacks else harness.store.step()
    assert consumer.bodies == [b"1"]


def test_messages_deleted_for_a_detached_consumer_go_to_the_next() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2", b"3")
    first = harness.consumer(deletes=True)
    harness.run_until_idle()
    first.grant(2)
    harness.run_until_commit()
    first.leave()
    harness.run_until_idle()
    assert harness.main_fragment.active_count == 3
    assert harness.consumer(10).bodies == [b"1", b"2", b"3"]


def test_messages_returned_without_a_consumer_are_delivered_once_and_in_order() -> None:
    """Message 2 was abandoned and message 3 stored again while there was no consumer: both are read from disk."""
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2", b"3")
    holder = harness.consumer(2)
    deleting = harness.consumer(deletes=True)
    deleting.grant(1)
    results = Results()
    harness.main_fragment.settlement.abandon(holder.lock_numbers()[1:], results)
    holder.leave()
    deleting.leave()
    harness.run_until_idle()
    assert results == [None]
    consumer = harness.consumer()
    consumer.drain()  # without credit, the drain only fills the window
    harness.run_until_idle()
    consumer.grant(10)
    assert consumer.bodies == [b"2", b"3"]


def test_reserved_credit_is_returned_when_the_store_fails() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2")
    consumer = harness.consumer(deletes=True)
    harness.fail_next_sync()
    consumer.grant(2)
    harness.run_until_idle()
    assert harness.failed_logs
    assert consumer.deliveries == []
    harness.reopen()
    harness.run_until_idle()
    assert consumer.bodies == [b"1", b"2"]


def test_a_drain_ends_after_messages_being_deleted_are_delivered() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    consumer = harness.consumer(deletes=True)
    consumer.credit = 5
    consumer.drain()
    harness.run_until_idle()
    assert consumer.bodies == [b"1"]
    assert consumer.drain_count == 1


@pytest.mark.parametrize(("leaves", "expected"), [(True, [b"1", b"2"]), (False, [b"2"])])
def test_a_browser_does_not_pass_a_message_that_may_still_come_back(*, leaves: bool, expected: list[bytes]) -> None:
    """A browser that has read up to a number may complete that range, so it must have seen every message in it."""
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2")
    consumer = harness.consumer(deletes=True)
    consumer.grant(1)
    while not harness.store.pending_commits:
        harness.step()
    if leaves:
        consumer.leave()
    seen: list[bytes] = []
    limits = {"twinbus:from-sequence-number": 1, "twinbus:to-sequence-number": 2}
    link, browser = attach_browser(
        lambda delivery: seen.append(Message(delivery[0]).data[0]),
        [harness.main_fragment],
        harness.deferred_calls.append,
        limits,
    )
    link.credit = 10
    browser.on_credit()
    harness.run_until_idle()
    assert seen == expected
    assert [error.condition for error in link.errors] == ["twinbus:range-seen"]
    assert harness.main_fragment.active_count == len(expected)


def test_a_drained_browser_sees_messages_that_come_back() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2")
    consumer = harness.consumer(deletes=True)
    consumer.grant(1)
    while not harness.store.pending_commits:
        harness.step()
    consumer.leave()
    seen: list[bytes] = []
    link, browser = attach_browser(
        lambda delivery: seen.append(Message(delivery[0]).data[0]),
        [harness.main_fragment],
        harness.deferred_calls.append,
    )
    link.credit, link.drain_requested = 10, True
    browser.on_credit()
    harness.run_until_idle()
    assert (seen, link.drains) == ([b"1", b"2"], 1)
