"""Events between a disk read and its result are neither lost nor processed twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import message
from tests.support.parts import local_part
from twinbus.broker.fragment import record_lookup
from twinbus.model.errors import SessionLockLost
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    import pytest

SESSIONS = QueueDescription(requires_session=True, lock_duration_ms=30_000)


def start_disk_read(harness: BrokerHarness, seconds: float) -> None:
    """Advance the clock and start the scan for due messages; the store has read, but its result is pending."""
    harness.clock.advance(seconds)
    harness.namespace.timers.run_due()
    harness.store.step()


def test_a_message_scheduled_during_an_empty_scan_becomes_active() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"cancelled", due_ms=harness.clock.wall_ms() + 1_000)
    harness.main_fragment.schedule.cancel([1], Results())
    harness.run_until_idle()
    start_disk_read(harness, 1.0)
    harness.send_stored(b"later", due_ms=harness.clock.wall_ms() + 2_000)
    harness.advance(2.0)
    assert harness.counts() == (1, 0, 0, 0)


def test_a_message_already_expired_when_stored_during_a_scan_is_dropped() -> None:
    harness = BrokerHarness()
    late = harness.incoming_batch(message(b"late", ttl_ms=1))
    harness.send_stored(b"first", ttl_ms=500)
    start_disk_read(harness, 1.0)
    harness.queue.send(late, Results())
    harness.run_until_idle()
    harness.advance(1.0)
    assert harness.counts() == (0, 0, 0, 0)


def step(harness: BrokerHarness) -> None:
    if harness.deferred_calls:
        harness.deferred_calls.popleft()()
    elif harness.store_callbacks:
        harness.store_callbacks.popleft()()
    else:
        harness.store.step()


def test_a_message_whose_cancellation_failed_with_the_store_becomes_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lookup, "AT_ONCE", 1)  # so that cancelling many messages takes several reads
    harness = BrokerHarness()
    for _ in range(2):
        harness.send_stored(b"", due_ms=harness.clock.wall_ms() + 1_000)
    for _ in range(20):
        harness.send_stored(b"", due_ms=harness.clock.wall_ms() + 3_600_000)
    start_disk_read(harness, 1.0)
    cancelled = Results()
    harness.main_fragment.schedule.cancel([1, *range(3, 23)], cancelled)
    while harness.counts()[0] < 1:
        step(harness)
    sent = harness.send(b"sent")
    while not sent:
        step(harness)
    assert not cancelled
    harness.fail_next_sync()
    harness.send(b"lost")
    harness.run_until_idle()
    harness.reopen()
    harness.run_until_idle()
    harness.advance(1.0)
    assert harness.counts() == (3, 0, 20, 0)


def test_deferred_messages_are_not_locked_if_the_session_is_closed_meanwhile() -> None:
    harness = BrokerHarness(SESSIONS)
    harness.send_stored(b"1", session="s")
    consumer = harness.accept_session(b"s", 1)
    harness.main_fragment.settlement.defer(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    replies: list[object] = []
    harness.main_fragment.deferral.receive(
        [1], replies.append, receive_and_delete=False, session_id=b"s", session_locked_until_ms=1
    )
    consumer.leave()
    harness.run_until_idle()
    assert isinstance(replies.pop(), SessionLockLost)
    harness.accept_session(b"s")
    harness.main_fragment.deferral.receive(
        [1], replies.append, receive_and_delete=False, session_id=b"s", session_locked_until_ms=1
    )
    harness.run_until_idle()
    assert isinstance(replies.pop(), list)


def test_two_concurrent_resubmissions_of_a_dead_letter_do_not_duplicate_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lookup, "AT_ONCE", 1)
    harness = BrokerHarness()
    harness.send_stored(*[b"%d" % number for number in range(12)])
    harness.main_fragment.settlement.dead_letter(harness.consumer(12).lock_numbers(), Results())
    harness.run_until_idle()
    replies: list[object] = []
    local_part(harness.queue).resubmit(list(range(1, 13)), None, harness.namespace.intake, replies.append)
    local_part(harness.queue).resubmit([1], None, harness.namespace.intake, replies.append)
    harness.run_until_idle()
    active, *_, dead = harness.counts()
    assert active + dead == 12
    assert len(replies) == 2


def test_a_session_receiver_gets_messages_when_another_frees_a_lock() -> None:
    harness = BrokerHarness(SESSIONS, limits=NamespaceLimits(max_locks=1))
    harness.send_stored(b"1", session="a")
    harness.send_stored(b"2", session="b")
    first, second = harness.accept_session(b"a", 1), harness.accept_session(b"b", 1)
    assert second.bodies == []
    harness.main_fragment.settlement.complete(first.lock_numbers(), Results())
    harness.run_until_idle()
    assert second.bodies == [b"2"]


def test_a_session_receiver_gets_messages_when_another_detaches() -> None:
    harness = BrokerHarness(SESSIONS, limits=NamespaceLimits(max_locks=1))
    harness.send_stored(b"1", session="a")
    harness.send_stored(b"2", session="b")
    first, second = harness.accept_session(b"a", 1), harness.accept_session(b"b", 1)
    first.leave()
    harness.run_until_idle()
    assert second.bodies == [b"2"]


def test_a_session_lock_renewed_for_a_shorter_duration_expires_earlier() -> None:
    harness = BrokerHarness(SESSIONS)
    consumer = harness.accept_session(b"s")
    shorter = QueueDescription(requires_session=True, lock_duration_ms=5_000)
    harness.namespace.update_queue("orders", shorter, updated_ms=0)
    assert consumer.session_lock is not None
    harness.main_fragment.renew_session_lock(consumer.session_lock)
    harness.advance(5.0)
    assert consumer.is_closed
    assert harness.accept_session(b"s").session == b"s"
