"""Session states count against the quota of their entity, and are refused on a full disk; clearing one never is."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.rig import Rig
from tests.broker.topics import TopicRig
from tests.parts import part_of
from twinbus.broker import holdings
from twinbus.model.errors import QuotaExceeded, ServiceBusError, StoreUnavailable
from twinbus.model.queue import QueueDescription
from twinbus.store.protocol import Table

KEY_BYTES, TIME_BYTES = 11, 8
"""Of a state whose session has an id of one character."""
ROW = KEY_BYTES + TIME_BYTES


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr("twinbus.broker.part.MEGABYTE", 1)  # so that its 1,024 are bytes
    return Rig(QueueDescription(requires_session=True))


def outcome_of(rig: Rig, session: bytes, state: bytes | None) -> ServiceBusError | None:
    answers = Answers()
    rig.main.session_states.set(session, state, answers)
    rig.settle()
    (outcome,) = answers
    return outcome


def state_of(rig: Rig, session: bytes) -> object:
    found: list[object] = []
    rig.main.session_states.get(session, found.append)
    rig.settle()
    return found[0]


def size_of(rig: Rig) -> int:
    size = rig.main.holdings.size
    assert rig.queue.runtime().size_bytes == size
    return size


# --- the quota --------------------------------------------------------------------------------------------------------


def test_a_state_that_does_not_fit_is_refused_and_the_one_before_it_stays(rig: Rig) -> None:
    assert outcome_of(rig, b"a", bytes(600)) is None
    refused = outcome_of(rig, b"b", bytes(600))
    assert isinstance(refused, QuotaExceeded)
    assert "'orders'" in str(refused)
    assert "of 1,024" in str(refused)
    assert "clear session states" in str(refused)
    assert isinstance(outcome_of(rig, b"a", bytes(1_100)), QuotaExceeded)
    assert (state_of(rig, b"a"), state_of(rig, b"b")) == (bytes(600), None)
    assert size_of(rig) == ROW + 600


def test_states_leave_no_room_for_messages_and_messages_none_for_states(rig: Rig) -> None:
    assert outcome_of(rig, b"a", bytes(600)) is None
    with pytest.raises(QuotaExceeded):
        rig.send(bytes(500), session="a")
    assert outcome_of(rig, b"a", None) is None
    rig.stored(bytes(500), session="a")
    assert isinstance(outcome_of(rig, b"a", bytes(600)), QuotaExceeded)


def test_many_sessions_with_empty_states_fill_an_entity_too(rig: Rig) -> None:
    outcomes = [outcome_of(rig, b"%03d" % number, b"") for number in range(100)]
    stored = outcomes.index(next(one for one in outcomes if one is not None))
    assert stored == 1_024 // (ROW + 2)
    assert {type(one) for one in outcomes[stored:]} == {QuotaExceeded}


def test_a_state_that_replaces_another_counts_once(rig: Rig) -> None:
    for size in (700, 800, 750, 800):
        assert outcome_of(rig, b"a", bytes(size)) is None
        assert size_of(rig) == ROW + size
    assert outcome_of(rig, b"a", None) is None
    assert outcome_of(rig, b"a", None) is None
    assert outcome_of(rig, b"b", None) is None
    assert size_of(rig) == 0


def test_states_set_in_one_turn_are_counted_in_their_order(rig: Rig) -> None:
    answers, states = Answers(), rig.main.session_states
    for state in (bytes(300), None, bytes(900), bytes(200), bytes(2_000), bytes(100)):
        states.set(b"a", state, answers)
    states.set(b"b", bytes(400), answers)
    rig.settle_reads()
    states.set(b"a", bytes(150), answers)
    rig.settle()
    assert [type(one) for one in answers].count(QuotaExceeded) == 1
    assert len(answers) == 8
    assert (state_of(rig, b"a"), state_of(rig, b"b")) == (bytes(150), bytes(400))
    assert size_of(rig) == 2 * ROW + 550


def test_a_state_can_be_cleared_or_made_smaller_in_a_full_entity(rig: Rig) -> None:
    assert outcome_of(rig, b"a", bytes(900)) is None
    object.__setattr__(rig.queue.description, "max_size_mb", 100)
    assert isinstance(outcome_of(rig, b"a", bytes(901)), QuotaExceeded)
    for state in (bytes(900), bytes(899), b"", None):
        assert outcome_of(rig, b"a", state) is None
    assert size_of(rig) == 0


def test_a_state_of_a_subscription_counts_against_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.part.MEGABYTE", 1)
    rig = TopicRig()
    subscription = rig.subscribe("s", requires_session=True)
    answers = Answers()
    for session in (b"a", b"b", b"c"):
        part_of(subscription).main.session_states.set(session, bytes(400), answers)
        rig.settle()
    assert [type(one) for one in answers] == [type(None), type(None), QuotaExceeded]
    assert "'news'" in str(answers[2])
    with pytest.raises(QuotaExceeded):
        rig.publish(bytes(300))


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_on_a_full_disk_a_state_is_refused_like_a_message_unless_it_gets_smaller(rig: Rig) -> None:
    assert outcome_of(rig, b"a", b"half") is None
    rig.journal.refusal = "its disk is nearly full"
    for session, state in ((b"b", b"x"), (b"b", b""), (b"a", b"whole"), (b"a", b"same")):
        refused = outcome_of(rig, session, state)
        assert isinstance(refused, StoreUnavailable)
        assert "nearly full" in str(refused)
    assert state_of(rig, b"a") == b"half"
    assert outcome_of(rig, b"a", b"hal") is None
    assert outcome_of(rig, b"a", None) is None
    assert outcome_of(rig, b"b", None) is None
    rig.journal.refusal = None
    assert outcome_of(rig, b"b", b"x") is None


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_the_size_of_states_is_known_after_a_restart(rig: Rig) -> None:
    assert outcome_of(rig, b"a", bytes(600)) is None
    rig.restart()
    assert size_of(rig) == ROW + 600
    assert isinstance(outcome_of(rig, b"b", bytes(600)), QuotaExceeded)
    assert outcome_of(rig, b"a", None) is None
    rig.restart()
    assert size_of(rig) == 0


def test_states_that_an_earlier_version_has_written_are_counted_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.session_state.STATES_AT_ONCE", 2)
    for number in range(5):
        assert outcome_of(rig, b"%d" % number, bytes(100)) is None
    row = rig.disk.synced[Table.INDEX].values
    written = row[rig.main.holdings.marks_key]
    row[rig.main.holdings.marks_key] = b"\x02" + written[1:-8]  # as it was before states were counted
    assert holdings.unpack_marks(row[rig.main.holdings.marks_key]).size == 0
    rig.restart()
    assert size_of(rig) == 5 * (ROW + 100)
    assert row[rig.main.holdings.marks_key] == written
    rig.restart()
    assert size_of(rig) == 5 * (ROW + 100)
    assert isinstance(outcome_of(rig, b"9", bytes(500)), QuotaExceeded)


def test_a_state_that_waits_for_a_store_that_fails_is_refused_and_not_counted(rig: Rig) -> None:
    answers = Answers()
    rig.fail()
    rig.send(b"lost", session="s")
    rig.turn.popleft()()
    for session in (b"a", b"a", b"b"):
        rig.main.session_states.set(session, bytes(600), answers)
    rig.settle()
    assert {type(one) for one in answers} == {StoreUnavailable}
    assert len(answers) == 3
    rig.reopen()
    rig.settle()
    assert size_of(rig) == 0
    rig.wait(60)
    assert rig.journal.trouble is None


def test_who_lost_the_session_meanwhile_does_not_set_its_state(rig: Rig) -> None:
    consumer, answers = rig.accept(b"a"), Answers()
    sessions = rig.main.sessions
    assert sessions is not None
    rig.main.session_states.set(b"a", b"late", answers, lambda: sessions.find(b"a", consumer))
    consumer.leave()
    rig.settle()
    assert [type(one).__name__ for one in answers] == ["SessionLockLost"]
    assert state_of(rig, b"a") is None
