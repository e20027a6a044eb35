"""What is sent to a topic is copied into the subscriptions that have a rule for it."""

from __future__ import annotations

import pytest

from tests.broker.messages import annotation_of, message, property_of
from tests.broker.topics import LARGE, TopicRig, sql
from tests.parts import part_of
from twinbus.model.errors import QuotaExceeded
from twinbus.model.topic import TopicDescription


@pytest.mark.parametrize("body", [b"small", LARGE])
def test_every_subscription_gets_a_copy(body: bytes) -> None:
    rig = TopicRig()
    subscriptions = [rig.subscribe(name) for name in ("a", "b", "c")]
    rig.published(body, body + b"2")
    for subscription in subscriptions:
        assert rig.consumer(10, of=part_of(subscription).main).bodies == [body, body + b"2"]
        assert subscription.runtime().active_count == 2


def test_a_message_that_no_rule_is_true_for_is_accepted_and_gone() -> None:
    rig = TopicRig()
    subscription = rig.subscribe("a", sql("color = 'red'"))
    rig.published(b"1", color="blue")
    assert part_of(subscription).main.count == 0
    assert part_of(rig.topic).main.count == 0


def test_a_topic_without_subscriptions_takes_messages() -> None:
    rig = TopicRig()
    rig.published(b"1")
    rig.subscribe("late")
    assert part_of(rig.topic.subscriptions["late"]).main.count == 0


def test_copies_know_the_number_that_the_topic_gave() -> None:
    rig = TopicRig()
    first, second = rig.subscribe("a", sql("n > 1")), rig.subscribe("b")
    for n in (1, 2, 3):
        rig.published(b"%d" % n, n=n)
    found = rig.consumer(10, of=part_of(first).main).messages
    assert [annotation_of(one, "x-opt-enqueue-sequence-number") for one in found] == [2, 3]
    assert [annotation_of(one, "x-opt-sequence-number") for one in found] == [1, 2]
    assert [
        annotation_of(one, "x-opt-sequence-number") for one in rig.consumer(9, of=part_of(second).main).messages
    ] == [
        1,
        2,
        3,
    ]


def test_rules_without_an_action_give_one_copy_and_each_with_one_another() -> None:
    rig = TopicRig()
    rules = [
        sql("n = 1", name="one"),
        sql("n > 0", name="two"),
        sql("n = 1", "SET kind = 'three'", name="three"),
        sql("n < 5", "SET kind = 'four'; REMOVE n", name="four"),
        sql("n = 9", "SET kind = 'five'", name="five"),
    ]
    subscription = rig.subscribe("a", *rules)
    rig.published(LARGE, n=1)
    found = rig.consumer(10, of=part_of(subscription).main).messages
    assert {(property_of(one, "kind"), property_of(one, "n")) for one in found} == {
        (None, 1),
        ("three", 1),
        ("four", None),
    }
    assert len(found) == 3


def test_an_action_changes_no_other_copy() -> None:
    rig = TopicRig()
    changed = rig.subscribe("changed", sql("", "SET sys.Label = 'new'; SET color = 'red'"))
    plain = rig.subscribe("plain")
    rig.published(LARGE, subject="a subject", color="blue")
    (one,) = rig.consumer(10, of=part_of(changed).main).messages
    (other,) = rig.consumer(10, of=part_of(plain).main).messages
    assert one.properties is not None
    assert other.properties is not None
    assert (one.properties.subject, property_of(one, "color")) == ("new", "red")
    assert (other.properties.subject, property_of(other, "color")) == ("a subject", "blue")
    assert one.data == other.data == [LARGE]


@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_rule_that_cannot_be_evaluated_dead_letters_or_drops(dead_letters: bool) -> None:  # noqa: FBT001
    rig = TopicRig()
    subscription = rig.subscribe("a", sql("1 / n = 1"), dead_lettering_on_filter_errors=dead_letters)
    other = rig.subscribe("b")
    rig.published(b"1", n=0)
    assert part_of(subscription).main.count == 0
    assert part_of(other).main.count == 1
    found = rig.consumer(10, of=part_of(subscription).dead_letters).messages
    assert [property_of(one, "DeadLetterReason") for one in found] == ["FilterEvaluationException"] * dead_letters


