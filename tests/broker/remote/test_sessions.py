"""Sessions of fragments that another process has: one receiver at a time, in order, lost with their owner."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.model.errors import SessionCannotBeLocked, SessionLockLost
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription

SESSIONS = QueueDescription(enable_partitioning=True, requires_session=True)


def test_a_session_is_had_by_its_name_wherever_it_lies() -> None:
    for fragment in range(4):
        rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(fragment)
        rig.store_messages(*[message(b"%d" % number, session=name) for number in range(5)])
        receiver = rig.accept_session(name.encode(), 10)
        assert [hold.session_id for hold in receiver.session_locks] == [name.encode()]
        assert receiver.bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_what_is_sent_to_a_session_later_comes_in_order() -> None:
    rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    receiver = rig.accept_session(name.encode(), 100)
    for number in range(20):
        rig.store_messages(message(b"%d" % number, session=name), by=(rig.first_process, rig.last_process)[number % 2])
    assert receiver.bodies == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("deletes", [False, True])
def test_what_came_too_late_and_was_given_back_comes_again_in_order(deletes: bool) -> None:  # noqa: FBT001
    rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    rig.store_messages(*[message(b"%d" % number, session=name) for number in range(5)])
    receiver = rig.accept_session(name.encode(), deletes=deletes)
    rig.silent_processes.add(1)
    receiver.grant(2)
    rig.advance(0.3)
    rig.end_silence()
    receiver.grant(10)
    rig.run_until_idle()
    assert receiver.bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_any_session_is_one_that_has_messages_and_only_one() -> None:
    rig = BrokerHarness(SESSIONS, processes=2)
    names = [key_for_fragment(1), key_for_fragment(2), key_for_fragment(3)]
    rig.store_messages(*[message(session=name) for name in names])
    receivers = [rig.accept_session(credit=10) for _ in range(4)]
    had = [hold.session_id.decode() for receiver in receivers for hold in receiver.session_locks]
    assert sorted(had) == sorted(names)
    rig.store_messages(message(session=key_for_fragment(5)))
    assert [hold.session_id for hold in receivers[3].session_locks] == [key_for_fragment(5).encode()]


def test_a_session_that_another_process_has_lent_cannot_be_had_twice() -> None:
    rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    first = rig.accept_session(name.encode(), 10)
    second = rig.accept_session(name.encode(), 10)
    assert first.session_locks
    assert not second.session_locks
    assert isinstance(second.errors[0], SessionCannotBeLocked)


def test_a_receiver_that_goes_frees_its_session_and_what_it_had() -> None:
    rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    rig.store_messages(message(b"a", session=name), message(b"b", session=name))
    first = rig.accept_session(name.encode(), 10)
    assert first.bodies == [b"a", b"b"]
    first.leave()
    rig.run_until_idle()
    second = rig.accept_session(credit=10, by=rig.last_process)
    assert second.bodies == [b"a", b"b"]


def test_a_session_expires_where_it_lies_and_its_receiver_is_told() -> None:
    rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    receiver = rig.accept_session(name.encode(), 10)
    rig.advance(61.0)
    assert isinstance(receiver.errors[0], SessionLockLost)


def test_what_was_received_and_deleted_does_not_come_back_when_the_session_is_lost() -> None:
    rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    rig.store_messages(message(b"once", session=name))
    receiver = rig.accept_session(name.encode(), 1, deletes=True)
    assert receiver.bodies == [b"once"]
    rig.store_messages(message(b"next", session=name))
    rig.silent_processes.add(0)
    rig.advance(61.0)
    receiver.grant(1)  # it does not know yet that it has lost its session
    rig.end_silence()
    assert receiver.errors
    assert rig.accept_session(name.encode(), 10).bodies == [b"next"]


def test_a_session_is_lost_with_its_owner() -> None:
    rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    receiver = rig.accept_session(name.encode(), 10)
    rig.disconnect()
    assert isinstance(receiver.errors[0], SessionLockLost)
    rig.connect()
    assert rig.accept_session(name.encode(), 10).session_locks


def test_who_waits_for_any_session_waits_on_when_an_owner_goes_and_comes_back() -> None:
    rig = BrokerHarness(SESSIONS, processes=2)
    receiver = rig.accept_session(credit=10)
    rig.disconnect()
    rig.connect()
    rig.store_messages(message(b"late", session=key_for_fragment(1)), by=rig.last_process)
    assert receiver.bodies == [b"late"]


def test_messages_of_a_session_are_completed_where_they_lie() -> None:
    rig, name = BrokerHarness(SESSIONS, processes=2), key_for_fragment(1)
    rig.store_messages(message(session=name), message(session=name))
    receiver, answers = rig.accept_session(name.encode(), 10), Results()
    fragment = receiver.multi_fragment_receiver.fragments[0]
    fragment.settlement.complete(fragment.lock_numbers([tag for _, tag in receiver.deliveries]), answers)
    rig.run_until_idle()
    assert answers == [None]
    assert sum(rig.counts_by_fragment()) == 0


def test_who_may_have_no_more_locks_is_not_told_again_and_again_that_there_is_something() -> None:
    rig, name = BrokerHarness(SESSIONS, limits=NamespaceLimits(max_locks=1), processes=2), key_for_fragment(1)
    rig.store_messages(message(b"a", session=name), message(b"b", session=name))
    receiver = rig.accept_session(name.encode())
    receiver.grant(10)
    rig.run_until_idle(1_000)
    assert receiver.bodies == [b"a"]
    fragment = receiver.multi_fragment_receiver.fragments[0]
    fragment.settlement.complete(fragment.lock_numbers([receiver.deliveries[0][1]]), Results())
    rig.run_until_idle(1_000)
    assert receiver.bodies == [b"a", b"b"]


def test_several_receivers_of_one_fragment_for_whom_messages_are_deleted_together_are_all_served() -> None:
    rig, names = BrokerHarness(SESSIONS, processes=2), [key_for_fragment(1, salt) for salt in range(3)]
    receivers = [rig.accept_session(name.encode(), 1, deletes=True) for name in names]
    for _ in range(2):
        rig.store_messages(*[message(session=name) for name in names])
    for receiver in receivers:
        receiver.grant(1)
    while rig.peer_messages:
        rig.peer_messages.popleft()()  # all of them came in one read
    rig.run_until_idle()
    assert [len(receiver.bodies) for receiver in receivers] == [2, 2, 2]
