"""A body that several subscriptions have is stored once, exactly as long as one of them needs it."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeSessionConsumer, Results
from tests.broker.messages import property_of
from tests.broker.topic_harness import LARGE, TopicHarness, sql_rule
from tests.support.parts import local_part
from twinbus.broker.fragment import shared_bodies
from twinbus.broker.ports.fragment import RemovalCriteria
from twinbus.store.protocol import Table


def subscribe_two(harness: TopicHarness) -> tuple:  # type: ignore[type-arg]
    return harness.subscribe("a"), harness.subscribe("b")


def test_a_body_is_on_disk_once() -> None:
    harness = TopicHarness()
    subscribe_two(harness)
    harness.publish_stored(LARGE, LARGE)
    records = [len(value) for value in harness.disk.synced[Table.LOG].values.values()]
    assert sorted(size > len(LARGE) for size in records) == [False] * 4 + [True] * 2
    assert harness.shared_body_counts() == (2, 0)


def test_small_bodies_and_bodies_of_one_subscription_are_not_shared() -> None:
    harness = TopicHarness()
    harness.subscribe("a")
    harness.publish_stored(LARGE)
    harness.subscribe("b")
    harness.publish_stored(b"small")
    assert harness.shared_body_counts() == (0, 0)


def test_a_shared_body_is_deleted_with_its_last_message() -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    assert harness.complete(first) == [LARGE]
    assert harness.shared_body_counts() == (1, 0)
    assert harness.complete(second) == [LARGE]
    assert harness.shared_body_counts() == (0, 0)


@pytest.mark.parametrize("restarts", [1, 2, 3])
def test_a_shared_body_is_deleted_with_its_last_message_after_restarts(restarts: int) -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    if restarts & 1:
        harness.restart()
    harness.complete(first)
    if restarts & 2:
        harness.restart()
    assert harness.shared_body_counts()[0] == 1
    harness.complete(second)
    assert harness.shared_body_counts() == (0, 0)


def test_bodies_beyond_the_counter_limit_are_checked_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_bodies, "MAX_COUNTED_BODIES", 2)
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    for number in range(10):
        harness.publish_stored(LARGE + b"%d" % number)
    assert len(harness.complete(first, 10)) == 10
    assert harness.shared_body_counts() == (10, 0)
    assert harness.complete(second, 10) == [LARGE + b"%d" % number for number in range(10)]
    assert harness.shared_body_counts() == (0, 0)


def test_a_pending_body_check_is_done_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    harness.restart()
    monkeypatch.setattr(shared_bodies.SharedBodies, "resume", lambda _: None)
    harness.complete(first)
    harness.complete(second)
    assert harness.shared_body_counts() == (1, 1)
    monkeypatch.undo()
    harness.restart()
    assert harness.shared_body_counts() == (0, 0)


@pytest.mark.parametrize("how", ["abandon", "release", "expire"])
def test_a_returned_message_still_shares_its_body(how: str) -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    consumer = harness.consumer(1, of=local_part(first).main)
    if how == "expire":
        harness.advance(61)
    else:
        getattr(local_part(first).main.settlement, how)(consumer.lock_numbers(), Results())
        harness.run_until_idle()
    consumer.leave()
    assert harness.shared_body_counts() == (1, 0)
    assert harness.complete(first) == harness.complete(second) == [LARGE]
    assert harness.shared_body_counts() == (0, 0)


def test_a_changed_message_gets_its_own_copy() -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    consumer = harness.consumer(1, of=local_part(first).main)
    local_part(first).main.settlement.abandon(consumer.lock_numbers(), Results(), {"tries": 1})
    harness.run_until_idle()
    consumer.leave()
    assert harness.complete(second) == [LARGE]
    assert harness.shared_body_counts() == (0, 0)
    (received,) = harness.consumer(1, of=local_part(first).main).messages
    assert (received.data, property_of(received, "tries")) == ([LARGE], 1)
    size = local_part(first).main.message_table.size
    assert size == sum(len(value) for value in harness.disk.synced[Table.LOG].values.values())


@pytest.mark.parametrize("how", ["defer", "dead_letter"])
def test_deferred_and_dead_lettered_messages_get_their_own_copy(how: str) -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    consumer = harness.consumer(1, of=local_part(first).main)
    getattr(local_part(first).main.settlement, how)(consumer.lock_numbers(), Results())
    harness.run_until_idle()
    assert harness.complete(second) == [LARGE]
    assert harness.shared_body_counts() == (0, 0)
    if how == "dead_letter":
        assert harness.consumer(1, of=local_part(first).dead_letters).bodies == [LARGE]
    else:
        replies: list[object] = []
        local_part(first).main.deferral.receive([1], replies.append, receive_and_delete=True)
        harness.run_until_idle()
        assert LARGE in replies[0][0][0]  # type: ignore[index]


def test_receive_and_delete_releases_the_shared_body() -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    assert harness.consumer(1, of=local_part(first).main, deletes=True).bodies == [LARGE]
    assert harness.consumer(1, of=local_part(second).main, deletes=True).bodies == [LARGE]
    assert harness.shared_body_counts() == (0, 0)


def test_a_message_deleted_for_a_detached_consumer_is_stored_with_its_own_copy() -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    consumer = harness.consumer(of=local_part(first).main, deletes=True)
    consumer.grant(1)
    harness.run_until_commit()
    consumer.leave()
    harness.run_until_idle()
    assert harness.complete(second) == [LARGE]
    assert harness.complete(first) == [LARGE]
    assert harness.shared_body_counts() == (0, 0)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_purging_all_subscriptions_deletes_shared_bodies(is_restarted: bool) -> None:  # noqa: FBT001
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(*[LARGE] * 30)
    if is_restarted:
        harness.restart()
    replies: list[object] = []
    for subscription in (first, second):
        local_part(subscription).main.removal.remove_active(RemovalCriteria(), replies.append)
        harness.run_until_idle()
        assert (local_part(subscription).main.active_count, local_part(subscription).main.size) == (0, 0)
    assert len(replies) == 2
    assert harness.shared_body_counts() == (0, 0)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_deleting_a_subscription_keeps_bodies_that_another_needs(is_restarted: bool) -> None:  # noqa: FBT001
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(*[LARGE] * 1_200)
    if is_restarted:
        harness.restart()
    harness.namespace.remove(first.path)
    results = Results()
    harness.namespace.delete_entity_records(first.entity_id, 0, results, harness.topic.entity_id)
    harness.run_until_idle()
    assert results == [None]
    assert harness.shared_body_counts() == (1_200, 0)
    assert len(harness.complete(second, 1_200)) == 1_200
    assert harness.shared_body_counts() == (0, 0)
    assert not [key for key in harness.disk.synced[Table.LOG].values if key.startswith((31).to_bytes(4, "big"))]


def test_deleting_the_topic_deletes_all_records() -> None:
    harness = TopicHarness()
    first, second = subscribe_two(harness)
    harness.publish_stored(LARGE)
    harness.namespace.remove("news")
    for entity_id in (first.entity_id, second.entity_id, harness.topic.entity_id):
        harness.namespace.delete_entity_records(entity_id, 0, Results())
    harness.run_until_idle()
    assert not harness.disk.synced[Table.LOG].values
    assert not harness.disk.synced[Table.INDEX].values


def test_the_window_limit_counts_shared_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.dispatcher.WINDOW_BYTES", 5_000)
    monkeypatch.setattr("twinbus.broker.fragment.window.WINDOW_BYTES", 5_000)
    harness = TopicHarness()
    first, _ = subscribe_two(harness)
    harness.publish_stored(*[LARGE] * 50)
    harness.restart()
    consumer = harness.consumer(1, of=local_part(first).main)
    assert local_part(first).main.dispatcher.window.ready_bytes < 8_000
    consumer.grant(49)
    harness.run_until_idle()
    assert len(consumer.bodies) == 50


def test_peeking_and_browsing_show_whole_messages() -> None:
    harness = TopicHarness()
    first, _ = subscribe_two(harness)
    harness.publish_stored(LARGE, LARGE)
    harness.restart()
    replies: list[object] = []
    local_part(first).main.browser.peek(1, 10, 1_000_000, replies.append)
    harness.run_until_idle()
    (messages,) = replies
    assert [LARGE in payload for payload in messages] == [True, True]  # type: ignore[attr-defined]


def test_sessions_read_whole_messages() -> None:
    harness = TopicHarness()
    first = harness.subscribe("a", requires_session=True)
    harness.subscribe("b")
    for number in range(3):
        harness.publish_stored(LARGE + b"%d" % number, session="s")
    harness.restart()
    consumer = FakeSessionConsumer(local_part(first).main, session=b"s")
    harness.run_until_idle()
    consumer.grant(5)
    harness.run_until_idle()
    assert consumer.bodies == [LARGE + b"%d" % number for number in range(3)]


def test_filters_read_messages_that_will_be_shared() -> None:
    harness = TopicHarness()
    both = [harness.subscribe("a", sql_rule("color = 'red'")), harness.subscribe("b", sql_rule("color LIKE 'r%'"))]
    harness.publish_stored(LARGE, color="red")
    assert [local_part(subscription).main.active_count for subscription in both] == [1, 1]
    assert harness.shared_body_counts() == (1, 0)


def test_a_message_completed_while_its_body_is_read_is_not_delivered_again() -> None:
    harness = TopicHarness()
    first, _ = subscribe_two(harness)
    harness.publish_stored(LARGE, LARGE, LARGE)
    holder, other = harness.consumer(3, of=local_part(first).main), harness.consumer(0, of=local_part(first).main)
    highest, *_, lowest = sorted(holder.lock_numbers(), reverse=True)
    local_part(first).main.settlement.reclaim([lowest])  # so that all records are read again
    other.grant(3)
    local_part(first).main.settlement.complete([highest], Results())
    harness.run_until_idle()
    assert len(other.deliveries) == 1
    assert local_part(first).main.active_count == 2
