"""A partitioned topic and its subscriptions, part for part: shared bodies, burial, and rules that change sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.consumers import Answers, TestConsumer
from tests.broker.messages import key_for, message
from tests.broker.rig import STORES
from tests.broker.topics import LARGE, TOPIC_ID, TopicRig, sql
from twinbus.broker.keys import entity_range
from twinbus.model.description import FRAGMENTS
from twinbus.model.partition_key import fragment_of
from twinbus.model.topic import TopicDescription

if TYPE_CHECKING:
    from twinbus.broker.subscription import Subscription

PARTITIONED_TOPIC = TopicDescription(enable_partitioning=True)


def rows_of(rig: TopicRig, entity_id: int) -> int:
    start, end = entity_range(entity_id)
    tables = [table for disk in rig.disks for table in disk.synced.values()]
    return sum(start <= key < end for table in tables for key in table.values)


def bury(rig: TopicRig, entity_id: int) -> list[Answers]:
    answers = [Answers() for _ in range(STORES)]
    for store, answer in enumerate(answers):
        rig.namespace.bury(entity_id, store, answer, TOPIC_ID)
    return answers


def counts(subscription: Subscription) -> list[int]:
    return [part.main.local.count for part in subscription.parts]


def test_each_part_of_a_subscription_gets_what_its_part_of_the_topic_gets() -> None:
    rig = TopicRig(PARTITIONED_TOPIC)
    one, other = rig.subscribe("one"), rig.subscribe("other")
    rig.store_messages(*[message(LARGE, key=key_for(number)) for number in range(FRAGMENTS)], to=rig.topic)
    assert counts(one) == counts(other) == [1] * FRAGMENTS
    assert rig.kept()[0] == FRAGMENTS


def test_a_subscription_that_is_buried_leaves_no_body_behind_and_takes_none_from_others() -> None:
    rig = TopicRig(PARTITIONED_TOPIC)
    gone, stays = rig.subscribe("gone"), rig.subscribe("stays")
    rig.store_messages(*[message(LARGE) for _ in range(3 * FRAGMENTS)], to=rig.topic)
    assert rig.kept()[0] == 3 * FRAGMENTS
    rig.namespace.remove(gone.path)
    answers = bury(rig, gone.entity_id)
    rig.settle()
    assert answers == [[None]] * STORES
    assert rows_of(rig, gone.entity_id) == 0
    assert rig.kept()[0] == 3 * FRAGMENTS
    rig.namespace.remove(stays.path)
    bury(rig, stays.entity_id)
    rig.settle()
    rig.wait(10.0)
    assert rows_of(rig, stays.entity_id) == 0
    assert rig.kept()[0] == 0


def test_a_burial_that_a_crash_cuts_off_is_done_by_the_next_one() -> None:
    for steps in range(0, 60, 6):
        rig = TopicRig(PARTITIONED_TOPIC)
        gone = rig.subscribe("gone")
        rig.subscribe("stays")
        rig.store_messages(*[message(LARGE) for _ in range(FRAGMENTS)], to=rig.topic)
        rig.namespace.remove(gone.path)
        bury(rig, gone.entity_id)
        for _ in range(steps):
            rig.step()
        del rig.subscribed["gone"]
        rig.crash()
        answers = bury(rig, gone.entity_id)
        rig.settle()
        assert answers == [[None]] * STORES
        assert rows_of(rig, gone.entity_id) == 0
        stays = rig.topic.subscriptions["stays"]
        assert counts(stays) == [1] * FRAGMENTS
        consumer = _consumer(rig, stays)
        assert consumer == [LARGE] * FRAGMENTS


def _consumer(rig: TopicRig, subscription: Subscription) -> list[bytes]:
    return rig.begun(TestConsumer(*[part.main for part in subscription.parts]), 1_000).bodies


def test_a_rule_that_gives_a_session_of_another_fragment_dead_letters_the_copy_and_says_why() -> None:
    """Whoever accepts that session looks for it elsewhere."""
    rig = TopicRig(PARTITIONED_TOPIC)
    rule = sql("", action="SET sys.SessionId = 'changed'")
    subscription = rig.subscribe("changing", rule, requires_session=True)
    here = fragment_of(b"changed")
    rig.store_messages(
        message(b"stays", session=key_for(here)),
        message(b"moves", session=key_for((here + 1) % FRAGMENTS)),
        to=rig.topic,
    )
    assert sum(counts(subscription)) == 1
    assert counts(subscription)[here] == 1
    assert subscription.runtime().dead_letter_count == 1


def test_r100_a_publication_without_a_key_goes_to_another_fragment_with_all_its_copies() -> None:
    rig = TopicRig(PARTITIONED_TOPIC)
    one, other = rig.subscribe("one"), rig.subscribe("other")
    rig.fail(0)
    answers = [rig.publish(LARGE) for _ in range(FRAGMENTS)]
    rig.settle()
    assert answers == [[None]] * FRAGMENTS
    rig.recover()
    assert sum(counts(one)) == sum(counts(other)) == FRAGMENTS
    assert counts(one) == counts(other)
