"""A fault while copies are put into a batch: nothing of that batch is stored, and every sender gets one error."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.messages import message
from tests.broker.slow_rules import SlowRuleHarness, slow_rules
from tests.broker.topic_harness import sql_rule
from twinbus.model.errors import InternalFault, StoreUnavailable
from twinbus.model.topic import TopicDescription

DETECTING = TopicDescription(requires_duplicate_detection=True, duplicate_window_ms=60_000)


def fault() -> None:
    raise ZeroDivisionError


def send_with_fault(harness: SlowRuleHarness) -> Results:
    answers = Results()
    harness.topic.parts[0].send(harness.incoming_batch(message(b"1", n=1), to=harness.topic), answers, on_batched=fault)
    return answers


def go_on(harness: SlowRuleHarness) -> None:
    """The fault is raised where the loop logs it; then the store is opened again."""
    with pytest.raises(ZeroDivisionError):
        harness.run_turns()
    harness.run_turns()
    assert harness.commit_log.unavailable_reason is not None
    assert harness.commit_log.pending_bytes == 0
    harness.reopen()
    harness.run_turns()


def test_a_fault_after_some_turns_is_told_and_stores_nothing() -> None:
    rig = SlowRuleHarness()
    subscription, everything = rig.subscribe("a", *slow_rules(4)), rig.subscribe("all")
    answers, behind = send_with_fault(rig), rig.publish(b"2", n=1)
    go_on(rig)
    assert [type(error) for error in (*answers, *behind)] == [InternalFault, StoreUnavailable]
    assert rig.bodies(subscription) == rig.bodies(everything) == []
    rig.publish_stored(b"3", n=1)
    assert rig.bodies(subscription) == rig.bodies(everything) == [b"3"]


def test_a_fault_in_the_same_turn_is_raised_and_stores_nothing() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("all")
    before = rig.publish(b"0")
    with pytest.raises(InternalFault):
        send_with_fault(rig)
    go_on(rig)
    assert [type(error) for error in before] == [StoreUnavailable]
    rig.publish_stored(b"2")
    assert rig.bodies(subscription) == [b"2"]


def test_a_message_whose_storing_failed_is_no_duplicate_when_it_is_sent_again() -> None:
    rig = SlowRuleHarness(DETECTING)
    subscription = rig.subscribe("all")
    answers = send_with_fault(rig)
    go_on(rig)
    assert [type(error) for error in answers] == [InternalFault]
    rig.publish_stored(b"1")
    assert rig.bodies(subscription) == [b"1"]


@pytest.mark.parametrize("rules", [1, 4])
def test_a_scheduled_message_is_published_after_a_fault_in_a_rule(rules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SlowRuleHarness(units=60 if rules > 1 else 5_000)
    subscription = rig.subscribe("a", *slow_rules(rules) if rules > 1 else [sql_rule("n > 0", name="last")])
    rig.publish_stored(b"1", n=1, due_ms=rig.clock.wall_ms() + 5_000)
    monkeypatch.setattr(subscription.rules["last"].compiled, "_filter", lambda _view: 1 // 0)
    rig.clock.advance(10)
    rig.namespace.timers.run_due()
    with pytest.raises(ZeroDivisionError):
        rig.run_turns()
    monkeypatch.undo()
    rig.run_turns()
    assert rig.commit_log.unavailable_reason is not None
    rig.reopen()
    rig.run_turns()
    rig.namespace.timers.run_due()
    rig.run_turns()
    assert rig.bodies(subscription) == [b"1"]
    assert rig.topic.runtime().scheduled_count == 0
