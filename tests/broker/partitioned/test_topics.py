"""A partitioned topic and its subscriptions, part for part: shared bodies, burial, and rules that change sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.harness import STORES
from tests.broker.messages import key_for_fragment, message
from tests.broker.topic_harness import LARGE, TOPIC_ID, TopicHarness, sql_rule
from twinbus.broker.store_keys import entity_key_range
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.partition_key import fragment_of
from twinbus.model.topic import TopicDescription

if TYPE_CHECKING:
    from twinbus.broker.entities.subscription import Subscription

PARTITIONED_TOPIC = TopicDescription(enable_partitioning=True)


def rows_of(harness: TopicHarness, entity_id: int) -> int:
    start, end = entity_key_range(entity_id)
    tables = [table for disk in harness.disks for table in disk.synced.values()]
    return sum(start <= key < end for table in tables for key in table.values)


def clean_up_entity(harness: TopicHarness, entity_id: int) -> list[Results]:
    answers = [Results() for _ in range(STORES)]
    for store, answer in enumerate(answers):
        harness.namespace.delete_entity_records(entity_id, store, answer, TOPIC_ID)
    return answers


def counts(subscription: Subscription) -> list[int]:
    return [part.main.local.active_count for part in subscription.parts]


def test_each_part_of_a_subscription_gets_what_its_part_of_the_topic_gets() -> None:
    rig = TopicHarness(PARTITIONED_TOPIC)
    one, other = rig.subscribe("one"), rig.subscribe("other")
    rig.store_messages(
        *[message(LARGE, key=key_for_fragment(number)) for number in range(FRAGMENT_COUNT)], to=rig.topic
    )
    assert counts(one) == counts(other) == [1] * FRAGMENT_COUNT
    assert rig.shared_body_counts()[0] == FRAGMENT_COUNT


def test_a_subscription_that_is_buried_leaves_no_body_behind_and_takes_none_from_others() -> None:
    rig = TopicHarness(PARTITIONED_TOPIC)
    gone, stays = rig.subscribe("gone"), rig.subscribe("stays")
    rig.store_messages(*[message(LARGE) for _ in range(3 * FRAGMENT_COUNT)], to=rig.topic)
    assert rig.shared_body_counts()[0] == 3 * FRAGMENT_COUNT
    rig.namespace.remove(gone.path)
    answers = clean_up_entity(rig, gone.entity_id)
    rig.run_until_idle()
    assert answers == [[None]] * STORES
    assert rows_of(rig, gone.entity_id) == 0
    assert rig.shared_body_counts()[0] == 3 * FRAGMENT_COUNT
    rig.namespace.remove(stays.path)
    clean_up_entity(rig, stays.entity_id)
    rig.run_until_idle()
    rig.advance(10.0)
    assert rows_of(rig, stays.entity_id) == 0
    assert rig.shared_body_counts()[0] == 0


def test_a_burial_that_a_crash_cuts_off_is_done_by_the_next_one() -> None:
    for steps in range(0, 60, 6):
        rig = TopicHarness(PARTITIONED_TOPIC)
        gone = rig.subscribe("gone")
        rig.subscribe("stays")
        rig.store_messages(*[message(LARGE) for _ in range(FRAGMENT_COUNT)], to=rig.topic)
        rig.namespace.remove(gone.path)
        clean_up_entity(rig, gone.entity_id)
        for _ in range(steps):
            rig.step()
        del rig.subscriptions["gone"]
        rig.crash()
        answers = clean_up_entity(rig, gone.entity_id)
        rig.run_until_idle()
        assert answers == [[None]] * STORES
        assert rows_of(rig, gone.entity_id) == 0
        stays = rig.topic.subscriptions["stays"]
        assert counts(stays) == [1] * FRAGMENT_COUNT
        consumer = _consumer(rig, stays)
        assert consumer == [LARGE] * FRAGMENT_COUNT


def _consumer(harness: TopicHarness, subscription: Subscription) -> list[bytes]:
    return harness.start_consumer(FakeConsumer(*[part.main for part in subscription.parts]), 1_000).bodies


def test_a_rule_that_gives_a_session_of_another_fragment_dead_letters_the_copy_and_says_why() -> None:
    """Whoever accepts that session looks for it elsewhere."""
    rig = TopicHarness(PARTITIONED_TOPIC)
    rule = sql_rule("", action="SET sys.SessionId = 'changed'")
    subscription = rig.subscribe("changing", rule, requires_session=True)
    here = fragment_of(b"changed")
    rig.store_messages(
        message(b"stays", session=key_for_fragment(here)),
        message(b"moves", session=key_for_fragment((here + 1) % FRAGMENT_COUNT)),
        to=rig.topic,
    )
    assert sum(counts(subscription)) == 1
    assert counts(subscription)[here] == 1
    assert subscription.runtime().dead_letter_count == 1


def test_r100_a_publication_without_a_key_goes_to_another_fragment_with_all_its_copies() -> None:
    rig = TopicHarness(PARTITIONED_TOPIC)
    one, other = rig.subscribe("one"), rig.subscribe("other")
    rig.fail_next_sync(0)
    answers = [rig.publish(LARGE) for _ in range(FRAGMENT_COUNT)]
    rig.run_until_idle()
    assert answers == [[None]] * FRAGMENT_COUNT
    rig.recover()
    assert sum(counts(one)) == sum(counts(other)) == FRAGMENT_COUNT
    assert counts(one) == counts(other)
