"""What is sent to a topic is copied into the subscriptions that have a rule for it."""

from __future__ import annotations

import pytest

from tests.broker.messages import annotation_of, message, property_of
from tests.broker.topic_harness import LARGE, TopicHarness, sql_rule
from tests.support.parts import local_part
from twinbus.model.errors import QuotaExceeded
from twinbus.model.topic import TopicDescription


@pytest.mark.parametrize("body", [b"small", LARGE])
def test_every_subscription_gets_a_copy(body: bytes) -> None:
    rig = TopicHarness()
    subscriptions = [rig.subscribe(name) for name in ("a", "b", "c")]
    rig.publish_stored(body, body + b"2")
    for subscription in subscriptions:
        assert rig.consumer(10, of=local_part(subscription).main).bodies == [body, body + b"2"]
        assert subscription.runtime().active_count == 2


def test_a_message_that_no_rule_is_true_for_is_accepted_and_gone() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a", sql_rule("color = 'red'"))
    rig.publish_stored(b"1", color="blue")
    assert local_part(subscription).main.active_count == 0
    assert local_part(rig.topic).main.active_count == 0


def test_a_topic_without_subscriptions_takes_messages() -> None:
    rig = TopicHarness()
    rig.publish_stored(b"1")
    rig.subscribe("late")
    assert local_part(rig.topic.subscriptions["late"]).main.active_count == 0


def test_copies_know_the_number_that_the_topic_gave() -> None:
    rig = TopicHarness()
    first, second = rig.subscribe("a", sql_rule("n > 1")), rig.subscribe("b")
    for n in (1, 2, 3):
        rig.publish_stored(b"%d" % n, n=n)
    found = rig.consumer(10, of=local_part(first).main).messages
    assert [annotation_of(one, "x-opt-enqueue-sequence-number") for one in found] == [2, 3]
    assert [annotation_of(one, "x-opt-sequence-number") for one in found] == [1, 2]
    assert [
        annotation_of(one, "x-opt-sequence-number") for one in rig.consumer(9, of=local_part(second).main).messages
    ] == [
        1,
        2,
        3,
    ]


def test_rules_without_an_action_give_one_copy_and_each_with_one_another() -> None:
    rig = TopicHarness()
    rules = [
        sql_rule("n = 1", name="one"),
        sql_rule("n > 0", name="two"),
        sql_rule("n = 1", "SET kind = 'three'", name="three"),
        sql_rule("n < 5", "SET kind = 'four'; REMOVE n", name="four"),
        sql_rule("n = 9", "SET kind = 'five'", name="five"),
    ]
    subscription = rig.subscribe("a", *rules)
    rig.publish_stored(LARGE, n=1)
    found = rig.consumer(10, of=local_part(subscription).main).messages
    assert {(property_of(one, "kind"), property_of(one, "n")) for one in found} == {
        (None, 1),
        ("three", 1),
        ("four", None),
    }
    assert len(found) == 3


def test_an_action_changes_no_other_copy() -> None:
    rig = TopicHarness()
    changed = rig.subscribe("changed", sql_rule("", "SET sys.Label = 'new'; SET color = 'red'"))
    plain = rig.subscribe("plain")
    rig.publish_stored(LARGE, subject="a subject", color="blue")
    (one,) = rig.consumer(10, of=local_part(changed).main).messages
    (other,) = rig.consumer(10, of=local_part(plain).main).messages
    assert one.properties is not None
    assert other.properties is not None
    assert (one.properties.subject, property_of(one, "color")) == ("new", "red")
    assert (other.properties.subject, property_of(other, "color")) == ("a subject", "blue")
    assert one.data == other.data == [LARGE]


@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_rule_that_cannot_be_evaluated_dead_letters_or_drops(dead_letters: bool) -> None:  # noqa: FBT001
    rig = TopicHarness()
    subscription = rig.subscribe("a", sql_rule("1 / n = 1"), dead_lettering_on_filter_errors=dead_letters)
    other = rig.subscribe("b")
    rig.publish_stored(b"1", n=0)
    assert local_part(subscription).main.active_count == 0
    assert local_part(other).main.active_count == 1
    found = rig.consumer(10, of=local_part(subscription).dead_letters).messages
    assert [property_of(one, "DeadLetterReason") for one in found] == ["FilterEvaluationException"] * dead_letters


