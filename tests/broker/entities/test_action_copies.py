"""Copies made by actions count against the size of a topic and against the pending bytes."""

from __future__ import annotations

import pytest

from tests.broker.slow_rules import SlowRuleHarness, slow_rules
from tests.broker.topic_harness import TopicHarness, sql_rule
from tests.support.parts import local_part
from twinbus.broker.fragment.time_index import SCAN_BATCH_SIZE
from twinbus.model.errors import QuotaExceeded
from twinbus.model.limits import NamespaceLimits

BODY = bytes(300)
TWICE = [sql_rule("", "SET x = 1", name="one"), sql_rule("", "SET x = 2", name="two")]
FIVE = [sql_rule("", f"SET x = {number}", name=f"r{number}") for number in range(5)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)  # so that the limit of a topic is 1,024 bytes


@pytest.mark.usefixtures("small")
def test_a_send_whose_copies_exceed_the_quota_is_refused_as_a_whole() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a", *FIVE)
    with pytest.raises(QuotaExceeded, match=r"'news'.* of 1,024"):
        harness.publish(BODY)
    harness.run_until_idle()
    assert (
        local_part(subscription).main.active_count,
        harness.commit_log.pending_bytes,
        local_part(harness.topic).stored_bytes(),
    ) == (0, 0, 0)
    harness.publish_stored(b"small")
    assert local_part(subscription).main.active_count == 5


@pytest.mark.usefixtures("small")
def test_a_send_whose_copies_exceed_the_quota_is_refused_after_several_turns() -> None:
    harness = SlowRuleHarness()
    subscription = harness.subscribe("a", *slow_rules(4), *FIVE)
    large, small = harness.publish(BODY, n=1), harness.publish(b"small", n=1)
    harness.run_turns()
    assert [type(error) for error in (*large, *small)] == [QuotaExceeded, type(None)]
    assert harness.commit_log.pending_bytes == 0
    assert harness.bodies(subscription) == [b"small"] * 6


def test_copies_are_counted_while_others_are_being_made() -> None:
    harness = SlowRuleHarness()
    harness.subscribe("a", *TWICE, *FIVE)
    results = harness.publish(BODY)
    held: list[int] = []
    while not results:
        held.append(local_part(harness.topic).stored_bytes())
        harness.run_turn()
    assert len({*held}) >= 3
    assert held == sorted(held)
    assert harness.commit_log.pending_bytes == 0


def test_a_send_whose_copies_exceed_the_pending_bytes_is_refused() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a", *FIVE)
    local_part(harness.topic).main._limits = NamespaceLimits(max_pending_bytes=3 * len(BODY))  # noqa: SLF001
    with pytest.raises(
        QuotaExceeded, match=r"the actions of the topic's rules .* max_pending_bytes is 900: send fewer"
    ):
        harness.publish(BODY)
    harness.run_until_idle()
    assert local_part(subscription).main.active_count == 0
    harness.publish_stored(b"small")


@pytest.mark.usefixtures("small")
def test_refused_sends_use_the_work_budget_of_the_turn() -> None:
    harness = SlowRuleHarness(units=5_000)
    harness.subscribe("a", *FIVE)
    with pytest.raises(QuotaExceeded):
        harness.publish(BODY)
    others = harness.publish(b"small")
    assert local_part(harness.topic).main.is_publishing
    harness.run_turns()
    assert others == [None]


@pytest.mark.usefixtures("small")
def test_scheduled_messages_are_published_however_large_their_copies_are() -> None:
    harness = TopicHarness()
    subscription = harness.subscribe("a", *FIVE)
    harness.publish_stored(BODY, due_ms=harness.clock.wall_ms() + 5_000)
    harness.advance(10)
    assert local_part(subscription).main.active_count == 5
    assert harness.topic.runtime().scheduled_count == 0


def test_scheduled_messages_with_many_actions_are_published_in_small_batches() -> None:
    harness = TopicHarness()
    actions = 99
    subscription = harness.subscribe(
        "a", *[sql_rule("", f"SET x = {number}", name=f"r{number}") for number in range(actions)]
    )
    due_ms = harness.clock.wall_ms() + 5_000
    harness.publish_stored(*[BODY] * 20, due_ms=due_ms)
    harness.publish_stored(b"later", due_ms=due_ms + 3_600_000)
    harness.clock.advance(10)
    harness.namespace.timers.run_due()
    max_pending = 0
    while harness.deferred_calls or harness.store_callbacks or harness.store.has_work:
        harness.step()
        max_pending = max(max_pending, harness.commit_log.pending_bytes)
    assert local_part(subscription).main.active_count == 20 * actions
    assert harness.topic.runtime().scheduled_count == 1
    assert 0 < max_pending < 2 * (SCAN_BATCH_SIZE // (1 + actions)) * actions * len(BODY)