def test_a_subscription_with_sessions_takes_the_session_of_a_message() -> None:
    rig = TopicRig()
    subscription = rig.subscribe("a", requires_session=True)
    plain = rig.subscribe("b")
    rig.published(LARGE, session="s")
    rig.published(LARGE)
    assert (part_of(subscription).main.count, part_of(subscription).dead_letters.count, part_of(plain).main.count) == (
        1,
        1,
        2,
    )
    (dead,) = rig.consumer(9, of=part_of(subscription).dead_letters).messages
    assert property_of(dead, "DeadLetterReason") == "Session ID is null."
    assert dead.data == [LARGE]


def test_a_message_lives_as_long_as_topic_and_subscription_let_it() -> None:
    rig = TopicRig(TopicDescription(default_time_to_live_ms=60_000))
    short = rig.subscribe("short", default_time_to_live_ms=10_000, dead_lettering_on_expiration=True)
    long = rig.subscribe("long", default_time_to_live_ms=600_000, dead_lettering_on_expiration=True)
    rig.published(LARGE)
    rig.wait(11)
    assert (part_of(short).main.count, part_of(short).dead_letters.count, part_of(long).main.count) == (0, 1, 1)
    rig.wait(50)
    assert (part_of(long).main.count, part_of(long).dead_letters.count) == (0, 1)
    assert rig.kept() == (0, 0)


def test_a_scheduled_message_is_published_when_it_is_due_as_the_rules_are_then() -> None:
    rig = TopicRig()
    early = rig.subscribe("early")
    numbers: list[int] = []
    later = message(b"later", due_ms=rig.clock.wall_ms() + 60_000)
    answers = rig.sent(later, to=rig.topic, numbers=numbers)
    assert (answers, numbers, rig.topic.runtime().scheduled_count, part_of(early).main.count) == ([None], [1], 1, 0)
    late = rig.subscribe("late")
    rig.wait(61)
    assert rig.topic.runtime().scheduled_count == 0
    assert rig.consumer(9, of=part_of(early).main).bodies == rig.consumer(9, of=part_of(late).main).bodies == [b"later"]


def test_duplicates_are_dropped_for_all_subscriptions() -> None:
    rig = TopicRig(TopicDescription(requires_duplicate_detection=True))
    subscriptions = [rig.subscribe("a"), rig.subscribe("b")]
    rig.published(b"1", b"1", message_id="same")
    rig.published(b"1", message_id="same")
    rig.published(b"2", message_id="other")
    for subscription in subscriptions:
        assert rig.consumer(9, of=part_of(subscription).main).bodies == [b"1", b"2"]


def test_a_disabled_subscription_gets_nothing_and_one_that_only_cannot_be_received_from_does() -> None:
    rig = TopicRig()
    disabled, closed = rig.subscribe("a", status="Disabled"), rig.subscribe("b", status="ReceiveDisabled")
    rig.published(LARGE)
    assert (part_of(disabled).main.count, part_of(closed).main.count) == (0, 1)


def test_a_topic_is_full_by_what_its_subscriptions_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.part.MEGABYTE", 10)
    rig = TopicRig()
    subscription = rig.subscribe("a")
    for _ in range(9):
        rig.published(LARGE)
    with pytest.raises(QuotaExceeded, match="news"):
        rig.publish(LARGE)
    rig.complete(subscription, 9)
    rig.wait(1)
    rig.published(LARGE)


def test_a_rule_that_is_removed_or_changed_counts_from_then_on() -> None:
    rig = TopicRig()
    subscription = rig.subscribe("a", sql("n = 1", name="One"), sql("n = 2", name="Two"))
    subscription.put_rule(sql("n = 3", name="one"))
    subscription.remove_rule("TWO")
    for n in (1, 2, 3):
        rig.published(b"%d" % n, n=n)
    assert rig.consumer(9, of=part_of(subscription).main).bodies == [b"3"]


def test_after_a_restart_topics_and_subscriptions_go_on() -> None:
    rig = TopicRig()
    subscriptions = [rig.subscribe("a"), rig.subscribe("b", requires_session=True)]
    rig.published(LARGE, session="s")
    rig.restart()
    rig.published(LARGE + b"2", session="s")
    assert rig.consumer(9, of=part_of(subscriptions[0]).main).bodies == [LARGE, LARGE + b"2"]
    assert part_of(subscriptions[1]).main.count == 2
