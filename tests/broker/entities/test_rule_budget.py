"""Rules that take long to evaluate hold up nobody but their topic, and change nothing about its messages."""

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


def test_others_are_served_while_a_message_is_judged() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(10))
    published, sent = rig.publish(b"heavy", n=1), rig.send(b"light")
    rig.run_turn()
    assert (sent, published) == ([None], [])
    assert rig.run_turns() >= 8
    assert published == [None]
    assert rig.bodies(subscription) == [b"heavy"]


def test_a_message_with_cheap_rules_is_published_at_once_whatever_others_take() -> None:
    rig = SlowRuleHarness()
    rig.subscribe("a", *slow_rules(10))
    other = rig.namespace.add_topic(25, "light", TopicDescription(), [0], created_ms=0, updated_ms=0)
    rig.publish(b"heavy", n=1)
    answers = rig.send(b"1", to=other, n=1)
    rig.run_turn()
    assert answers == [None]


def test_topics_share_what_a_turn_has() -> None:
    rig = SlowRuleHarness(units=120)
    rig.subscribe("a", *slow_rules(20))
    second = rig.namespace.add_topic(25, "second", TopicDescription(), [0], created_ms=0, updated_ms=0)
    description = SubscriptionDescription()
    subscription = rig.namespace.add_subscription(26, "second/Subscriptions/b", description, created_ms=0, updated_ms=0)
    for rule in slow_rules(3):
        subscription.put_rule(rule)
    first, answers = rig.publish(b"much", n=1), rig.send(b"little", to=second, n=1)
    for _ in range(5):
        rig.run_turn()
    assert (answers, first) == ([None], [])
    assert rig.run_turns() < 25


def test_messages_are_stored_in_the_order_in_which_they_were_sent() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(4))
    answers = [rig.publish(b"%d" % number, n=number) for number in range(1, 6)]
    for _ in range(2):
        rig.run_turn()
    answers += [rig.publish(b"%d" % number, n=number) for number in range(6, 9)]
    rig.run_turns()
    assert answers == [[None]] * 8
    consumer = rig.consumer(10, of=local_part(subscription).main)
    assert consumer.bodies == [b"%d" % number for number in range(1, 9)]
    numbers = [annotation_of(found, "x-opt-enqueue-sequence-number") for found in consumer.messages]
    assert numbers == list(range(1, 9))


def test_what_is_sent_together_is_stored_together() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(3))
    rig.subscribe("all")
    answers = rig.publish(b"1", b"2", b"3", n=1)
    while not answers:
        assert (
            local_part(rig.topic.subscriptions["all"]).main.active_count
            == local_part(subscription).main.active_count
            == 0
        )
        rig.run_turn()
    assert rig.bodies(subscription) == rig.bodies(rig.topic.subscriptions["all"]) == [b"1", b"2", b"3"]


def test_nothing_of_a_send_is_there_if_the_store_fails_while_it_is_judged() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(4))
    rig.subscribe("all")
    first, second = rig.publish(b"1", b"2", n=1), rig.publish(b"3", n=1)
    rig.run_turn()
    rig.commit_log.fail("input/output error")
    rig.run_turns()
    assert [type(error) for error in (*first, *second)] == [StoreUnavailable] * 2
    assert rig.commit_log.pending_bytes == 0
    rig.reopen()
    rig.run_turns()
    assert rig.bodies(rig.topic.subscriptions["all"]) == []
    rig.publish_stored(b"4", n=1)
    assert rig.bodies(subscription) == [b"4"]
    assert rig.commit_log.pending_bytes == 0


def test_a_store_that_is_silent_by_then_refuses_the_send() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(4))
    answers = rig.publish(b"1", n=1)
    rig.store.hang()
    held = rig.send(b"held")
    rig.run_turn()
    rig.clock.advance(11)
    rig.namespace.timers.run_due()
    while rig.deferred_calls:
        rig.run_turn()
    assert [type(error) for error in (*held, *answers)] == [StoreUnavailable] * 2
    rig.store.resume()
    rig.run_turns()
    assert rig.bodies(subscription) == []
    rig.publish_stored(b"2", n=1)
    assert rig.bodies(subscription) == [b"2"]


def test_long_work_is_not_taken_for_a_silent_store() -> None:
    rig = SlowRuleHarness(DETECTING)
    subscription = rig.subscribe("a", *slow_rules(4))
    answers = [rig.publish(b"%d" % number, message_id=f"{number}", n=1) for number in range(3)]
    for _ in range(20):
        rig.run_turn()
        rig.clock.advance(3)
        rig.namespace.timers.run_due()
    assert answers == [[None]] * 3
    assert rig.bodies(subscription) == [b"0", b"1", b"2"]


def test_a_deleted_topic_tells_those_who_wait() -> None:
    rig = SlowRuleHarness()
    rig.subscribe("a", *slow_rules(4))
    answers = [rig.publish(b"1", n=1), rig.publish(b"2", n=1)]
    rig.run_turn()
    rig.namespace.remove("news")
    rig.run_turns()
    assert [type(error) for (error,) in answers] == [EntityDeleted] * 2
    assert rig.commit_log.pending_bytes == 0