def test_a_subscription_with_sessions_takes_the_session_of_a_message() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a", requires_session=True)
    plain = rig.subscribe("b")
    rig.publish_stored(LARGE, session="s")
    rig.publish_stored(LARGE)
    assert (
        local_part(subscription).main.active_count,
        local_part(subscription).dead_letters.active_count,
        local_part(plain).main.active_count,
    ) == (
        1,
        1,
        2,
    )
    (dead,) = rig.consumer(9, of=local_part(subscription).dead_letters).messages
    assert property_of(dead, "DeadLetterReason") == "Session ID is null."
    assert dead.data == [LARGE]


def test_a_message_lives_as_long_as_topic_and_subscription_let_it() -> None:
    rig = TopicHarness(TopicDescription(default_time_to_live_ms=60_000))
    short = rig.subscribe("short", default_time_to_live_ms=10_000, dead_lettering_on_expiration=True)
    long = rig.subscribe("long", default_time_to_live_ms=600_000, dead_lettering_on_expiration=True)
    rig.publish_stored(LARGE)
    rig.advance(11)
    assert (
        local_part(short).main.active_count,
        local_part(short).dead_letters.active_count,
        local_part(long).main.active_count,
    ) == (0, 1, 1)
    rig.advance(50)
    assert (local_part(long).main.active_count, local_part(long).dead_letters.active_count) == (0, 1)
    assert rig.shared_body_counts() == (0, 0)


def test_a_scheduled_message_is_published_when_it_is_due_as_the_rules_are_then() -> None:
    rig = TopicHarness()
    early = rig.subscribe("early")
    numbers: list[int] = []
    later = message(b"later", due_ms=rig.clock.wall_ms() + 60_000)
    answers = rig.send_and_wait(later, to=rig.topic, numbers=numbers)
    assert (answers, numbers, rig.topic.runtime().scheduled_count, local_part(early).main.active_count) == (
        [None],
        [1],
        1,
        0,
    )
    late = rig.subscribe("late")
    rig.advance(61)
    assert rig.topic.runtime().scheduled_count == 0
    assert (
        rig.consumer(9, of=local_part(early).main).bodies
        == rig.consumer(9, of=local_part(late).main).bodies
        == [b"later"]
    )


def test_duplicates_are_dropped_for_all_subscriptions() -> None:
    rig = TopicHarness(TopicDescription(requires_duplicate_detection=True))
    subscriptions = [rig.subscribe("a"), rig.subscribe("b")]
    rig.publish_stored(b"1", b"1", message_id="same")
    rig.publish_stored(b"1", message_id="same")
    rig.publish_stored(b"2", message_id="other")
    for subscription in subscriptions:
        assert rig.consumer(9, of=local_part(subscription).main).bodies == [b"1", b"2"]


def test_a_disabled_subscription_gets_nothing_and_one_that_only_cannot_be_received_from_does() -> None:
    rig = TopicHarness()
    disabled, closed = rig.subscribe("a", status="Disabled"), rig.subscribe("b", status="ReceiveDisabled")
    rig.publish_stored(LARGE)
    assert (local_part(disabled).main.active_count, local_part(closed).main.active_count) == (0, 1)


def test_a_topic_is_full_by_what_its_subscriptions_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 10)
    rig = TopicHarness()
    subscription = rig.subscribe("a")
    for _ in range(9):
        rig.publish_stored(LARGE)
    with pytest.raises(QuotaExceeded, match="news"):
        rig.publish(LARGE)
    rig.complete(subscription, 9)
    rig.advance(1)
    rig.publish_stored(LARGE)


def test_a_rule_that_is_removed_or_changed_counts_from_then_on() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a", sql_rule("n = 1", name="One"), sql_rule("n = 2", name="Two"))
    subscription.put_rule(sql_rule("n = 3", name="one"))
    subscription.remove_rule("TWO")
    for n in (1, 2, 3):
        rig.publish_stored(b"%d" % n, n=n)
    assert rig.consumer(9, of=local_part(subscription).main).bodies == [b"3"]


def test_after_a_restart_topics_and_subscriptions_go_on() -> None:
    rig = TopicHarness()
    subscriptions = [rig.subscribe("a"), rig.subscribe("b", requires_session=True)]
    rig.publish_stored(LARGE, session="s")
    rig.restart()
    rig.publish_stored(LARGE + b"2", session="s")
    assert rig.consumer(9, of=local_part(subscriptions[0]).main).bodies == [LARGE, LARGE + b"2"]
    assert local_part(subscriptions[1]).main.active_count == 2
