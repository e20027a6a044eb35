"""Sessions: one receiver at a time, messages in order, and the choice of the next session."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.broker.store_keys import SESSION_MESSAGES
from twinbus.model.errors import NotAllowed, SessionCannotBeLocked, SessionLockLost
from twinbus.model.queue import QueueDescription

SESSIONS = QueueDescription(requires_session=True, lock_duration_ms=30_000, max_delivery_count=3)


def harness_with(*messages: str) -> BrokerHarness:
    """Return a queue with sessions; "a1" is message 1 of session a."""
    harness = BrokerHarness(SESSIONS)
    for name in messages:
        harness.send_stored(name.encode(), session=name[0])
    return harness


def test_a_receiver_gets_the_messages_of_its_session_in_order() -> None:
    harness = harness_with("a1", "b1", "a2", "b2", "a3")
    consumer = harness.accept_session(b"a", 9)
    assert consumer.bodies == [b"a1", b"a2", b"a3"]
    harness.send_stored(b"b3", session="b")
    harness.send_stored(b"a4", session="a")
    assert consumer.bodies == [b"a1", b"a2", b"a3", b"a4"]


def test_a_message_without_session_is_refused() -> None:
    harness = harness_with()
    with pytest.raises(NotAllowed):
        harness.send(b"x")


def test_a_session_belongs_to_one_receiver() -> None:
    harness = harness_with("a1")
    first = harness.accept_session(b"a", 1)
    with pytest.raises(SessionCannotBeLocked):
        harness.accept_session(b"a")
    harness.main_fragment.dispatcher.remove(first)
    assert harness.accept_session(b"a", 1).bodies == [b"a1"]


def test_the_next_session_is_that_of_the_oldest_unlocked_message() -> None:
    harness = harness_with("b1", "a1", "b2", "c1")
    assert [harness.accept_session().session for _ in range(3)] == [b"b", b"a", b"c"]


def test_a_waiting_receiver_gets_the_first_session_with_messages() -> None:
    harness = harness_with()
    first, second = harness.accept_session(), harness.accept_session()
    harness.send_stored(b"a1", session="a")
    harness.send_stored(b"a2", session="a")
    assert (first.session, second.session) == (b"a", None)
    harness.send_stored(b"b1", session="b")
    assert second.session == b"b"


def test_a_receiver_that_cancels_gets_no_session() -> None:
    harness = harness_with()
    first, second = harness.accept_session(), harness.accept_session()
    assert harness.main_fragment.sessions is not None
    assert harness.main_fragment.sessions.cancel_accept(first)
    harness.send_stored(b"a1", session="a")
    assert (first.session, second.session) == (None, b"a")
    assert not harness.main_fragment.sessions.cancel_accept(second)


def test_an_empty_session_can_be_accepted_by_id_and_gets_later_messages() -> None:
    harness = harness_with()
    consumer = harness.accept_session(b"a", 5)
    assert consumer.session == b"a"
    harness.send_stored(b"a1", session="a")
    assert consumer.bodies == [b"a1"]


def test_the_empty_string_is_a_valid_session_id() -> None:
    harness = harness_with()
    harness.send_stored(b"x", session="")
    assert harness.accept_session(None, 1).session == b""


def test_closing_frees_the_session_at_once_and_counts_no_delivery() -> None:
    harness = harness_with("a1", "a2")
    first = harness.accept_session(b"a", 2)
    harness.main_fragment.dispatcher.remove(first)
    second = harness.accept_session(None, 9)
    assert second.bodies == [b"a1", b"a2"]
    assert [message.header.delivery_count for message in second.messages if message.header] == [0, 0]
    assert harness.main_fragment.settlement.complete(first.lock_numbers(), Results()) == first.lock_numbers()


def test_an_expired_lock_loses_the_session_and_counts_a_delivery() -> None:
    harness = harness_with("a1", "a2", "a3")
    first = harness.accept_session(b"a", 2)
    harness.advance(31)
    assert isinstance(first.errors[0], SessionLockLost)
    assert harness.main_fragment.settlement.complete(first.lock_numbers(), Results()) == first.lock_numbers()
    second = harness.accept_session(None, 9)
    assert second.bodies == [b"a1", b"a2", b"a3"]
    assert [message.header.delivery_count for message in second.messages if message.header] == [1, 1, 0]


def test_a_renewed_session_lock_stays_valid() -> None:
    harness = harness_with("a1")
    consumer = harness.accept_session(b"a", 1)
    assert harness.main_fragment.sessions is not None
    for _ in range(5):
        harness.advance(20)
        harness.main_fragment.sessions.renew(harness.main_fragment.sessions.find_lock(b"a", consumer))
    assert consumer.errors == []
    harness.advance(31)
    with pytest.raises(SessionLockLost):
        harness.main_fragment.sessions.find_lock(b"a", consumer)


def test_a_message_is_dead_lettered_after_too_many_lost_session_locks() -> None:
    harness = harness_with("a1", "a2")
    for _ in range(3):
        harness.accept_session(b"a", 1)
        harness.advance(31)
    assert harness.counts() == (1, 0, 0, 1)
    assert harness.accept_session(b"a", 5).bodies == [b"a2"]


def test_an_abandoned_message_comes_before_later_ones() -> None:
    harness = harness_with("a1", "a2", "a3")
    consumer = harness.accept_session(b"a", 1)
    harness.main_fragment.settlement.abandon(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    consumer.grant(9)
    harness.run_until_idle()
    assert consumer.bodies == [b"a1", b"a1", b"a2", b"a3"]


def test_settled_messages_leave_no_index_rows() -> None:
    harness = harness_with("a1", "a2", "a3", "a4")
    consumer = harness.accept_session(b"a", 4)
    first, second, third, fourth = consumer.lock_numbers()
    harness.main_fragment.settlement.complete([first], Results())
    harness.main_fragment.settlement.dead_letter([second], Results(), reason="bad")
    harness.main_fragment.settlement.defer([third, fourth], Results())
    harness.run_until_idle()
    assert harness.counts() == (0, 2, 0, 1)
    assert harness.index_row_count(SESSION_MESSAGES) == 0
    harness.main_fragment.dispatcher.remove(consumer)
    assert harness.accept_session().session is None


def test_receive_and_delete_empties_a_session() -> None:
    harness = harness_with("a1", "a2", "b1")
    consumer = harness.accept_session(b"a", 9, deletes=True)
    assert consumer.bodies == [b"a1", b"a2"]
    assert harness.counts() == (1, 0, 0, 0)


def test_a_drain_ends_after_all_messages_are_delivered() -> None:
    harness = harness_with("a1", "b1")
    consumer = harness.accept_session(b"a")
    consumer.credit = 5
    consumer.drain()
    harness.run_until_idle()
    assert (consumer.bodies, consumer.drain_count) == ([b"a1"], 1)


def test_sessions_beyond_the_memory_limit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.session_dispatcher.MAX_FREE_SESSIONS", 2)
    monkeypatch.setattr("twinbus.broker.fragment.session_dispatcher.SEARCH_BATCH_SIZE", 3)
    harness = BrokerHarness(SESSIONS)
    for number in range(20):
        harness.send_stored(b"x", session=f"s{number}")
    assert {harness.accept_session().session for _ in range(20)} == {b"s%d" % number for number in range(20)}
    assert harness.accept_session().session is None


def test_messages_beyond_one_read_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session_lock", "session_dispatcher"):
        monkeypatch.setattr(f"twinbus.broker.fragment.{module}.READ_AHEAD_MESSAGES", 3)
    harness = BrokerHarness(SESSIONS)
    expected = []
    for number in range(20):
        harness.send_stored(b"a%d" % number, session="a")
        harness.send_stored(b"b%d" % number, session="b")
        expected.append(b"a%d" % number)
    consumer = harness.accept_session(b"a", 4)
    for _ in range(8):
        consumer.grant(2)
        harness.run_until_idle()
    assert consumer.bodies == expected


def test_sessions_and_their_locks_survive_a_restart() -> None:
    harness = harness_with("a1", "b1", "b2")
    consumer = harness.accept_session(b"a", 1)
    harness.restart()
    with pytest.raises(SessionCannotBeLocked):
        harness.accept_session(b"a")
    consumer.grant(1)
    harness.run_until_idle()
    assert consumer.bodies == [b"a1", b"a1"]
    assert harness.accept_session(None, 5).bodies == [b"b1", b"b2"]


def test_session_states_outlive_messages() -> None:
    harness = harness_with("a1")
    results = Results()
    replies: list[object] = []
    harness.main_fragment.session_states.set(b"a", b"half done", results)
    harness.run_until_idle()
    assert results == [None]
    harness.accept_session(b"a", 1, deletes=True)
    harness.restart()
    harness.main_fragment.session_states.get(b"a", replies.append)
    harness.main_fragment.session_states.get(b"b", replies.append)
    harness.main_fragment.session_states.list_all(0, 10, replies.append)
    harness.run_until_idle()
    harness.main_fragment.session_states.set(b"a", None, results)
    harness.run_until_idle()
    harness.main_fragment.session_states.get(b"a", replies.append)
    harness.run_until_idle()
    assert replies == [b"half done", None, [b"a"], None]


def test_sessions_are_listed_page_by_page() -> None:
    harness = harness_with("c1", "a1", "b1", "a2", "a3")
    harness.main_fragment.session_states.set(b"z", b"state", Results())
    harness.run_until_idle()
    replies: list[object] = []
    for skip in (0, 2, 4):
        harness.main_fragment.session_states.list_all(skip, 2, replies.append)
        harness.run_until_idle()
    assert replies == [[b"a", b"b"], [b"c", b"z"], []]
    harness.main_fragment.session_states.list_updated(harness.clock.wall_ms() - 1, 0, 10, replies.append)
    harness.main_fragment.session_states.list_updated(harness.clock.wall_ms(), 0, 10, replies.append)
    harness.run_until_idle()
    assert replies[3:] == [[b"z"], []]
