"""Subscriptions get the same messages with the same numbers and order, whatever the work budget of a turn."""

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


def run_scenario(seed: int, units: int, *, detects: bool) -> list[list[tuple[Any, ...]]]:
    """Send the same messages for a seed, whatever the work budget; return the contents of the subscriptions."""
    generator = random.Random(seed)
    harness = SlowRuleHarness(
        TopicDescription(requires_duplicate_detection=detects, duplicate_window_ms=60_000), units=units
    )
    subscriptions = [harness.subscribe(f"s{number}", *rules) for number, rules in enumerate(RULES)]
    all_results: list[Results] = []
    forwarded = 0
    for number in range(30):
        payloads, results = list[bytes](), Results()
        all_results.append(results)
        for _ in range(generator.choice((1, 1, 3))):
            due_ms = harness.clock.wall_ms() + 5_000 if generator.random() < 0.2 else None
            details: dict[str, Any] = {"n": generator.randrange(6), "text": generator.choice(("aab", "ab", "b" * 400))}
            body, message_id = generator.choice((b"%d" % number, LARGE)), f"{generator.randrange(20)}"
            payloads.append(message(body, message_id=message_id, due_ms=due_ms, **details))
        batch = harness.incoming_batch(*payloads, to=harness.topic)
        if (
            generator.random() < 0.2 and not detects
        ):  # with detection, forwarded messages are looked up twice, and others may come between
            items = [(forwarded + index, record) for index, record in enumerate(batch.records, 1)]
            forwarded += len(items)
            harness.topic.accept_forwarded(b"source", items, results)
        else:
            harness.topic.send(batch, results)
        for _ in range(generator.choice((0, 1, 3))):
            harness.run_turn()
    harness.run_turns(10_000)
    harness.advance(60)
    harness.run_turns(10_000)
    assert all_results == [[None]] * len(all_results)
    assert harness.commit_log.pending_bytes == 0
    return [contents(harness, subscription) for subscription in subscriptions]


def contents(harness: SlowRuleHarness, subscription: Subscription) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for fragment in (local_part(subscription).main, local_part(subscription).dead_letters):
        for received in harness.consumer(1_000, of=fragment).messages:
            numbers = [
                annotation_of(received, f"x-opt-{name}") for name in ("sequence-number", "enqueue-sequence-number")
            ]
            properties = [property_of(received, name) for name in ("n", "seen", "RuleName", "DeadLetterReason")]
            rows.append((received.data[0], *numbers, *properties))
    return rows


@pytest.mark.parametrize("detects", [False, True])
def test_the_messages_of_subscriptions_do_not_depend_on_the_work_budget(detects: bool) -> None:  # noqa: FBT001
    for seed in range(4):
        assert run_scenario(seed, 1, detects=detects) == run_scenario(seed, UNITS_PER_TURN * 100, detects=detects)
