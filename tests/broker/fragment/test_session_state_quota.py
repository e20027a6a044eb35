"""Session states count against the quota of their entity and are refused on a full disk; clearing one always works."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.topic_harness import TopicHarness
from tests.support.parts import local_part
from twinbus.broker.fragment import message_table
from twinbus.model.errors import QuotaExceeded, ServiceBusError, StoreUnavailable
from twinbus.model.queue import QueueDescription
from twinbus.store.protocol import Table

KEY_BYTES, TIME_BYTES = 11, 8
"""Sizes for a session id of one character."""
ROW = KEY_BYTES + TIME_BYTES


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> BrokerHarness:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)  # so that the limit is 1,024 bytes
    return BrokerHarness(QueueDescription(requires_session=True))


def set_state(harness: BrokerHarness, session: bytes, state: bytes | None) -> ServiceBusError | None:
    results = Results()
    harness.main_fragment.session_states.set(session, state, results)
    harness.run_until_idle()
    (outcome,) = results
    return outcome


def state_of(harness: BrokerHarness, session: bytes) -> object:
    replies: list[object] = []
    harness.main_fragment.session_states.get(session, replies.append)
    harness.run_until_idle()
    return replies[0]


def size_of(harness: BrokerHarness) -> int:
    size = harness.main_fragment.message_table.size
    assert harness.queue.runtime().size_bytes == size
    return size


# --- the quota --------------------------------------------------------------------------------------------------------


def test_a_state_that_exceeds_the_quota_is_refused_and_the_previous_one_stays(harness: BrokerHarness) -> None:
    assert set_state(harness, b"a", bytes(600)) is None
    refused = set_state(harness, b"b", bytes(600))
    assert isinstance(refused, QuotaExceeded)
    assert "'orders'" in str(refused)
    assert "of 1,024" in str(refused)
    assert "clear session states" in str(refused)
    assert isinstance(set_state(harness, b"a", bytes(1_100)), QuotaExceeded)
    assert (state_of(harness, b"a"), state_of(harness, b"b")) == (bytes(600), None)
    assert size_of(harness) == ROW + 600


def test_states_and_messages_share_the_quota(harness: BrokerHarness) -> None:
    assert set_state(harness, b"a", bytes(600)) is None
    with pytest.raises(QuotaExceeded):
        harness.send(bytes(500), session="a")
    assert set_state(harness, b"a", None) is None
    harness.send_stored(bytes(500), session="a")
    assert isinstance(set_state(harness, b"a", bytes(600)), QuotaExceeded)


def test_empty_states_of_many_sessions_fill_an_entity(harness: BrokerHarness) -> None:
    outcomes = [set_state(harness, b"%03d" % number, b"") for number in range(100)]
    stored = outcomes.index(next(outcome for outcome in outcomes if outcome is not None))
    assert stored == 1_024 // (ROW + 2)
    assert {type(outcome) for outcome in outcomes[stored:]} == {QuotaExceeded}


def test_a_state_that_replaces_another_counts_once(harness: BrokerHarness) -> None:
    for size in (700, 800, 750, 800):
        assert set_state(harness, b"a", bytes(size)) is None
        assert size_of(harness) == ROW + size
    assert set_state(harness, b"a", None) is None
    assert set_state(harness, b"a", None) is None
    assert set_state(harness, b"b", None) is None
    assert size_of(harness) == 0


def test_states_set_in_one_turn_are_counted_in_order(harness: BrokerHarness) -> None:
    results, states = Results(), harness.main_fragment.session_states
    for state in (bytes(300), None, bytes(900), bytes(200), bytes(2_000), bytes(100)):
        states.set(b"a", state, results)
    states.set(b"b", bytes(400), results)
    harness.run_until_commit()
    states.set(b"a", bytes(150), results)
    harness.run_until_idle()
    assert [type(result) for result in results].count(QuotaExceeded) == 1
    assert len(results) == 8
    assert (state_of(harness, b"a"), state_of(harness, b"b")) == (bytes(150), bytes(400))
    assert size_of(harness) == 2 * ROW + 550


def test_a_state_can_be_cleared_or_made_smaller_in_a_full_entity(harness: BrokerHarness) -> None:
    assert set_state(harness, b"a", bytes(900)) is None
    object.__setattr__(harness.queue.description, "max_size_mb", 100)
    assert isinstance(set_state(harness, b"a", bytes(901)), QuotaExceeded)
    for state in (bytes(900), bytes(899), b"", None):
        assert set_state(harness, b"a", state) is None
    assert size_of(harness) == 0


def test_a_state_of_a_subscription_counts_against_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)
    harness = TopicHarness()
    subscription = harness.subscribe("s", requires_session=True)
    results = Results()
    for session in (b"a", b"b", b"c"):
        local_part(subscription).main.session_states.set(session, bytes(400), results)
        harness.run_until_idle()
    assert [type(result) for result in results] == [type(None), type(None), QuotaExceeded]
    assert "'news'" in str(results[2])
    with pytest.raises(QuotaExceeded):
        harness.publish(bytes(300))


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_a_state_unless_it_gets_smaller(harness: BrokerHarness) -> None:
    assert set_state(harness, b"a", b"half") is None
    harness.commit_log.disk_full_reason = "its disk is nearly full"
    for session, state in ((b"b", b"x"), (b"b", b""), (b"a", b"whole"), (b"a", b"same")):
        refused = set_state(harness, session, state)
        assert isinstance(refused, StoreUnavailable)
        assert "nearly full" in str(refused)
    assert state_of(harness, b"a") == b"half"
    assert set_state(harness, b"a", b"hal") is None
    assert set_state(harness, b"a", None) is None
    assert set_state(harness, b"b", None) is None
    harness.commit_log.disk_full_reason = None
    assert set_state(harness, b"b", b"x") is None


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_the_size_of_states_is_known_after_a_restart(harness: BrokerHarness) -> None:
    assert set_state(harness, b"a", bytes(600)) is None
    harness.restart()
    assert size_of(harness) == ROW + 600
    assert isinstance(set_state(harness, b"b", bytes(600)), QuotaExceeded)
    assert set_state(harness, b"a", None) is None
    harness.restart()
    assert size_of(harness) == 0


def test_states_written_by_an_earlier_version_are_counted_once(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.session_state.SCAN_BATCH_SIZE", 2)
    for number in range(5):
        assert set_state(harness, b"%d" % number, bytes(100)) is None
    row = harness.disk.synced[Table.INDEX].values
    written = row[harness.main_fragment.message_table.counters_key]
    row[harness.main_fragment.message_table.counters_key] = (
        b"\x02" + written[1:-8]
    )  # the format before states were counted
    assert message_table.unpack_counters(row[harness.main_fragment.message_table.counters_key]).size == 0
    harness.restart()
    assert size_of(harness) == 5 * (ROW + 100)
    assert row[harness.main_fragment.message_table.counters_key] == written
    harness.restart()
    assert size_of(harness) == 5 * (ROW + 100)
    assert isinstance(set_state(harness, b"9", bytes(500)), QuotaExceeded)


def test_a_pending_state_is_refused_and_not_counted_if_the_store_fails(harness: BrokerHarness) -> None:
    results = Results()
    harness.fail_next_sync()
    harness.send(b"lost", session="s")
    harness.deferred_calls.popleft()()
    for session in (b"a", b"a", b"b"):
        harness.main_fragment.session_states.set(session, bytes(600), results)
    harness.run_until_idle()
    assert {type(result) for result in results} == {StoreUnavailable}
    assert len(results) == 3
    harness.reopen()
    harness.run_until_idle()
    assert size_of(harness) == 0
    harness.advance(60)
    assert harness.commit_log.unavailable_reason is None


def test_a_receiver_that_lost_the_session_cannot_set_its_state(harness: BrokerHarness) -> None:
    consumer, results = harness.accept_session(b"a"), Results()
    sessions = harness.main_fragment.sessions
    assert sessions is not None
    harness.main_fragment.session_states.set(b"a", b"late", results, lambda: sessions.find_lock(b"a", consumer))
    consumer.leave()
    harness.run_until_idle()
    assert [type(result).__name__ for result in results] == ["SessionLockLost"]
    assert state_of(harness, b"a") is None
