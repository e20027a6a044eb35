"""Copies that actions make count against the size of a topic and against the bytes that are pending."""

from __future__ import annotations

import pytest

from tests.broker.heavy import HeavyRig, heavy
from tests.broker.topics import TopicRig, sql
from tests.parts import part_of
from twinbus.broker.agenda import AT_ONCE
from twinbus.model.errors import QuotaExceeded
from twinbus.model.limits import NamespaceLimits

BODY = bytes(300)
TWICE = [sql("", "SET x = 1", name="one"), sql("", "SET x = 2", name="two")]
FIVE = [sql("", f"SET x = {number}", name=f"r{number}") for number in range(5)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.part.MEGABYTE", 1)  # so that the 1,024 of a topic are bytes


@pytest.mark.usefixtures("small")
def test_a_send_whose_copies_do_not_fit_is_refused_whole() -> None:
    rig = TopicRig()
    subscription = rig.subscribe("a", *FIVE)
    with pytest.raises(QuotaExceeded, match=r"'news'.* of 1,024"):
        rig.publish(BODY)
    rig.settle()
    assert (part_of(subscription).main.count, rig.journal.pending_bytes, part_of(rig.topic).held_bytes()) == (0, 0, 0)
    rig.published(b"small")
    assert part_of(subscription).main.count == 5


@pytest.mark.usefixtures("small")
def test_a_send_whose_copies_do_not_fit_is_refused_where_that_takes_some_turns() -> None:
    rig = HeavyRig()
    subscription = rig.subscribe("a", *heavy(4), *FIVE)
    large, small = rig.publish(BODY, n=1), rig.publish(b"small", n=1)
    rig.turns()
    assert [type(error) for error in (*large, *small)] == [QuotaExceeded, type(None)]
    assert rig.journal.pending_bytes == 0
    assert rig.bodies(subscription) == [b"small"] * 6


def test_copies_are_counted_while_others_are_still_made() -> None:
    rig = HeavyRig()
    rig.subscribe("a", *TWICE, *FIVE)
    answers = rig.publish(BODY)
    held: list[int] = []
    while not answers:
        held.append(part_of(rig.topic).held_bytes())
        rig.turn_once()
    assert len({*held}) >= 3
    assert held == sorted(held)
    assert rig.journal.pending_bytes == 0


def test_a_send_whose_copies_would_fill_the_memory_is_refused() -> None:
    rig = TopicRig()
    subscription = rig.subscribe("a", *FIVE)
    part_of(rig.topic).main._limits = NamespaceLimits(max_pending_bytes=3 * len(BODY))  # noqa: SLF001
    with pytest.raises(
        QuotaExceeded, match=r"the actions of the topic's rules .* max_pending_bytes is 900: send fewer"
    ):
        rig.publish(BODY)
    rig.settle()
    assert part_of(subscription).main.count == 0
    rig.published(b"small")


@pytest.mark.usefixtures("small")
def test_sends_that_are_refused_use_up_the_turn() -> None:
    rig = HeavyRig(units=5_000)
    rig.subscribe("a", *FIVE)
    with pytest.raises(QuotaExceeded):
        rig.publish(BODY)
    others = rig.publish(b"small")
    assert part_of(rig.topic).main.is_busy
    rig.turns()
    assert others == [None]


@pytest.mark.usefixtures("small")
def test_scheduled_messages_are_published_however_large_their_copies_are() -> None:
    rig = TopicRig()
    subscription = rig.subscribe("a", *FIVE)
    rig.published(BODY, due_ms=rig.clock.wall_ms() + 5_000)
    rig.wait(10)
    assert part_of(subscription).main.count == 5
    assert rig.topic.runtime().scheduled_count == 0


def test_scheduled_messages_with_many_actions_are_published_in_small_batches() -> None:
    rig = TopicRig()
    actions = 99
    subscription = rig.subscribe("a", *[sql("", f"SET x = {number}", name=f"r{number}") for number in range(actions)])
    due_ms = rig.clock.wall_ms() + 5_000
    rig.published(*[BODY] * 20, due_ms=due_ms)
    rig.published(b"later", due_ms=due_ms + 3_600_000)
    rig.clock.advance(10)
    rig.namespace.timers.run_due()
    most = 0
    while rig.turn or rig.mail or rig.store.pending:
        rig.step()
        most = max(most, rig.journal.pending_bytes)
    assert part_of(subscription).main.count == 20 * actions
    assert rig.topic.runtime().scheduled_count == 1
    assert 0 < most < 2 * (AT_ONCE // (1 + actions)) * actions * len(BODY)
