"""Copies that actions make count against the size of a topic and against the bytes that are pending."""

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
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)  # so that the 1,024 of a topic are bytes


@pytest.mark.usefixtures("small")
def test_a_send_whose_copies_do_not_fit_is_refused_whole() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a", *FIVE)
    with pytest.raises(QuotaExceeded, match=r"'news'.* of 1,024"):
        rig.publish(BODY)
    rig.run_until_idle()
    assert (
        local_part(subscription).main.active_count,
        rig.commit_log.pending_bytes,
        local_part(rig.topic).stored_bytes(),
    ) == (0, 0, 0)
    rig.publish_stored(b"small")
    assert local_part(subscription).main.active_count == 5


@pytest.mark.usefixtures("small")
def test_a_send_whose_copies_do_not_fit_is_refused_where_that_takes_some_turns() -> None:
    rig = SlowRuleHarness()
    subscription = rig.subscribe("a", *slow_rules(4), *FIVE)
    large, small = rig.publish(BODY, n=1), rig.publish(b"small", n=1)
    rig.run_turns()
    assert [type(error) for error in (*large, *small)] == [QuotaExceeded, type(None)]
    assert rig.commit_log.pending_bytes == 0
    assert rig.bodies(subscription) == [b"small"] * 6


def test_copies_are_counted_while_others_are_still_made() -> None:
    rig = SlowRuleHarness()
    rig.subscribe("a", *TWICE, *FIVE)
    answers = rig.publish(BODY)
    held: list[int] = []
    while not answers:
        held.append(local_part(rig.topic).stored_bytes())
        rig.run_turn()
    assert len({*held}) >= 3
    assert held == sorted(held)
    assert rig.commit_log.pending_bytes == 0


def test_a_send_whose_copies_would_fill_the_memory_is_refused() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a", *FIVE)
    local_part(rig.topic).main._limits = NamespaceLimits(max_pending_bytes=3 * len(BODY))  # noqa: SLF001
    with pytest.raises(
        QuotaExceeded, match=r"the actions of the topic's rules .* max_pending_bytes is 900: send fewer"
    ):
        rig.publish(BODY)
    rig.run_until_idle()
    assert local_part(subscription).main.active_count == 0
    rig.publish_stored(b"small")


@pytest.mark.usefixtures("small")
def test_sends_that_are_refused_use_up_the_turn() -> None:
    rig = SlowRuleHarness(units=5_000)
    rig.subscribe("a", *FIVE)
    with pytest.raises(QuotaExceeded):
        rig.publish(BODY)
    others = rig.publish(b"small")
    assert local_part(rig.topic).main.is_publishing
    rig.run_turns()
    assert others == [None]


@pytest.mark.usefixtures("small")
def test_scheduled_messages_are_published_however_large_their_copies_are() -> None:
    rig = TopicHarness()
    subscription = rig.subscribe("a", *FIVE)
    rig.publish_stored(BODY, due_ms=rig.clock.wall_ms() + 5_000)
    rig.advance(10)
    assert local_part(subscription).main.active_count == 5
    assert rig.topic.runtime().scheduled_count == 0


def test_scheduled_messages_with_many_actions_are_published_in_small_batches() -> None:
    rig = TopicHarness()
    actions = 99
    subscription = rig.subscribe(
        "a", *[sql_rule("", f"SET x = {number}", name=f"r{number}") for number in range(actions)]
    )
    due_ms = rig.clock.wall_ms() + 5_000
    rig.publish_stored(*[BODY] * 20, due_ms=due_ms)
    rig.publish_stored(b"later", due_ms=due_ms + 3_600_000)
    rig.clock.advance(10)
    rig.namespace.timers.run_due()
    most = 0
    while rig.deferred_calls or rig.store_callbacks or rig.store.has_work:
        rig.step()
        most = max(most, rig.commit_log.pending_bytes)
    assert local_part(subscription).main.active_count == 20 * actions
    assert rig.topic.runtime().scheduled_count == 1
    assert 0 < most < 2 * (SCAN_BATCH_SIZE // (1 + actions)) * actions * len(BODY)
