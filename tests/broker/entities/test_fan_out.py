"""A message sent to a topic is copied to the subscriptions with a matching rule."""

from __future__ import annotations

import pytest

from tests.broker.messages import annotation_of, message, property_of
from tests.broker.topic_harness import LARGE, TopicHarness, sql_rule
from tests.support.parts import local_part
from twinbus.model.errors import QuotaExceeded
from twinbus.model.topic import TopicDescription


@pytest.mark.parametrize("body", [b"small", LARGE])
def test_every_subscription_gets_a_copy(body: bytes) -> None:
    harness = TopicHarness()
    subscriptions = [harness.subscribe(name) for name in ("a", "b", "c")]
    harness.publish_stored(body, body + b"2")
    for subscription in subscriptions:
        assert harness.consumer(10, of=local_part(subscription).main).bodies == [body, body + b"2"]
        assert subscription.runtime().active_count == 2


def test_a_message_that_matches_no_rule_is_accepted_and_dropped() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a", sql_rule("color = 'red'"))
    harness.publish_stored(b"1", color="blue")
    assert local_part(subscription).main.active_count == 0
    assert local_part(harness.topic).main.active_count == 0


def test_a_topic_without_subscriptions_accepts_messages() -> None:
    harness = TopicHarness()
    harness.publish_stored(b"1")
    harness.subscribe("late")
    assert local_part(harness.topic.subscriptions["late"]).main.active_count == 0


def test_copies_carry_the_sequence_number_of_the_topic() -> None:
    harness = TopicHarness()
    first, second = harness.subscribe("a", sql_rule("n > 1")), harness.subscribe("b")
    for n in (1, 2, 3):
        harness.publish_stored(b"%d" % n, n=n)
    received = harness.consumer(10, of=local_part(first).main).messages
    assert [annotation_of(copy, "x-opt-enqueue-sequence-number") for copy in received] == [2, 3]
    assert [annotation_of(copy, "x-opt-sequence-number") for copy in received] == [1, 2]
    assert [
        annotation_of(copy, "x-opt-sequence-number")
        for copy in harness.consumer(9, of=local_part(second).main).messages
    ] == [
        1,
        2,
        3,
    ]


def test_rules_without_actions_share_a_copy_and_each_action_makes_another() -> None:
    harness = TopicHarness()
    rules = [
        sql_rule("n = 1", name="one"),
        sql_rule("n > 0", name="two"),
        sql_rule("n = 1", "SET kind = 'three'", name="three"),
        sql_rule("n < 5", "SET kind = 'four'; REMOVE n", name="four"),
        sql_rule("n = 9", "SET kind = 'five'", name="five"),
    ]
    subscription = harness.subscribe("a", *rules)
    harness.publish_stored(LARGE, n=1)
    received = harness.consumer(10, of=local_part(subscription).main).messages
    assert {(property_of(copy, "kind"), property_of(copy, "n")) for copy in received} == {
        (None, 1),
        ("three", 1),
        ("four", None),
    }
    assert len(received) == 3


def test_an_action_changes_no_other_copy() -> None:
    harness = TopicHarness()
    changed = harness.subscribe("changed", sql_rule("", "SET sys.Label = 'new'; SET color = 'red'"))
    plain = harness.subscribe("plain")
    harness.publish_stored(LARGE, subject="a subject", color="blue")
    (changed_copy,) = harness.consumer(10, of=local_part(changed).main).messages
    (plain_copy,) = harness.consumer(10, of=local_part(plain).main).messages
    assert changed_copy.properties is not None
    assert plain_copy.properties is not None
    assert (changed_copy.properties.subject, property_of(changed_copy, "color")) == ("new", "red")
    assert (plain_copy.properties.subject, property_of(plain_copy, "color")) == ("a subject", "blue")
    assert changed_copy.data == plain_copy.data == [LARGE]


@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_message_whose_rule_fails_is_dead_lettered_or_dropped(dead_letters: bool) -> None:  # noqa: FBT001
    harness = TopicHarness()
    subscription = harness.subscribe("a", sql_rule("1 / n = 1"), dead_lettering_on_filter_errors=dead_letters)
    other = harness.subscribe("b")
    harness.publish_stored(b"1", n=0)
    assert local_part(subscription).main.active_count == 0
    assert local_part(other).main.active_count == 1
    dead = harness.consumer(10, of=local_part(subscription).dead_letters).messages
    assert [property_of(dead_letter, "DeadLetterReason") for dead_letter in dead] == [
        "FilterEvaluationException"
    ] * dead_letters