def test_a_topic_that_is_disabled_meanwhile_keeps_what_it_took() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(4))
    answers = rig.publish(b"1", n=1)
    rig.run_turn()
    rig.topic.set_status("Disabled")
    rig.run_turns()
    assert answers == [None]
    assert rig.bodies(subscription) == [b"1"]


def test_a_subscription_that_is_deleted_meanwhile_gets_nothing() -> None:
    rig = SlowRuleHarness()
    rig.subscribe("gone", *slow_rules(2))
    other = rig.subscribe("stays", *slow_rules(3))
    answers = rig.publish(LARGE, n=1)
    for _ in range(3):
        rig.run_turn()
    assert not answers
    before = dict(rig.disk.synced)
    rig.namespace.remove("news/Subscriptions/gone")
    rig.run_turns()
    assert answers == [None]
    assert rig.bodies(other) == [LARGE]
    assert before.keys() == rig.disk.synced.keys()
    assert rig.shared_body_counts() == (0, 0)  # one copy alone shares its body with none


def test_a_subscription_that_is_disabled_meanwhile_gets_nothing() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(4))
    answers = rig.publish(b"1", n=1)
    rig.run_turn()
    subscription.set_status("Disabled")
    rig.run_turns()
    assert answers == [None]
    subscription.set_status("Active")
    assert rig.bodies(subscription) == []


def test_a_message_is_judged_by_the_rules_that_were_there_when_its_turn_came() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(4))
    answers = [rig.publish(b"1", n=1), rig.publish(b"2", n=1)]
    rig.run_turn()
    for name in ("h0", "h1", "last"):
        subscription.remove_rule(name)
    subscription.put_rule(sql_rule("n = 1", "SET by = 'another'", name="last"))
    rig.run_turns()
    assert answers == [[None]] * 2
    found = rig.consumer(10, of=local_part(subscription).main).messages
    assert [(one.data[0], property_of(one, "by")) for one in found] == [(b"1", None), (b"2", "another")]


def test_copies_that_actions_make_take_turns_too() -> None:
    rig = SlowRuleHarness()
    rules = [sql_rule("n = 1", f"SET copy = {number}", name=f"r{number}") for number in range(8)]
    subscription = rig.subscribe("a", *rules)
    answers = rig.publish(b"1", n=1)
    assert rig.run_turns() > 5
    assert answers == [None]
    found = rig.consumer(10, of=local_part(subscription).main).messages
    assert [property_of(one, "copy") for one in found] == list(range(8))


# --- messages for later -----------------------------------------------------------------------------------------------


def schedule(harness: SlowRuleHarness, *bodies: bytes) -> list[int]:
    """Messages that are due in an hour."""
    numbers: list[int] = []
    due_ms = harness.clock.wall_ms() + HOUR_MS
    answers = harness.send_messages(
        *[message(body, due_ms=due_ms, n=1) for body in bodies], to=harness.topic, numbers=numbers
    )
    harness.run_turns()
    assert answers == [None]
    return numbers


def come_due(harness: SlowRuleHarness) -> None:
    harness.clock.advance(HOUR_MS / 1000 + 1)
    harness.namespace.timers.run_due()
    for _ in range(3):
        harness.run_turn()


def test_messages_that_are_due_are_judged_in_turns_and_published_once() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(6))
    numbers = schedule(rig, b"1", b"2")
    come_due(rig)
    assert local_part(subscription).main.active_count == 0
    assert rig.topic.runtime().scheduled_count == 2
    with pytest.raises(MessageNotFound):
        local_part(rig.topic).main.schedule.cancel(numbers, Results())
    answers = rig.publish(b"behind", n=1)
    rig.run_turns()
    assert answers == [None]
    assert rig.bodies(subscription) == [b"1", b"2", b"behind"]
    assert rig.topic.runtime().scheduled_count == 0


def test_messages_that_are_due_behind_others_wait_for_them() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(20))
    schedule(rig, b"due")
    answers = rig.publish(b"first", n=1)
    come_due(rig)
    assert not answers
    rig.run_turns()
    assert rig.bodies(subscription) == [b"first", b"due"]


def test_messages_that_are_due_stay_if_the_store_fails_while_they_are_judged() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(6))
    schedule(rig, b"1", b"2")
    come_due(rig)
    rig.commit_log.fail("input/output error")
    rig.run_turns()
    rig.reopen()
    rig.run_turns()
    rig.advance(2)
    rig.run_turns()
    assert rig.bodies(subscription) == [b"1", b"2"]
    assert rig.topic.runtime().scheduled_count == 0


# --- duplicates -------------------------------------------------------------------------------------------------------


def test_a_duplicate_of_a_message_that_is_being_judged_is_answered_with_it_and_dropped() -> None:
    rig = SlowRuleHarness(DETECTING)
    subscription = rig.subscribe("a", *slow_rules(5))
    first = rig.publish(b"1", message_id="same", n=1)
    rig.run_turn()
    second = rig.publish(b"2", message_id="same", n=1)
    rig.run_turn()
    assert (first, second) == ([], [])
    rig.run_turns()
    assert (first, second) == ([None], [None])
    assert rig.bodies(subscription) == [b"1"]


