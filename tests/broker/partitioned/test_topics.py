"""Partitioned topics and subscriptions: fan-out per part, shared bodies, cleanup, and actions that change sessions."""

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
    results = [Results() for _ in range(STORES)]
    for store, result in enumerate(results):
        harness.namespace.delete_entity_records(entity_id, store, result, TOPIC_ID)
    return results


def counts(subscription: Subscription) -> list[int]:
    return [part.main.local.active_count for part in subscription.parts]


def test_each_part_of_a_subscription_gets_the_messages_of_its_part_of_the_topic() -> None:
    harness = TopicHarness(PARTITIONED_TOPIC)
    first, second = harness.subscribe("one"), harness.subscribe("other")
    harness.store_messages(
        *[message(LARGE, key=key_for_fragment(number)) for number in range(FRAGMENT_COUNT)], to=harness.topic
    )
    assert counts(first) == counts(second) == [1] * FRAGMENT_COUNT
    assert harness.shared_body_counts()[0] == FRAGMENT_COUNT


def test_cleanup_of_a_subscription_deletes_only_bodies_nobody_needs() -> None:
    harness = TopicHarness(PARTITIONED_TOPIC)
    gone, stays = harness.subscribe("gone"), harness.subscribe("stays")
    harness.store_messages(*[message(LARGE) for _ in range(3 * FRAGMENT_COUNT)], to=harness.topic)
    assert harness.shared_body_counts()[0] == 3 * FRAGMENT_COUNT
    harness.namespace.remove(gone.path)
    results = clean_up_entity(harness, gone.entity_id)
    harness.run_until_idle()
    assert results == [[None]] * STORES
    assert rows_of(harness, gone.entity_id) == 0
    assert harness.shared_body_counts()[0] == 3 * FRAGMENT_COUNT
    harness.namespace.remove(stays.path)
    clean_up_entity(harness, stays.entity_id)
    harness.run_until_idle()
    harness.advance(10.0)
    assert rows_of(harness, stays.entity_id) == 0
    assert harness.shared_body_counts()[0] == 0


def test_a_cleanup_interrupted_by_a_crash_is_finished_by_the_next() -> None:
    for steps in range(0, 60, 6):
        harness = TopicHarness(PARTITIONED_TOPIC)
        gone = harness.subscribe("gone")
        harness.subscribe("stays")
        harness.store_messages(*[message(LARGE) for _ in range(FRAGMENT_COUNT)], to=harness.topic)
        harness.namespace.remove(gone.path)
        clean_up_entity(harness, gone.entity_id)
        for _ in range(steps):
            harness.step()
        del harness.subscriptions["gone"]
        harness.crash()
        results = clean_up_entity(harness, gone.entity_id)
        harness.run_until_idle()
        assert results == [[None]] * STORES
        assert rows_of(harness, gone.entity_id) == 0
        stays = harness.topic.subscriptions["stays"]
        assert counts(stays) == [1] * FRAGMENT_COUNT
        received = _receive_all(harness, stays)
        assert received == [LARGE] * FRAGMENT_COUNT


def _receive_all(harness: TopicHarness, subscription: Subscription) -> list[bytes]:
    return harness.start_consumer(FakeConsumer(*[part.main for part in subscription.parts]), 1_000).bodies


def test_an_action_that_sets_a_session_of_another_fragment_dead_letters_the_copy() -> None:
    """Receivers of that session look for it in another fragment."""
    harness = TopicHarness(PARTITIONED_TOPIC)
    rule = sql_rule("", action="SET sys.SessionId = 'changed'")
    subscription = harness.subscribe("changing", rule, requires_session=True)
    fragment = fragment_of(b"changed")
    harness.store_messages(
        message(b"stays", session=key_for_fragment(fragment)),
        message(b"moves", session=key_for_fragment((fragment + 1) % FRAGMENT_COUNT)),
        to=harness.topic,
    )
    assert sum(counts(subscription)) == 1
    assert counts(subscription)[fragment] == 1
    assert subscription.runtime().dead_letter_count == 1


def test_r100_a_rerouted_publication_takes_all_its_copies_to_another_fragment() -> None:
    harness = TopicHarness(PARTITIONED_TOPIC)
    first, second = harness.subscribe("one"), harness.subscribe("other")
    harness.fail_next_sync(0)
    results = [harness.publish(LARGE) for _ in range(FRAGMENT_COUNT)]
    harness.run_until_idle()
    assert results == [[None]] * FRAGMENT_COUNT
    harness.recover()
    assert sum(counts(first)) == sum(counts(second)) == FRAGMENT_COUNT
    assert counts(first) == counts(second)
