"""However little is evaluated in a turn, subscriptions get the same messages, numbered and ordered the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.consumers import Results
from tests.broker.messages import annotation_of, message, property_of
from tests.broker.slow_rules import SlowRuleHarness, slow_rules
from tests.broker.topic_harness import LARGE, sql_rule
from tests.support.parts import local_part
from twinbus.broker.work_budget import UNITS_PER_TURN
from twinbus.model.topic import TopicDescription

if TYPE_CHECKING:
    from twinbus.broker.entities.subscription import Subscription

RULES = [
    slow_rules(3),
    [
        sql_rule("n % 2 = 0", name="even"),
        sql_rule("n > 3", "SET n = n * 2; SET seen = sys.SequenceNumber", name="large"),
    ],
    [sql_rule("text LIKE '%a_b%'", name="like"), sql_rule("10 / n > 2", "REMOVE text", name="fails-for-0")],
]


def story(seed: int, units: int, *, detects: bool) -> list[list[tuple[Any, ...]]]:
    """The same sends, whatever the work that fits in a turn."""
    chances = random.Random(seed)
    rig = SlowRuleHarness(
        TopicDescription(requires_duplicate_detection=detects, duplicate_window_ms=60_000), units=units
    )
    subscriptions = [rig.subscribe(f"s{number}", *rules) for number, rules in enumerate(RULES)]
    answers: list[Results] = []
    forwarded = 0
    for number in range(30):
        payloads, told = list[bytes](), Results()
        answers.append(told)
        for _ in range(chances.choice((1, 1, 3))):
            due_ms = rig.clock.wall_ms() + 5_000 if chances.random() < 0.2 else None
            details: dict[str, Any] = {"n": chances.randrange(6), "text": chances.choice(("aab", "ab", "b" * 400))}
            body, message_id = chances.choice((b"%d" % number, LARGE)), f"{chances.randrange(20)}"
            payloads.append(message(body, message_id=message_id, due_ms=due_ms, **details))
        parcel = rig.incoming_batch(*payloads, to=rig.topic)
        if chances.random() < 0.2 and not detects:  # else they are looked up twice, and others may come between
            items = [(forwarded + place, record) for place, record in enumerate(parcel.records, 1)]
            forwarded += len(items)
            rig.topic.accept_forwarded(b"source", items, told)
        else:
            rig.topic.send(parcel, told)
        for _ in range(chances.choice((0, 1, 3))):
            rig.run_turn()
    rig.run_turns(10_000)
    rig.advance(60)
    rig.run_turns(10_000)
    assert answers == [[None]] * len(answers)
    assert rig.commit_log.pending_bytes == 0
    return [contents(rig, one) for one in subscriptions]


def contents(harness: SlowRuleHarness, subscription: Subscription) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for fragment in (local_part(subscription).main, local_part(subscription).dead_letters):
        for one in harness.consumer(1_000, of=fragment).messages:
            numbers = [annotation_of(one, f"x-opt-{name}") for name in ("sequence-number", "enqueue-sequence-number")]
            properties = [property_of(one, name) for name in ("n", "seen", "RuleName", "DeadLetterReason")]
            found.append((one.data[0], *numbers, *properties))
    return found


@pytest.mark.parametrize("detects", [False, True])
def test_what_subscriptions_get_does_not_depend_on_the_work_of_a_turn(detects: bool) -> None:  # noqa: FBT001
    for seed in range(4):
        assert story(seed, 1, detects=detects) == story(seed, UNITS_PER_TURN * 100, detects=detects)
