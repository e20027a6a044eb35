"""What several subscriptions have is kept once, for as long as one of them needs it, and not longer."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeSessionConsumer, Results
from tests.broker.messages import property_of
from tests.broker.topic_harness import LARGE, TopicHarness, sql_rule
from tests.support.parts import local_part
from twinbus.broker.fragment import shared_bodies
from twinbus.broker.ports.fragment import RemovalCriteria
from twinbus.store.protocol import Table


def two(harness: TopicHarness) -> tuple:  # type: ignore[type-arg]
    return harness.subscribe("a"), harness.subscribe("b")


def test_a_body_is_on_disk_once() -> None:
    rig = TopicHarness()
    two(rig)
    rig.publish_stored(LARGE, LARGE)
    records = [len(value) for value in rig.disk.synced[Table.LOG].values.values()]
    assert sorted(size > len(LARGE) for size in records) == [False] * 4 + [True] * 2
    assert rig.shared_body_counts() == (2, 0)


def test_a_small_body_and_one_that_only_one_has_are_not_shared() -> None:
    rig = TopicHarness()
    rig.subscribe("a")
    rig.publish_stored(LARGE)
    rig.subscribe("b")
    rig.publish_stored(b"small")
    assert rig.shared_body_counts() == (0, 0)


def test_it_goes_with_the_last_that_needs_it() -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    assert rig.complete(first) == [LARGE]
    assert rig.shared_body_counts() == (1, 0)
    assert rig.complete(second) == [LARGE]
    assert rig.shared_body_counts() == (0, 0)


@pytest.mark.parametrize("restarts", [1, 2, 3])
def test_it_goes_after_restarts_too(restarts: int) -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    if restarts & 1:
        rig.restart()
    rig.complete(first)
    if restarts & 2:
        rig.restart()
    assert rig.shared_body_counts()[0] == 1
    rig.complete(second)
    assert rig.shared_body_counts() == (0, 0)


def test_what_is_no_longer_counted_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_bodies, "MAX_COUNTED_BODIES", 2)
    rig = TopicHarness()
    first, second = two(rig)
    for number in range(10):
        rig.publish_stored(LARGE + b"%d" % number)
    assert len(rig.complete(first, 10)) == 10
    assert rig.shared_body_counts() == (10, 0)
    assert rig.complete(second, 10) == [LARGE + b"%d" % number for number in range(10)]
    assert rig.shared_body_counts() == (0, 0)


def test_a_note_that_a_stop_left_is_looked_at_after_the_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    rig.restart()
    monkeypatch.setattr(shared_bodies.SharedBodies, "resume", lambda _: None)
    rig.complete(first)
    rig.complete(second)
    assert rig.shared_body_counts() == (1, 1)
    monkeypatch.undo()
    rig.restart()
    assert rig.shared_body_counts() == (0, 0)


@pytest.mark.parametrize("how", ["abandon", "release", "expire"])
def test_what_comes_back_still_shares(how: str) -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    consumer = rig.consumer(1, of=local_part(first).main)
    if how == "expire":
        rig.advance(61)
    else:
        getattr(local_part(first).main.settlement, how)(consumer.lock_numbers(), Results())
        rig.run_until_idle()
    consumer.leave()
    assert rig.shared_body_counts() == (1, 0)
    assert rig.complete(first) == rig.complete(second) == [LARGE]
    assert rig.shared_body_counts() == (0, 0)


def test_what_is_changed_has_a_copy_of_its_own() -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    consumer = rig.consumer(1, of=local_part(first).main)
    local_part(first).main.settlement.abandon(consumer.lock_numbers(), Results(), {"tries": 1})
    rig.run_until_idle()
    consumer.leave()
    assert rig.complete(second) == [LARGE]
    assert rig.shared_body_counts() == (0, 0)
    (found,) = rig.consumer(1, of=local_part(first).main).messages
    assert (found.data, property_of(found, "tries")) == ([LARGE], 1)
    size = local_part(first).main.message_table.size
    assert size == sum(len(value) for value in rig.disk.synced[Table.LOG].values.values())


@pytest.mark.parametrize("how", ["defer", "dead_letter"])
def test_what_is_set_aside_has_a_copy_of_its_own(how: str) -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    consumer = rig.consumer(1, of=local_part(first).main)
    getattr(local_part(first).main.settlement, how)(consumer.lock_numbers(), Results())
    rig.run_until_idle()
    assert rig.complete(second) == [LARGE]
    assert rig.shared_body_counts() == (0, 0)
    if how == "dead_letter":
        assert rig.consumer(1, of=local_part(first).dead_letters).bodies == [LARGE]
    else:
        found: list[object] = []
        local_part(first).main.deferral.receive([1], found.append, receive_and_delete=True)
        rig.run_until_idle()
        assert LARGE in found[0][0][0]  # type: ignore[index]


def test_receive_and_delete_needs_it_no_longer() -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    assert rig.consumer(1, of=local_part(first).main, deletes=True).bodies == [LARGE]
    assert rig.consumer(1, of=local_part(second).main, deletes=True).bodies == [LARGE]
    assert rig.shared_body_counts() == (0, 0)


def test_what_was_deleted_for_somebody_who_has_gone_is_stored_with_a_copy_of_its_own() -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    consumer = rig.consumer(of=local_part(first).main, deletes=True)
    consumer.grant(1)
    rig.run_until_commit()
    consumer.leave()
    rig.run_until_idle()
    assert rig.complete(second) == [LARGE]
    assert rig.complete(first) == [LARGE]
    assert rig.shared_body_counts() == (0, 0)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_purging_a_subscription_leaves_nothing(is_restarted: bool) -> None:  # noqa: FBT001
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(*[LARGE] * 30)
    if is_restarted:
        rig.restart()
    done: list[object] = []
    for subscription in (first, second):
        local_part(subscription).main.removal.remove_active(RemovalCriteria(), done.append)
        rig.run_until_idle()
        assert (local_part(subscription).main.active_count, local_part(subscription).main.size) == (0, 0)
    assert len(done) == 2
    assert rig.shared_body_counts() == (0, 0)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_deleting_a_subscription_leaves_what_the_other_needs(is_restarted: bool) -> None:  # noqa: FBT001
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(*[LARGE] * 1_200)
    if is_restarted:
        rig.restart()
    rig.namespace.remove(first.path)
    answers = Results()
    rig.namespace.delete_entity_records(first.entity_id, 0, answers, rig.topic.entity_id)
    rig.run_until_idle()
    assert answers == [None]
    assert rig.shared_body_counts() == (1_200, 0)
    assert len(rig.complete(second, 1_200)) == 1_200
    assert rig.shared_body_counts() == (0, 0)
    assert not [key for key in rig.disk.synced[Table.LOG].values if key.startswith((31).to_bytes(4, "big"))]


def test_deleting_the_topic_leaves_nothing_at_all() -> None:
    rig = TopicHarness()
    first, second = two(rig)
    rig.publish_stored(LARGE)
    rig.namespace.remove("news")
    for entity_id in (first.entity_id, second.entity_id, rig.topic.entity_id):
        rig.namespace.delete_entity_records(entity_id, 0, Results())
    rig.run_until_idle()
    assert not rig.disk.synced[Table.LOG].values
    assert not rig.disk.synced[Table.INDEX].values


def test_the_window_is_bounded_by_whole_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.dispatcher.WINDOW_BYTES", 5_000)
    monkeypatch.setattr("twinbus.broker.fragment.window.WINDOW_BYTES", 5_000)
    rig = TopicHarness()
    first, _ = two(rig)
    rig.publish_stored(*[LARGE] * 50)
    rig.restart()
    consumer = rig.consumer(1, of=local_part(first).main)
    assert local_part(first).main.dispatcher.window.ready_bytes < 8_000
    consumer.grant(49)
    rig.run_until_idle()
    assert len(consumer.bodies) == 50


def test_peeking_and_browsing_show_whole_messages() -> None:
    rig = TopicHarness()
    first, _ = two(rig)
    rig.publish_stored(LARGE, LARGE)
    rig.restart()
    found: list[object] = []
    local_part(first).main.browser.peek(1, 10, 1_000_000, found.append)
    rig.run_until_idle()
    (messages,) = found
    assert [LARGE in one for one in messages] == [True, True]  # type: ignore[attr-defined]


def test_sessions_read_whole_messages() -> None:
    rig = TopicHarness()
    first = rig.subscribe("a", requires_session=True)
    rig.subscribe("b")
    for number in range(3):
        rig.publish_stored(LARGE + b"%d" % number, session="s")
    rig.restart()
    consumer = FakeSessionConsumer(local_part(first).main, session=b"s")
    rig.run_until_idle()
    consumer.grant(5)
    rig.run_until_idle()
    assert consumer.bodies == [LARGE + b"%d" % number for number in range(3)]


def test_a_filter_reads_a_shared_message_before_it_is_shared() -> None:
    rig = TopicHarness()
    both = [rig.subscribe("a", sql_rule("color = 'red'")), rig.subscribe("b", sql_rule("color LIKE 'r%'"))]
    rig.publish_stored(LARGE, color="red")
    assert [local_part(one).main.active_count for one in both] == [1, 1]
    assert rig.shared_body_counts() == (1, 0)


def test_one_that_is_completed_while_its_body_is_read_does_not_come_again() -> None:
    rig = TopicHarness()
    first, _ = two(rig)
    rig.publish_stored(LARGE, LARGE, LARGE)
    holder, other = rig.consumer(3, of=local_part(first).main), rig.consumer(0, of=local_part(first).main)
    last, *_, one = sorted(holder.lock_numbers(), reverse=True)
    local_part(first).main.settlement.reclaim([one])  # so that all are read again
    other.grant(3)
    local_part(first).main.settlement.complete([last], Results())
    rig.run_until_idle()
    assert len(other.deliveries) == 1
    assert local_part(first).main.active_count == 2
