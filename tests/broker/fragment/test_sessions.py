"""Sessions: one receiver at a time, its messages in order, and who gets the next one."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.broker.store_keys import SESSION_MESSAGES
from twinbus.model.errors import NotAllowed, SessionCannotBeLocked, SessionLockLost
from twinbus.model.queue import QueueDescription

SESSIONS = QueueDescription(requires_session=True, lock_duration_ms=30_000, max_delivery_count=3)


def filled(*messages: str) -> BrokerHarness:
    """A queue with sessions; "a1" is message 1 of session a."""
    rig = BrokerHarness(SESSIONS)
    for name in messages:
        rig.send_stored(name.encode(), session=name[0])
    return rig


def test_a_receiver_gets_the_messages_of_its_session_in_order() -> None:
    rig = filled("a1", "b1", "a2", "b2", "a3")
    consumer = rig.accept_session(b"a", 9)
    assert consumer.bodies == [b"a1", b"a2", b"a3"]
    rig.send_stored(b"b3", session="b")
    rig.send_stored(b"a4", session="a")
    assert consumer.bodies == [b"a1", b"a2", b"a3", b"a4"]


def test_a_message_without_session_is_refused() -> None:
    rig = filled()
    with pytest.raises(NotAllowed):
        rig.send(b"x")


def test_a_session_belongs_to_one_receiver() -> None:
    rig = filled("a1")
    first = rig.accept_session(b"a", 1)
    with pytest.raises(SessionCannotBeLocked):
        rig.accept_session(b"a")
    rig.main_fragment.dispatcher.remove(first)
    assert rig.accept_session(b"a", 1).bodies == [b"a1"]


def test_any_session_is_the_one_of_the_oldest_message_that_is_free() -> None:
    rig = filled("b1", "a1", "b2", "c1")
    assert [rig.accept_session().session for _ in range(3)] == [b"b", b"a", b"c"]


def test_who_waits_gets_the_first_session_that_has_messages() -> None:
    rig = filled()
    first, second = rig.accept_session(), rig.accept_session()
    rig.send_stored(b"a1", session="a")
    rig.send_stored(b"a2", session="a")
    assert (first.session, second.session) == (b"a", None)
    rig.send_stored(b"b1", session="b")
    assert second.session == b"b"


def test_who_gives_up_gets_none() -> None:
    rig = filled()
    first, second = rig.accept_session(), rig.accept_session()
    assert rig.main_fragment.sessions is not None
    assert rig.main_fragment.sessions.cancel_accept(first)
    rig.send_stored(b"a1", session="a")
    assert (first.session, second.session) == (None, b"a")
    assert not rig.main_fragment.sessions.cancel_accept(second)


def test_a_session_by_its_id_may_be_empty_and_gets_what_comes() -> None:
    rig = filled()
    consumer = rig.accept_session(b"a", 5)
    assert consumer.session == b"a"
    rig.send_stored(b"a1", session="a")
    assert consumer.bodies == [b"a1"]


def test_the_empty_id_is_a_session_like_any() -> None:
    rig = filled()
    rig.send_stored(b"x", session="")
    assert rig.accept_session(None, 1).session == b""


def test_closing_frees_the_session_at_once_and_counts_nothing() -> None:
    rig = filled("a1", "a2")
    first = rig.accept_session(b"a", 2)
    rig.main_fragment.dispatcher.remove(first)
    second = rig.accept_session(None, 9)
    assert second.bodies == [b"a1", b"a2"]
    assert [message.header.delivery_count for message in second.messages if message.header] == [0, 0]
    assert rig.main_fragment.settlement.complete(first.lock_numbers(), Results()) == first.lock_numbers()


def test_an_expired_lock_loses_the_session_and_counts_a_delivery() -> None:
    rig = filled("a1", "a2", "a3")
    first = rig.accept_session(b"a", 2)
    rig.advance(31)
    assert isinstance(first.errors[0], SessionLockLost)
    assert rig.main_fragment.settlement.complete(first.lock_numbers(), Results()) == first.lock_numbers()
    second = rig.accept_session(None, 9)
    assert second.bodies == [b"a1", b"a2", b"a3"]
    assert [message.header.delivery_count for message in second.messages if message.header] == [1, 1, 0]


def test_a_renewed_lock_lasts() -> None:
    rig = filled("a1")
    consumer = rig.accept_session(b"a", 1)
    assert rig.main_fragment.sessions is not None
    for _ in range(5):
        rig.advance(20)
        rig.main_fragment.sessions.renew(rig.main_fragment.sessions.find_lock(b"a", consumer))
    assert consumer.errors == []
    rig.advance(31)
    with pytest.raises(SessionLockLost):
        rig.main_fragment.sessions.find_lock(b"a", consumer)


def test_too_many_lost_deliveries_make_a_dead_letter() -> None:
    rig = filled("a1", "a2")
    for _ in range(3):
        rig.accept_session(b"a", 1)
        rig.advance(31)
    assert rig.counts() == (1, 0, 0, 1)
    assert rig.accept_session(b"a", 5).bodies == [b"a2"]


def test_an_abandoned_message_comes_before_those_behind_it() -> None:
    rig = filled("a1", "a2", "a3")
    consumer = rig.accept_session(b"a", 1)
    rig.main_fragment.settlement.abandon(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    consumer.grant(9)
    rig.run_until_idle()
    assert consumer.bodies == [b"a1", b"a1", b"a2", b"a3"]


def test_settled_messages_leave_nothing_behind() -> None:
    rig = filled("a1", "a2", "a3", "a4")
    consumer = rig.accept_session(b"a", 4)
    one, two, three, four = consumer.lock_numbers()
    rig.main_fragment.settlement.complete([one], Results())
    rig.main_fragment.settlement.dead_letter([two], Results(), reason="bad")
    rig.main_fragment.settlement.defer([three, four], Results())
    rig.run_until_idle()
    assert rig.counts() == (0, 2, 0, 1)
    assert rig.index_row_count(SESSION_MESSAGES) == 0
    rig.main_fragment.dispatcher.remove(consumer)
    assert rig.accept_session().session is None


def test_receive_and_delete_takes_a_session_empty() -> None:
    rig = filled("a1", "a2", "b1")
    consumer = rig.accept_session(b"a", 9, deletes=True)
    assert consumer.bodies == [b"a1", b"a2"]
    assert rig.counts() == (1, 0, 0, 0)


def test_a_drain_is_answered_when_all_was_given() -> None:
    rig = filled("a1", "b1")
    consumer = rig.accept_session(b"a")
    consumer.credit = 5
    consumer.drain()
    rig.run_until_idle()
    assert (consumer.bodies, consumer.drain_count) == ([b"a1"], 1)


def test_more_sessions_than_are_remembered_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.session_dispatcher.MAX_FREE_SESSIONS", 2)
    monkeypatch.setattr("twinbus.broker.fragment.session_dispatcher.SEARCH_BATCH_SIZE", 3)
    rig = BrokerHarness(SESSIONS)
    for number in range(20):
        rig.send_stored(b"x", session=f"s{number}")
    assert {rig.accept_session().session for _ in range(20)} == {b"s%d" % number for number in range(20)}
    assert rig.accept_session().session is None


def test_more_messages_than_are_read_at_once_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session_lock", "session_dispatcher"):
        monkeypatch.setattr(f"twinbus.broker.fragment.{module}.READ_AHEAD_MESSAGES", 3)
    rig = BrokerHarness(SESSIONS)
    expected = []
    for number in range(20):
        rig.send_stored(b"a%d" % number, session="a")
        rig.send_stored(b"b%d" % number, session="b")
        expected.append(b"a%d" % number)
    consumer = rig.accept_session(b"a", 4)
    for _ in range(8):
        consumer.grant(2)
        rig.run_until_idle()
    assert consumer.bodies == expected


def test_sessions_are_found_again_after_a_restart_and_held_ones_stay_held() -> None:
    rig = filled("a1", "b1", "b2")
    consumer = rig.accept_session(b"a", 1)
    rig.restart()
    with pytest.raises(SessionCannotBeLocked):
        rig.accept_session(b"a")
    consumer.grant(1)
    rig.run_until_idle()
    assert consumer.bodies == [b"a1", b"a1"]
    assert rig.accept_session(None, 5).bodies == [b"b1", b"b2"]


def test_states_live_longer_than_messages() -> None:
    rig = filled("a1")
    answers = Results()
    found: list[object] = []
    rig.main_fragment.session_states.set(b"a", b"half done", answers)
    rig.run_until_idle()
    assert answers == [None]
    rig.accept_session(b"a", 1, deletes=True)
    rig.restart()
    rig.main_fragment.session_states.get(b"a", found.append)
    rig.main_fragment.session_states.get(b"b", found.append)
    rig.main_fragment.session_states.list_all(0, 10, found.append)
    rig.run_until_idle()
    rig.main_fragment.session_states.set(b"a", None, answers)
    rig.run_until_idle()
    rig.main_fragment.session_states.get(b"a", found.append)
    rig.run_until_idle()
    assert found == [b"half done", None, [b"a"], None]


def test_sessions_are_listed_page_by_page() -> None:
    rig = filled("c1", "a1", "b1", "a2", "a3")
    rig.main_fragment.session_states.set(b"z", b"state", Results())
    rig.run_until_idle()
    found: list[object] = []
    for skip in (0, 2, 4):
        rig.main_fragment.session_states.list_all(skip, 2, found.append)
        rig.run_until_idle()
    assert found == [[b"a", b"b"], [b"c", b"z"], []]
    rig.main_fragment.session_states.list_updated(rig.clock.wall_ms() - 1, 0, 10, found.append)
    rig.main_fragment.session_states.list_updated(rig.clock.wall_ms(), 0, 10, found.append)
    rig.run_until_idle()
    assert found[3:] == [[b"z"], []]
