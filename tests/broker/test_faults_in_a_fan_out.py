"""A fault while copies are put into a batch: nothing of that batch is stored, and every sender gets one error."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.heavy import HeavyRig, heavy
from tests.broker.messages import message
from tests.broker.topics import sql
from twinbus.model.errors import InternalFault, StoreUnavailable
from twinbus.model.topic import TopicDescription

DETECTING = TopicDescription(requires_duplicate_detection=True, duplicate_window_ms=60_000)


def fault() -> None:
    raise ZeroDivisionError


def send_with_fault(rig: HeavyRig) -> Answers:
    answers = Answers()
    rig.topic.parts[0].send(rig.parcel(message(b"1", n=1), to=rig.topic), answers, beside=fault)
    return answers


def go_on(rig: HeavyRig) -> None:
    """The fault is raised where the loop logs it; then the store is opened again."""
    with pytest.raises(ZeroDivisionError):
        rig.turns()
    rig.turns()
    assert rig.journal.trouble is not None
    assert rig.journal.pending_bytes == 0
    rig.reopen()
    rig.turns()


def test_a_fault_after_some_turns_is_told_and_stores_nothing() -> None:
    rig = HeavyRig()
    subscription, everything = rig.subscribe("a", *heavy(4)), rig.subscribe("all")
    answers, behind = send_with_fault(rig), rig.publish(b"2", n=1)
    go_on(rig)
    assert [type(error) for error in (*answers, *behind)] == [InternalFault, StoreUnavailable]
    assert rig.bodies(subscription) == rig.bodies(everything) == []
    rig.published(b"3", n=1)
    assert rig.bodies(subscription) == rig.bodies(everything) == [b"3"]


def test_a_fault_in_the_same_turn_is_raised_and_stores_nothing() -> None:
    rig = HeavyRig()
    subscription = rig.subscribe("all")
    before = rig.publish(b"0")
    with pytest.raises(InternalFault):
        send_with_fault(rig)
    go_on(rig)
    assert [type(error) for error in before] == [StoreUnavailable]
    rig.published(b"2")
    assert rig.bodies(subscription) == [b"2"]


def test_a_message_whose_storing_failed_is_no_duplicate_when_it_is_sent_again() -> None:
    rig = HeavyRig(DETECTING)
    subscription = rig.subscribe("all")
    answers = send_with_fault(rig)
    go_on(rig)
    assert [type(error) for error in answers] == [InternalFault]
    rig.published(b"1")
    assert rig.bodies(subscription) == [b"1"]


@pytest.mark.parametrize("rules", [1, 4])
def test_a_scheduled_message_is_published_after_a_fault_in_a_rule(rules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = HeavyRig(units=60 if rules > 1 else 5_000)
    subscription = rig.subscribe("a", *heavy(rules) if rules > 1 else [sql("n > 0", name="last")])
    rig.published(b"1", n=1, due_ms=rig.clock.wall_ms() + 5_000)
    monkeypatch.setattr(subscription.rules["last"].compiled, "_holds", lambda _view: 1 // 0)
    rig.clock.advance(10)
    rig.namespace.timers.run_due()
    with pytest.raises(ZeroDivisionError):
        rig.turns()
    monkeypatch.undo()
    rig.turns()
    assert rig.journal.trouble is not None
    rig.reopen()
    rig.turns()
    rig.namespace.timers.run_due()
    rig.turns()
    assert rig.bodies(subscription) == [b"1"]
    assert rig.topic.runtime().scheduled_count == 0
