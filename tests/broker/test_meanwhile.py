"""What is asked for or falls due between a look at the disk and its answer is neither forgotten nor done twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.consumers import Answers
from tests.broker.messages import message
from tests.broker.rig import Rig
from tests.parts import part_of
from twinbus.broker import lookup
from twinbus.model.errors import SessionLockLost
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    import pytest

SESSIONS = QueueDescription(requires_session=True, lock_duration_ms=30_000)


def begin_to_look(rig: Rig, seconds: float) -> None:
    """Time passes, and what is due is looked for: the store has looked, and has not answered yet."""
    rig.clock.advance(seconds)
    rig.namespace.timers.run_due()
    rig.store.step()


def test_what_is_scheduled_during_a_look_that_finds_nothing_becomes_active() -> None:
    rig = Rig()
    rig.stored(b"cancelled", due_ms=rig.clock.wall_ms() + 1_000)
    rig.main.schedule.cancel([1], Answers())
    rig.settle()
    begin_to_look(rig, 1.0)
    rig.stored(b"later", due_ms=rig.clock.wall_ms() + 2_000)
    rig.wait(2.0)
    assert rig.counts() == (1, 0, 0, 0)


def test_what_has_expired_when_it_is_stored_during_a_look_does_not_stay() -> None:
    rig = Rig()
    late = rig.parcel(message(b"late", ttl_ms=1))
    rig.stored(b"first", ttl_ms=500)
    begin_to_look(rig, 1.0)
    rig.queue.send(late, Answers())
    rig.settle()
    rig.wait(1.0)
    assert rig.counts() == (0, 0, 0, 0)


def step(rig: Rig) -> None:
    if rig.turn:
        rig.turn.popleft()()
    elif rig.mail:
        rig.mail.popleft()()
    else:
        rig.store.step()


def test_what_was_being_cancelled_when_the_store_failed_becomes_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "AT_ONCE", 1)  # a cancellation of many takes a while
    rig = Rig()
    for _ in range(2):
        rig.stored(b"", due_ms=rig.clock.wall_ms() + 1_000)
    for _ in range(20):
        rig.stored(b"", due_ms=rig.clock.wall_ms() + 3_600_000)
    begin_to_look(rig, 1.0)
    cancelled = Answers()
    rig.main.schedule.cancel([1, *range(3, 23)], cancelled)
    while rig.counts()[0] < 1:
        step(rig)
    sent = rig.send(b"sent")
    while not sent:
        step(rig)
    assert not cancelled
    rig.fail()
    rig.send(b"lost")
    rig.settle()
    rig.reopen()
    rig.settle()
    rig.wait(1.0)
    assert rig.counts() == (3, 0, 20, 0)


def test_deferred_messages_of_a_session_that_is_left_meanwhile_are_not_locked() -> None:
    rig = Rig(SESSIONS)
    rig.stored(b"1", session="s")
    consumer = rig.accept(b"s", 1)
    rig.main.settlement.defer(consumer.numbers(), Answers())
    rig.settle()
    found: list[object] = []
    rig.main.deferral.receive([1], found.append, deletes=False, session=b"s", session_until_ms=1)
    consumer.leave()
    rig.settle()
    assert isinstance(found.pop(), SessionLockLost)
    rig.accept(b"s")
    rig.main.deferral.receive([1], found.append, deletes=False, session=b"s", session_until_ms=1)
    rig.settle()
    assert isinstance(found.pop(), list)


def test_two_who_resubmit_the_same_dead_letter_do_not_make_it_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "AT_ONCE", 1)
    rig = Rig()
    rig.stored(*[b"%d" % number for number in range(12)])
    rig.main.settlement.dead_letter(rig.consumer(12).numbers(), Answers())
    rig.settle()
    done: list[object] = []
    part_of(rig.queue).resubmit(list(range(1, 13)), None, rig.namespace.intake, done.append)
    part_of(rig.queue).resubmit([1], None, rig.namespace.intake, done.append)
    rig.settle()
    active, *_, dead = rig.counts()
    assert active + dead == 12
    assert len(done) == 2


def test_a_receiver_of_a_session_gets_more_when_another_one_frees_a_lock() -> None:
    rig = Rig(SESSIONS, limits=NamespaceLimits(max_locks=1))
    rig.stored(b"1", session="a")
    rig.stored(b"2", session="b")
    first, second = rig.accept(b"a", 1), rig.accept(b"b", 1)
    assert second.bodies == []
    rig.main.settlement.complete(first.numbers(), Answers())
    rig.settle()
    assert second.bodies == [b"2"]


def test_a_receiver_of_a_session_gets_more_when_another_one_leaves() -> None:
    rig = Rig(SESSIONS, limits=NamespaceLimits(max_locks=1))
    rig.stored(b"1", session="a")
    rig.stored(b"2", session="b")
    first, second = rig.accept(b"a", 1), rig.accept(b"b", 1)
    first.leave()
    rig.settle()
    assert second.bodies == [b"2"]


def test_a_session_renewed_for_a_shorter_time_is_free_after_that() -> None:
    rig = Rig(SESSIONS)
    consumer = rig.accept(b"s")
    shorter = QueueDescription(requires_session=True, lock_duration_ms=5_000)
    rig.namespace.update_queue("orders", shorter, updated_ms=0)
    assert consumer.hold is not None
    rig.main.renew_session(consumer.hold)
    rig.wait(5.0)
    assert consumer.is_gone
    assert rig.accept(b"s").session == b"s"
