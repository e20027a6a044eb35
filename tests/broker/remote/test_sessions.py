"""Sessions in fragments of another process: one receiver at a time, messages in order, lost with their owner."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.model.errors import SessionCannotBeLocked, SessionLockLost
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription

SESSIONS = QueueDescription(enable_partitioning=True, requires_session=True)


def test_a_session_of_any_fragment_is_accepted_by_its_id() -> None:
    for fragment in range(4):
        harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(fragment)
        harness.store_messages(*[message(b"%d" % number, session=name) for number in range(5)])
        receiver = harness.accept_session(name.encode(), 10)
        assert [lock.session_id for lock in receiver.session_locks] == [name.encode()]
        assert receiver.bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_sent_later_to_a_session_come_in_order() -> None:
    harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    receiver = harness.accept_session(name.encode(), 100)
    for number in range(20):
        harness.store_messages(
            message(b"%d" % number, session=name), by=(harness.first_process, harness.last_process)[number % 2]
        )
    assert receiver.bodies == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("deletes", [False, True])
def test_messages_that_arrived_too_late_are_redelivered_in_order(deletes: bool) -> None:  # noqa: FBT001
    harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    harness.store_messages(*[message(b"%d" % number, session=name) for number in range(5)])
    receiver = harness.accept_session(name.encode(), deletes=deletes)
    harness.silent_processes.add(1)
    receiver.grant(2)
    harness.advance(0.3)
    harness.end_silence()
    receiver.grant(10)
    harness.run_until_idle()
    assert receiver.bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_each_receiver_of_any_session_gets_one_session_with_messages() -> None:
    harness = BrokerHarness(SESSIONS, processes=2)
    names = [key_for_fragment(1), key_for_fragment(2), key_for_fragment(3)]
    harness.store_messages(*[message(session=name) for name in names])
    receivers = [harness.accept_session(credit=10) for _ in range(4)]
    accepted = [lock.session_id.decode() for receiver in receivers for lock in receiver.session_locks]
    assert sorted(accepted) == sorted(names)
    harness.store_messages(message(session=key_for_fragment(5)))
    assert [lock.session_id for lock in receivers[3].session_locks] == [key_for_fragment(5).encode()]


def test_a_session_of_another_process_cannot_be_accepted_twice() -> None:
    harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    first = harness.accept_session(name.encode(), 10)
    second = harness.accept_session(name.encode(), 10)
    assert first.session_locks
    assert not second.session_locks
    assert isinstance(second.errors[0], SessionCannotBeLocked)


def test_a_detached_receiver_frees_its_session_and_messages() -> None:
    harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    harness.store_messages(message(b"a", session=name), message(b"b", session=name))
    first = harness.accept_session(name.encode(), 10)
    assert first.bodies == [b"a", b"b"]
    first.leave()
    harness.run_until_idle()
    second = harness.accept_session(credit=10, by=harness.last_process)
    assert second.bodies == [b"a", b"b"]


def test_the_receiver_of_an_expired_session_is_notified() -> None:
    harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    receiver = harness.accept_session(name.encode(), 10)
    harness.advance(61.0)
    assert isinstance(receiver.errors[0], SessionLockLost)


def test_received_and_deleted_messages_do_not_come_back_when_the_session_is_lost() -> None:
    harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    harness.store_messages(message(b"once", session=name))
    receiver = harness.accept_session(name.encode(), 1, deletes=True)
    assert receiver.bodies == [b"once"]
    harness.store_messages(message(b"next", session=name))
    harness.silent_processes.add(0)
    harness.advance(61.0)
    receiver.grant(1)  # the receiver does not know yet that it has lost its session
    harness.end_silence()
    assert receiver.errors
    assert harness.accept_session(name.encode(), 10).bodies == [b"next"]


def test_a_session_is_lost_when_the_owner_disconnects() -> None:
    harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    receiver = harness.accept_session(name.encode(), 10)
    harness.disconnect()
    assert isinstance(receiver.errors[0], SessionLockLost)
    harness.connect()
    assert harness.accept_session(name.encode(), 10).session_locks


def test_a_receiver_keeps_waiting_for_any_session_when_an_owner_reconnects() -> None:
    harness = BrokerHarness(SESSIONS, processes=2)
    receiver = harness.accept_session(credit=10)
    harness.disconnect()
    harness.connect()
    harness.store_messages(message(b"late", session=key_for_fragment(1)), by=harness.last_process)
    assert receiver.bodies == [b"late"]


def test_messages_of_a_session_are_completed_by_the_owner() -> None:
    harness, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    harness.store_messages(message(session=name), message(session=name))
    receiver, results = harness.accept_session(name.encode(), 10), Results()
    fragment = receiver.multi_fragment_receiver.fragments[0]
    fragment.settlement.complete(fragment.lock_numbers([tag for _, tag in receiver.deliveries]), results)
    harness.run_until_idle()
    assert results == [None]
    assert sum(harness.counts_by_fragment()) == 0


def test_a_receiver_at_its_lock_limit_is_not_notified_repeatedly() -> None:
    harness, name = BrokerHarness(SESSIONS, limits=NamespaceLimits(max_locks=1), processes=2), key_for_fragment(1)
    harness.store_messages(message(b"a", session=name), message(b"b", session=name))
    receiver = harness.accept_session(name.encode())
    receiver.grant(10)
    harness.run_until_idle(1_000)
    assert receiver.bodies == [b"a"]
    fragment = receiver.multi_fragment_receiver.fragments[0]
    fragment.settlement.complete(fragment.lock_numbers([receiver.deliveries[0][1]]), Results())
    harness.run_until_idle(1_000)
    assert receiver.bodies == [b"a", b"b"]


def test_several_deleting_receivers_of_one_fragment_all_get_their_messages() -> None:
    harness, names = BrokerHarness(SESSIONS, processes=2), [key_for_fragment(1, salt) for salt in range(3)]
    receivers = [harness.accept_session(name.encode(), 1, deletes=True) for name in names]
    for _ in range(2):
        harness.store_messages(*[message(session=name) for name in names])
    for receiver in receivers:
        receiver.grant(1)
    while harness.peer_messages:
        harness.peer_messages.popleft()()  # as if all of them came in one read
    harness.run_until_idle()
    assert [len(receiver.bodies) for receiver in receivers] == [2, 2, 2]
