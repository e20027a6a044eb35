"""What is asked for or falls due between a look at the disk and its answer is neither forgotten nor done twice."""

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
    """Time passes, and what is due is looked for: the store has looked, and has not answered yet."""
    harness.clock.advance(seconds)
    harness.namespace.timers.run_due()
    harness.store.step()


def test_what_is_scheduled_during_a_look_that_finds_nothing_becomes_active() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"cancelled", due_ms=rig.clock.wall_ms() + 1_000)
    rig.main_fragment.schedule.cancel([1], Results())
    rig.run_until_idle()
    start_disk_read(rig, 1.0)
    rig.send_stored(b"later", due_ms=rig.clock.wall_ms() + 2_000)
    rig.advance(2.0)
    assert rig.counts() == (1, 0, 0, 0)


def test_what_has_expired_when_it_is_stored_during_a_look_does_not_stay() -> None:
    rig = BrokerHarness()
    late = rig.incoming_batch(message(b"late", ttl_ms=1))
    rig.send_stored(b"first", ttl_ms=500)
    start_disk_read(rig, 1.0)
    rig.queue.send(late, Results())
    rig.run_until_idle()
    rig.advance(1.0)
    assert rig.counts() == (0, 0, 0, 0)


def step(harness: BrokerHarness) -> None:
    if harness.deferred_calls:
        harness.deferred_calls.popleft()()
    elif harness.store_callbacks:
        harness.store_callbacks.popleft()()
    else:
        harness.store.step()


def test_what_was_being_cancelled_when_the_store_failed_becomes_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lookup, "AT_ONCE", 1)  # a cancellation of many takes a while
    rig = BrokerHarness()
    for _ in range(2):
        rig.send_stored(b"", due_ms=rig.clock.wall_ms() + 1_000)
    for _ in range(20):
        rig.send_stored(b"", due_ms=rig.clock.wall_ms() + 3_600_000)
    start_disk_read(rig, 1.0)
    cancelled = Results()
    rig.main_fragment.schedule.cancel([1, *range(3, 23)], cancelled)
    while rig.counts()[0] < 1:
        step(rig)
    sent = rig.send(b"sent")
    while not sent:
        step(rig)
    assert not cancelled
    rig.fail_next_sync()
    rig.send(b"lost")
    rig.run_until_idle()
    rig.reopen()
    rig.run_until_idle()
    rig.advance(1.0)
    assert rig.counts() == (3, 0, 20, 0)


def test_deferred_messages_of_a_session_that_is_left_meanwhile_are_not_locked() -> None:
    rig = BrokerHarness(SESSIONS)
    rig.send_stored(b"1", session="s")
    consumer = rig.accept_session(b"s", 1)
    rig.main_fragment.settlement.defer(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    found: list[object] = []
    rig.main_fragment.deferral.receive(
        [1], found.append, receive_and_delete=False, session_id=b"s", session_locked_until_ms=1
    )
    consumer.leave()
    rig.run_until_idle()
    assert isinstance(found.pop(), SessionLockLost)
    rig.accept_session(b"s")
    rig.main_fragment.deferral.receive(
        [1], found.append, receive_and_delete=False, session_id=b"s", session_locked_until_ms=1
    )
    rig.run_until_idle()
    assert isinstance(found.pop(), list)


def test_two_who_resubmit_the_same_dead_letter_do_not_make_it_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lookup, "AT_ONCE", 1)
    rig = BrokerHarness()
    rig.send_stored(*[b"%d" % number for number in range(12)])
    rig.main_fragment.settlement.dead_letter(rig.consumer(12).lock_numbers(), Results())
    rig.run_until_idle()
    done: list[object] = []
    local_part(rig.queue).resubmit(list(range(1, 13)), None, rig.namespace.intake, done.append)
    local_part(rig.queue).resubmit([1], None, rig.namespace.intake, done.append)
    rig.run_until_idle()
    active, *_, dead = rig.counts()
    assert active + dead == 12
    assert len(done) == 2


def test_a_receiver_of_a_session_gets_more_when_another_one_frees_a_lock() -> None:
    rig = BrokerHarness(SESSIONS, limits=NamespaceLimits(max_locks=1))
    rig.send_stored(b"1", session="a")
    rig.send_stored(b"2", session="b")
    first, second = rig.accept_session(b"a", 1), rig.accept_session(b"b", 1)
    assert second.bodies == []
    rig.main_fragment.settlement.complete(first.lock_numbers(), Results())
    rig.run_until_idle()
    assert second.bodies == [b"2"]


def test_a_receiver_of_a_session_gets_more_when_another_one_leaves() -> None:
    rig = BrokerHarness(SESSIONS, limits=NamespaceLimits(max_locks=1))
    rig.send_stored(b"1", session="a")
    rig.send_stored(b"2", session="b")
    first, second = rig.accept_session(b"a", 1), rig.accept_session(b"b", 1)
    first.leave()
    rig.run_until_idle()
    assert second.bodies == [b"2"]


def test_a_session_renewed_for_a_shorter_time_is_free_after_that() -> None:
    rig = BrokerHarness(SESSIONS)
    consumer = rig.accept_session(b"s")
    shorter = QueueDescription(requires_session=True, lock_duration_ms=5_000)
    rig.namespace.update_queue("orders", shorter, updated_ms=0)
    assert consumer.session_lock is not None
    rig.main_fragment.renew_session_lock(consumer.session_lock)
    rig.advance(5.0)
    assert consumer.is_closed
    assert rig.accept_session(b"s").session == b"s"