def test_a_subscription_with_sessions_dead_letters_messages_without_one() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a", requires_session=True)
    plain = harness.subscribe("b")
    harness.publish_stored(LARGE, session="s")
    harness.publish_stored(LARGE)
    assert (
        local_part(subscription).main.active_count,
        local_part(subscription).dead_letters.active_count,
        local_part(plain).main.active_count,
    ) == (
        1,
        1,
        2,
    )
    (dead,) = harness.consumer(9, of=local_part(subscription).dead_letters).messages
    assert property_of(dead, "DeadLetterReason") == "Session ID is null."
    assert dead.data == [LARGE]


def test_the_shorter_time_to_live_of_topic_and_subscription_applies() -> None:
    harness = TopicHarness(TopicDescription(default_time_to_live_ms=60_000))
    short = harness.subscribe("short", default_time_to_live_ms=10_000, dead_lettering_on_expiration=True)
    long = harness.subscribe("long", default_time_to_live_ms=600_000, dead_lettering_on_expiration=True)
    harness.publish_stored(LARGE)
    harness.advance(11)
    assert (
        local_part(short).main.active_count,
        local_part(short).dead_letters.active_count,
        local_part(long).main.active_count,
    ) == (0, 1, 1)
    harness.advance(50)
    assert (local_part(long).main.active_count, local_part(long).dead_letters.active_count) == (0, 1)
    assert harness.shared_body_counts() == (0, 0)


def test_a_scheduled_message_is_published_when_due_by_the_rules_of_that_time() -> None:
    harness = TopicHarness()
    early = harness.subscribe("early")
    numbers: list[int] = []
    later = message(b"later", due_ms=harness.clock.wall_ms() + 60_000)
    results = harness.send_and_wait(later, to=harness.topic, numbers=numbers)
    assert (results, numbers, harness.topic.runtime().scheduled_count, local_part(early).main.active_count) == (
        [None],
        [1],
        1,
        0,
    )
    late = harness.subscribe("late")
    harness.advance(61)
    assert harness.topic.runtime().scheduled_count == 0
    assert (
        harness.consumer(9, of=local_part(early).main).bodies
        == harness.consumer(9, of=local_part(late).main).bodies
        == [b"later"]
    )


def test_duplicates_are_dropped_for_all_subscriptions() -> None:
    harness = TopicHarness(TopicDescription(requires_duplicate_detection=True))
    subscriptions = [harness.subscribe("a"), harness.subscribe("b")]
    harness.publish_stored(b"1", b"1", message_id="same")
    harness.publish_stored(b"1", message_id="same")
    harness.publish_stored(b"2", message_id="other")
    for subscription in subscriptions:
        assert harness.consumer(9, of=local_part(subscription).main).bodies == [b"1", b"2"]


def test_a_disabled_subscription_gets_no_copies_and_a_receive_disabled_one_does() -> None:
    harness = TopicHarness()
    disabled, closed = harness.subscribe("a", status="Disabled"), harness.subscribe("b", status="ReceiveDisabled")
    harness.publish_stored(LARGE)
    assert (local_part(disabled).main.active_count, local_part(closed).main.active_count) == (0, 1)


def test_the_messages_of_subscriptions_count_against_the_quota_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 10)
    harness = TopicHarness()
    subscription = harness.subscribe("a")
    for _ in range(9):
        harness.publish_stored(LARGE)
    with pytest.raises(QuotaExceeded, match="news"):
        harness.publish(LARGE)
    harness.complete(subscription, 9)
    harness.advance(1)
    harness.publish_stored(LARGE)


def test_removing_or_changing_a_rule_takes_effect_at_once() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a", sql_rule("n = 1", name="One"), sql_rule("n = 2", name="Two"))
    subscription.put_rule(sql_rule("n = 3", name="one"))
    subscription.remove_rule("TWO")
    for n in (1, 2, 3):
        harness.publish_stored(b"%d" % n, n=n)
    assert harness.consumer(9, of=local_part(subscription).main).bodies == [b"3"]


def test_topics_and_subscriptions_work_after_a_restart() -> None:
    harness = TopicHarness()
    subscriptions = [harness.subscribe("a"), harness.subscribe("b", requires_session=True)]
    harness.publish_stored(LARGE, session="s")
    harness.restart()
    harness.publish_stored(LARGE + b"2", session="s")
    assert harness.consumer(9, of=local_part(subscriptions[0]).main).bodies == [LARGE, LARGE + b"2"]
    assert local_part(subscriptions[1]).main.active_count == 2