def test_a_duplicate_that_was_looked_up_long_before_the_first_was_stored_is_found() -> None:
    rig = SlowRuleHarness(DETECTING)
    subscription = rig.subscribe("a", *slow_rules(5))
    answers = [rig.publish(b"1", message_id="1", n=1)]
    rig.run_turn()
    answers.append(rig.publish(b"2", message_id="2", n=1))  # takes long, after the first was synced
    answers.append(rig.publish(b"3", message_id="1", n=1))
    rig.run_turns()
    assert answers == [[None]] * 3
    assert rig.bodies(subscription) == [b"1", b"2"]


def test_a_message_that_was_refused_is_no_duplicate_when_it_comes_again() -> None:
    rig = SlowRuleHarness(DETECTING)
    subscription = rig.subscribe("a", *slow_rules(5))
    first = rig.publish(b"1", message_id="same", n=1)
    rig.run_turn()
    rig.run_turn()
    rig.commit_log.unavailable_reason = "it does not answer"
    while rig.deferred_calls:
        rig.run_turn()
    assert isinstance(first[0], StoreUnavailable)
    rig.commit_log.unavailable_reason = None
    rig.publish_stored(b"again", message_id="same", n=1)
    assert rig.bodies(subscription) == [b"again"]


# --- forwarding, transactions -----------------------------------------------------------------------------------------


def arrive(harness: SlowRuleHarness, *numbers: int) -> Results:
    """Messages of another entity with these numbers."""
    answers = Results()
    payloads = [message(b"%d" % number, message_id=f"{number}", n=1) for number in numbers]
    parcel = harness.incoming_batch(*payloads, to=harness.topic)
    harness.topic.accept_forwarded(b"source", list(zip(numbers, parcel.records, strict=True)), answers)
    return answers


def test_a_message_that_is_forwarded_again_while_it_is_judged_arrives_once() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(5))
    answers = [arrive(rig, 1, 2)]
    rig.run_turn()
    rig.run_turn()
    answers.append(arrive(rig, 1, 2, 3))
    rig.run_turns()
    assert answers == [[None]] * 2
    assert rig.bodies(subscription) == [b"1", b"2", b"3"]


def test_a_transaction_is_one_batch_however_long_its_messages_take() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(5))
    transaction, answers = Transaction(rig.namespace.intake), Results()
    for body in (b"1", b"2"):
        transaction.send(rig.topic.parts[0], message(body, n=1), 0)
    parcel = rig.incoming_batch(message(b"later", n=1), to=rig.topic)
    (number,) = transaction.schedule(rig.topic.parts[0], parcel.records)
    transaction.commit(answers)
    for _ in range(4):
        rig.run_turn()
    assert not answers
    assert rig.topic.runtime().scheduled_count == 0
    rig.run_turns()
    assert answers == [None]
    assert number == 1
    rig.advance(1)
    rig.run_turns()
    assert rig.bodies(subscription) == [b"1", b"2", b"later"]


def test_a_transaction_comes_to_nothing_if_the_store_fails_while_its_messages_are_judged() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(5))
    transaction, answers = Transaction(rig.namespace.intake), Results()
    transaction.send(rig.topic.parts[0], message(b"1", n=1), 0)
    transaction.commit(answers)
    rig.run_turn()
    rig.commit_log.fail("input/output error")
    rig.run_turns()
    assert isinstance(answers[0], ServiceBusError)
    rig.reopen()
    rig.run_turns()
    assert rig.bodies(subscription) == []


# --- limits -----------------------------------------------------------------------------------------------------------


def test_messages_that_wait_count_as_held_by_the_topic() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(5))
    answers = [rig.publish(b"x" * 1_000, n=1) for _ in range(5)]
    assert local_part(rig.topic).stored_bytes() > 5_000
    rig.run_turns()
    assert answers == [[None]] * 5
    rig.clock.advance(1)
    assert local_part(rig.topic).stored_bytes() == local_part(subscription).main.message_table.size


def test_messages_that_wait_count_as_waiting_to_be_written_and_are_not_refused_for_it_later() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(5))
    rig.commit_log._max_pending_bytes = 300  # noqa: SLF001
    answers = [rig.publish(b"%d" % number + b"x" * 40, n=1) for number in range(3)]
    with pytest.raises(ServerBusy):
        rig.publish(b"x" * 200, n=1)
    rig.run_turns()
    assert answers == [[None]] * 3
    assert len(rig.bodies(subscription)) == 3
    assert rig.commit_log.pending_bytes == 0


def test_a_fault_in_a_rule_is_told_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(4))
    rig.subscribe("all", RuleDescription(name="$Default"))
    answers = [rig.publish(b"1", n=1), rig.publish(b"2", n=1)]
    rule = subscription.rules["last"].compiled
    monkeypatch.setattr(rule, "_filter", lambda _view: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        rig.run_turns()
    monkeypatch.undo()
    rig.run_turns()
    assert [type(error).__name__ for (error,) in answers] == ["InternalFault", "NoneType"]
    assert rig.bodies(subscription) == [b"2"]
