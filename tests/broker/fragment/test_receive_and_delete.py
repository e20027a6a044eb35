"""Receive and delete: a message is gone from the disk before it is delivered, and is received once or never."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.remote.fake_links import attach_browser
from twinbus.amqp.message import Message


def test_it_is_deleted_before_it_is_delivered() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    consumer = rig.consumer(deletes=True)
    consumer.grant(1)
    while rig.main_fragment.active_count:
        assert consumer.deliveries == []
        (
            rig.deferred_calls or rig.store_callbacks
        ).popleft()() if rig.deferred_calls or rig.store_callbacks else rig.store.step()
    assert consumer.bodies == [b"1"]


def test_what_was_meant_for_one_who_left_is_there_for_the_next() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2", b"3")
    first = rig.consumer(deletes=True)
    rig.run_until_idle()
    first.grant(2)
    rig.run_until_commit()
    first.leave()
    rig.run_until_idle()
    assert rig.main_fragment.active_count == 3
    assert rig.consumer(10).bodies == [b"1", b"2", b"3"]


def test_what_comes_back_while_nobody_is_there_is_delivered_once_and_in_order() -> None:
    """Message 2 was abandoned and message 3 stored again when there was no consumer: both are read from disk."""
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2", b"3")
    holder = rig.consumer(2)
    deleting = rig.consumer(deletes=True)
    deleting.grant(1)
    answers = Results()
    rig.main_fragment.settlement.abandon(holder.lock_numbers()[1:], answers)
    holder.leave()
    deleting.leave()
    rig.run_until_idle()
    assert answers == [None]
    consumer = rig.consumer()
    consumer.drain()  # without credit: it only reads ahead
    rig.run_until_idle()
    consumer.grant(10)
    assert consumer.bodies == [b"2", b"3"]


def test_room_is_given_back_when_the_store_fails() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2")
    consumer = rig.consumer(deletes=True)
    rig.fail_next_sync()
    consumer.grant(2)
    rig.run_until_idle()
    assert rig.failed_logs
    assert consumer.deliveries == []
    rig.reopen()
    rig.run_until_idle()
    assert consumer.bodies == [b"1", b"2"]


def test_a_drain_ends_after_what_is_being_deleted_was_delivered() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    consumer = rig.consumer(deletes=True)
    consumer.credit = 5
    consumer.drain()
    rig.run_until_idle()
    assert consumer.bodies == [b"1"]
    assert consumer.drain_count == 1


@pytest.mark.parametrize(("leaves", "is_seen"), [(True, [b"1", b"2"]), (False, [b"2"])])
def test_a_reader_does_not_read_beyond_a_message_before_it_is_known_whether_it_comes_back(
    *, leaves: bool, is_seen: list[bytes]
) -> None:
    """Who has read up to a number has seen all that there ever will be up to it, and may complete that."""
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2")
    consumer = rig.consumer(deletes=True)
    consumer.grant(1)
    while not rig.store.pending_commits:
        rig.step()
    if leaves:
        consumer.leave()
    seen: list[bytes] = []
    limits = {"twinbus:from-sequence-number": 1, "twinbus:to-sequence-number": 2}
    link, use = attach_browser(
        lambda delivery: seen.append(Message(delivery[0]).data[0]),
        [rig.main_fragment],
        rig.deferred_calls.append,
        limits,
    )
    link.credit = 10
    use.on_credit()
    rig.run_until_idle()
    assert seen == is_seen
    assert [error.condition for error in link.errors] == ["twinbus:range-seen"]
    assert rig.main_fragment.active_count == len(is_seen)


def test_a_drain_of_a_reader_shows_what_comes_back() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2")
    consumer = rig.consumer(deletes=True)
    consumer.grant(1)
    while not rig.store.pending_commits:
        rig.step()
    consumer.leave()
    seen: list[bytes] = []
    link, use = attach_browser(
        lambda delivery: seen.append(Message(delivery[0]).data[0]), [rig.main_fragment], rig.deferred_calls.append
    )
    link.credit, link.drain_requested = 10, True
    use.on_credit()
    rig.run_until_idle()
    assert (seen, link.drains) == ([b"1", b"2"], 1)
