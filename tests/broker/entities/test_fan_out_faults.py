"""A fault while copies are added to a batch: nothing of that batch is stored, and every sender gets one error."""

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
    results = Results()
    harness.topic.parts[0].send(harness.incoming_batch(message(b"1", n=1), to=harness.topic), results, on_batched=fault)
    return results


def recover_from_fault(harness: SlowRuleHarness) -> None:
    """Run until the fault is raised where the loop logs it, and reopen the store."""
    with pytest.raises(ZeroDivisionError):
        harness.run_turns()
    harness.run_turns()
    assert harness.commit_log.unavailable_reason is not None
    assert harness.commit_log.pending_bytes == 0
    harness.reopen()
    harness.run_turns()


def test_a_fault_after_some_turns_is_reported_and_stores_nothing() -> None:
    harness = SlowRuleHarness()
    subscription, everything = harness.subscribe("a", *slow_rules(4)), harness.subscribe("all")
    results, behind = send_with_fault(harness), harness.publish(b"2", n=1)
    recover_from_fault(harness)
    assert [type(error) for error in (*results, *behind)] == [InternalFault, StoreUnavailable]
    assert harness.bodies(subscription) == harness.bodies(everything) == []
    harness.publish_stored(b"3", n=1)
    assert harness.bodies(subscription) == harness.bodies(everything) == [b"3"]


def test_a_fault_in_the_same_turn_is_raised_and_stores_nothing() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("all")
    before = harness.publish(b"0")
    with pytest.raises(InternalFault):
        send_with_fault(harness)
    recover_from_fault(harness)
    assert [type(error) for error in before] == [StoreUnavailable]
    harness.publish_stored(b"2")
    assert harness.bodies(subscription) == [b"2"]


def test_a_message_that_failed_with_a_fault_is_not_a_duplicate_when_sent_again() -> None:
    harness = SlowRuleHarness(DETECTING)
    subscription = harness.subscribe("all")
    results = send_with_fault(harness)
    recover_from_fault(harness)
    assert [type(error) for error in results] == [InternalFault]
    harness.publish_stored(b"1")
    assert harness.bodies(subscription) == [b"1"]


@pytest.mark.parametrize("rules", [1, 4])
def test_a_scheduled_message_is_published_after_a_fault_in_a_rule(rules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = SlowRuleHarness(units=60 if rules > 1 else 5_000)
    subscription = harness.subscribe("a", *slow_rules(rules) if rules > 1 else [sql_rule("n > 0", name="last")])
    harness.publish_stored(b"1", n=1, due_ms=harness.clock.wall_ms() + 5_000)
    monkeypatch.setattr(subscription.rules["last"].compiled, "_filter", lambda _view: 1 // 0)
    harness.clock.advance(10)
    harness.namespace.timers.run_due()
    with pytest.raises(ZeroDivisionError):
        harness.run_turns()
    monkeypatch.undo()
    harness.run_turns()
    assert harness.commit_log.unavailable_reason is not None
    harness.reopen()
    harness.run_turns()
    harness.namespace.timers.run_due()
    harness.run_turns()
    assert harness.bodies(subscription) == [b"1"]
    assert harness.topic.runtime().scheduled_count == 0
