"""Slow rules delay only their topic, and change nothing about its messages."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.messages import annotation_of, message, property_of
from tests.broker.slow_rules import SlowRuleHarness, slow_rules
from tests.broker.topic_harness import LARGE, sql_rule
from tests.support.parts import local_part
from twinbus.broker.entities.transaction import Transaction
from twinbus.model.errors import (
    EntityDeleted,
    MessageNotFound,
    ServerBusy,
    ServiceBusError,
    StoreUnavailable,
)
from twinbus.model.rule import RuleDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription

DETECTING = TopicDescription(requires_duplicate_detection=True, duplicate_window_ms=60_000)
HOUR_MS = 3_600_000


def test_other_entities_are_served_while_rules_are_evaluated() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(10))
    published, sent = harness.publish(b"heavy", n=1), harness.send(b"light")
    harness.run_turn()
    assert (sent, published) == ([None], [])
    assert harness.run_turns() >= 8
    assert published == [None]
    assert harness.bodies(subscription) == [b"heavy"]


def test_a_message_with_cheap_rules_is_published_at_once_whatever_other_topics_do() -> None:
    harness = SlowRuleHarness()
    harness.subscribe("a", *slow_rules(10))
    other = harness.namespace.add_topic(25, "light", TopicDescription(), [0], created_ms=0, updated_ms=0)
    harness.publish(b"heavy", n=1)
    results = harness.send(b"1", to=other, n=1)
    harness.run_turn()
    assert results == [None]


def test_topics_share_the_work_budget_of_a_turn() -> None:
    harness = SlowRuleHarness(units=120)
    harness.subscribe("a", *slow_rules(20))
    second = harness.namespace.add_topic(25, "second", TopicDescription(), [0], created_ms=0, updated_ms=0)
    description = SubscriptionDescription()
    subscription = harness.namespace.add_subscription(
        26, "second/Subscriptions/b", description, created_ms=0, updated_ms=0
    )
    for rule in slow_rules(3):
        subscription.put_rule(rule)
    first, results = harness.publish(b"much", n=1), harness.send(b"little", to=second, n=1)
    for _ in range(5):
        harness.run_turn()
    assert (results, first) == ([None], [])
    assert harness.run_turns() < 25


def test_messages_are_stored_in_the_order_in_which_they_were_sent() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(4))
    results = [harness.publish(b"%d" % number, n=number) for number in range(1, 6)]
    for _ in range(2):
        harness.run_turn()
    results += [harness.publish(b"%d" % number, n=number) for number in range(6, 9)]
    harness.run_turns()
    assert results == [[None]] * 8
    consumer = harness.consumer(10, of=local_part(subscription).main)
    assert consumer.bodies == [b"%d" % number for number in range(1, 9)]
    numbers = [annotation_of(received, "x-opt-enqueue-sequence-number") for received in consumer.messages]
    assert numbers == list(range(1, 9))


def test_messages_sent_together_are_stored_together() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(3))
    harness.subscribe("all")
    results = harness.publish(b"1", b"2", b"3", n=1)
    while not results:
        assert (
            local_part(harness.topic.subscriptions["all"]).main.active_count
            == local_part(subscription).main.active_count
            == 0
        )
        harness.run_turn()
    assert harness.bodies(subscription) == harness.bodies(harness.topic.subscriptions["all"]) == [b"1", b"2", b"3"]


def test_a_store_failure_during_evaluation_stores_nothing_of_a_send() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(4))
    harness.subscribe("all")
    first, second = harness.publish(b"1", b"2", n=1), harness.publish(b"3", n=1)
    harness.run_turn()
    harness.commit_log.fail("input/output error")
    harness.run_turns()
    assert [type(error) for error in (*first, *second)] == [StoreUnavailable] * 2
    assert harness.commit_log.pending_bytes == 0
    harness.reopen()
    harness.run_turns()
    assert harness.bodies(harness.topic.subscriptions["all"]) == []
    harness.publish_stored(b"4", n=1)
    assert harness.bodies(subscription) == [b"4"]
    assert harness.commit_log.pending_bytes == 0


def test_a_send_fails_if_the_store_hangs_after_evaluation() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(4))
    results = harness.publish(b"1", n=1)
    harness.store.hang()
    held = harness.send(b"held")
    harness.run_turn()
    harness.clock.advance(11)
    harness.namespace.timers.run_due()
    while harness.deferred_calls:
        harness.run_turn()
    assert [type(error) for error in (*held, *results)] == [StoreUnavailable] * 2
    harness.store.resume()
    harness.run_turns()
    assert harness.bodies(subscription) == []
    harness.publish_stored(b"2", n=1)
    assert harness.bodies(subscription) == [b"2"]


def test_a_long_evaluation_does_not_make_the_store_unavailable() -> None:
    harness = SlowRuleHarness(DETECTING)
    subscription = harness.subscribe("a", *slow_rules(4))
    results = [harness.publish(b"%d" % number, message_id=f"{number}", n=1) for number in range(3)]
    for _ in range(20):
        harness.run_turn()
        harness.clock.advance(3)
        harness.namespace.timers.run_due()
    assert results == [[None]] * 3
    assert harness.bodies(subscription) == [b"0", b"1", b"2"]


def test_pending_sends_of_a_deleted_topic_fail() -> None:
    harness = SlowRuleHarness()
    harness.subscribe("a", *slow_rules(4))
    results = [harness.publish(b"1", n=1), harness.publish(b"2", n=1)]
    harness.run_turn()
    harness.namespace.remove("news")
    harness.run_turns()
    assert [type(error) for (error,) in results] == [EntityDeleted] * 2
    assert harness.commit_log.pending_bytes == 0


def test_a_topic_disabled_during_evaluation_publishes_accepted_messages() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(4))
    results = harness.publish(b"1", n=1)
    harness.run_turn()
    harness.topic.set_status("Disabled")
    harness.run_turns()
    assert results == [None]
    assert harness.bodies(subscription) == [b"1"]


def test_a_subscription_deleted_during_evaluation_gets_nothing() -> None:
    harness = SlowRuleHarness()
    harness.subscribe("gone", *slow_rules(2))
    other = harness.subscribe("stays", *slow_rules(3))
    results = harness.publish(LARGE, n=1)
    for _ in range(3):
        harness.run_turn()
    assert not results
    before = dict(harness.disk.synced)
    harness.namespace.remove("news/Subscriptions/gone")
    harness.run_turns()
    assert results == [None]
    assert harness.bodies(other) == [LARGE]
    assert before.keys() == harness.disk.synced.keys()
    assert harness.shared_body_counts() == (0, 0)  # a single copy does not share its body


def test_a_subscription_disabled_during_evaluation_gets_nothing() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(4))
    results = harness.publish(b"1", n=1)
    harness.run_turn()
    subscription.set_status("Disabled")
    harness.run_turns()
    assert results == [None]
    subscription.set_status("Active")
    assert harness.bodies(subscription) == []


def test_a_message_is_evaluated_by_the_rules_of_the_time_when_its_evaluation_began() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(4))
    results = [harness.publish(b"1", n=1), harness.publish(b"2", n=1)]
    harness.run_turn()
    for name in ("h0", "h1", "last"):
        subscription.remove_rule(name)
    subscription.put_rule(sql_rule("n = 1", "SET by = 'another'", name="last"))
    harness.run_turns()
    assert results == [[None]] * 2
    received = harness.consumer(10, of=local_part(subscription).main).messages
    assert [(copy.data[0], property_of(copy, "by")) for copy in received] == [(b"1", None), (b"2", "another")]


def test_actions_use_the_work_budget() -> None:
    harness = SlowRuleHarness()
    rules = [sql_rule("n = 1", f"SET copy = {number}", name=f"r{number}") for number in range(8)]
    subscription = harness.subscribe("a", *rules)
    results = harness.publish(b"1", n=1)
    assert harness.run_turns() > 5
    assert results == [None]
    received = harness.consumer(10, of=local_part(subscription).main).messages
    assert [property_of(copy, "copy") for copy in received] == list(range(8))


# --- scheduled messages -----------------------------------------------------------------------------------------------


def schedule(harness: SlowRuleHarness, *bodies: bytes) -> list[int]:
    """Schedule messages that are due in an hour; return their sequence numbers."""
    numbers: list[int] = []
    due_ms = harness.clock.wall_ms() + HOUR_MS
    results = harness.send_messages(
        *[message(body, due_ms=due_ms, n=1) for body in bodies], to=harness.topic, numbers=numbers
    )
    harness.run_turns()
    assert results == [None]
    return numbers


def come_due(harness: SlowRuleHarness) -> None:
    harness.clock.advance(HOUR_MS / 1000 + 1)
    harness.namespace.timers.run_due()
    for _ in range(3):
        harness.run_turn()


def test_due_messages_are_evaluated_over_several_turns_and_published_once() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(6))
    numbers = schedule(harness, b"1", b"2")
    come_due(harness)
    assert local_part(subscription).main.active_count == 0
    assert harness.topic.runtime().scheduled_count == 2
    with pytest.raises(MessageNotFound):
        local_part(harness.topic).main.schedule.cancel(numbers, Results())
    results = harness.publish(b"behind", n=1)
    harness.run_turns()
    assert results == [None]
    assert harness.bodies(subscription) == [b"1", b"2", b"behind"]
    assert harness.topic.runtime().scheduled_count == 0


def test_due_messages_wait_for_earlier_sends() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(20))
    schedule(harness, b"due")
    results = harness.publish(b"first", n=1)
    come_due(harness)
    assert not results
    harness.run_turns()
    assert harness.bodies(subscription) == [b"first", b"due"]


def test_due_messages_are_published_after_a_store_failure_during_evaluation() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(6))
    schedule(harness, b"1", b"2")
    come_due(harness)
    harness.commit_log.fail("input/output error")
    harness.run_turns()
    harness.reopen()
    harness.run_turns()
    harness.advance(2)
    harness.run_turns()
    assert harness.bodies(subscription) == [b"1", b"2"]
    assert harness.topic.runtime().scheduled_count == 0


# --- duplicates -------------------------------------------------------------------------------------------------------


def test_a_duplicate_of_a_message_under_evaluation_is_confirmed_with_it_and_dropped() -> None:
    harness = SlowRuleHarness(DETECTING)
    subscription = harness.subscribe("a", *slow_rules(5))
    first = harness.publish(b"1", message_id="same", n=1)
    harness.run_turn()
    second = harness.publish(b"2", message_id="same", n=1)
    harness.run_turn()
    assert (first, second) == ([], [])
    harness.run_turns()
    assert (first, second) == ([None], [None])
    assert harness.bodies(subscription) == [b"1"]


def test_a_duplicate_looked_up_before_the_original_was_stored_is_dropped() -> None:
    harness = SlowRuleHarness(DETECTING)
    subscription = harness.subscribe("a", *slow_rules(5))
    results = [harness.publish(b"1", message_id="1", n=1)]
    harness.run_turn()
    results.append(harness.publish(b"2", message_id="2", n=1))  # evaluated long after the first was synced
    results.append(harness.publish(b"3", message_id="1", n=1))
    harness.run_turns()
    assert results == [[None]] * 3
    assert harness.bodies(subscription) == [b"1", b"2"]


def test_a_refused_message_is_not_a_duplicate_when_sent_again() -> None:
    harness = SlowRuleHarness(DETECTING)
    subscription = harness.subscribe("a", *slow_rules(5))
    first = harness.publish(b"1", message_id="same", n=1)
    harness.run_turn()
    harness.run_turn()
    harness.commit_log.unavailable_reason = "it does not answer"
    while harness.deferred_calls:
        harness.run_turn()
    assert isinstance(first[0], StoreUnavailable)
    harness.commit_log.unavailable_reason = None
    harness.publish_stored(b"again", message_id="same", n=1)
    assert harness.bodies(subscription) == [b"again"]


# --- forwarding, transactions -----------------------------------------------------------------------------------------


def arrive(harness: SlowRuleHarness, *numbers: int) -> Results:
    """Forward messages with these numbers from another entity."""
    results = Results()
    payloads = [message(b"%d" % number, message_id=f"{number}", n=1) for number in numbers]
    batch = harness.incoming_batch(*payloads, to=harness.topic)
    harness.topic.accept_forwarded(b"source", list(zip(numbers, batch.records, strict=True)), results)
    return results


def test_a_message_forwarded_again_during_evaluation_arrives_once() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(5))
    results = [arrive(harness, 1, 2)]
    harness.run_turn()
    harness.run_turn()
    results.append(arrive(harness, 1, 2, 3))
    harness.run_turns()
    assert results == [[None]] * 2
    assert harness.bodies(subscription) == [b"1", b"2", b"3"]


def test_a_transaction_is_one_batch_however_long_its_evaluation_takes() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(5))
    transaction, results = Transaction(harness.namespace.intake), Results()
    for body in (b"1", b"2"):
        transaction.send(harness.topic.parts[0], message(body, n=1), 0)
    batch = harness.incoming_batch(message(b"later", n=1), to=harness.topic)
    (number,) = transaction.schedule(harness.topic.parts[0], batch.records)
    transaction.commit(results)
    for _ in range(4):
        harness.run_turn()
    assert not results
    assert harness.topic.runtime().scheduled_count == 0
    harness.run_turns()
    assert results == [None]
    assert number == 1
    harness.advance(1)
    harness.run_turns()
    assert harness.bodies(subscription) == [b"1", b"2", b"later"]


def test_a_transaction_fails_if_the_store_fails_during_evaluation() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(5))
    transaction, results = Transaction(harness.namespace.intake), Results()
    transaction.send(harness.topic.parts[0], message(b"1", n=1), 0)
    transaction.commit(results)
    harness.run_turn()
    harness.commit_log.fail("input/output error")
    harness.run_turns()
    assert isinstance(results[0], ServiceBusError)
    harness.reopen()
    harness.run_turns()
    assert harness.bodies(subscription) == []


# --- limits -----------------------------------------------------------------------------------------------------------


def test_messages_under_evaluation_count_against_the_size_of_the_topic() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(5))
    results = [harness.publish(b"x" * 1_000, n=1) for _ in range(5)]
    assert local_part(harness.topic).stored_bytes() > 5_000
    harness.run_turns()
    assert results == [[None]] * 5
    harness.clock.advance(1)
    assert local_part(harness.topic).stored_bytes() == local_part(subscription).main.message_table.size


def test_messages_under_evaluation_count_as_pending_bytes_once() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(5))
    harness.commit_log._max_pending_bytes = 300  # noqa: SLF001
    results = [harness.publish(b"%d" % number + b"x" * 40, n=1) for number in range(3)]
    with pytest.raises(ServerBusy):
        harness.publish(b"x" * 200, n=1)
    harness.run_turns()
    assert results == [[None]] * 3
    assert len(harness.bodies(subscription)) == 3
    assert harness.commit_log.pending_bytes == 0


def test_a_fault_in_a_rule_is_reported_and_does_not_block_later_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(4))
    harness.subscribe("all", RuleDescription(name="$Default"))
    results = [harness.publish(b"1", n=1), harness.publish(b"2", n=1)]
    rule = subscription.rules["last"].compiled
    monkeypatch.setattr(rule, "_filter", lambda _view: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        harness.run_turns()
    monkeypatch.undo()
    harness.run_turns()
    assert [type(error).__name__ for (error,) in results] == ["InternalFault", "NoneType"]
    assert harness.bodies(subscription) == [b"2"]
