"""Each part of a partitioned topic evaluates slow rules over several event-loop turns, in the process that owns it."""

from __future__ import annotations

from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.broker.slow_rules import WORK_UNITS, slow_rules
from tests.broker.topic_harness import TopicHarness
from tests.support.parts import local_part
from twinbus.model.topic import SubscriptionDescription, TopicDescription


def test_a_batch_of_several_keys_is_published_in_all_its_parts() -> None:
    harness = TopicHarness(TopicDescription(enable_partitioning=True), work_units=WORK_UNITS)
    subscription = harness.subscribe("a", *slow_rules(4, ending="n IS NULL"))
    numbers: list[int] = []
    batch = [message(b"%d" % number, key=key_for_fragment(number % 3)) for number in range(6)]
    results = harness.send_batch(*batch, to=harness.topic, numbers=numbers)
    assert sum(part.main.local.is_publishing for part in harness.topic.parts) == 3
    harness.run_until_idle()
    assert results == [None]
    assert [part.main.local.active_count for part in subscription.parts[:4]] == [2, 2, 2, 0]
    assert len(numbers) == 6


def test_a_topic_of_another_process_confirms_after_its_rules_are_evaluated() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2, work_units=WORK_UNITS)
    topics, subscriptions = [], []
    for process in harness.processes:
        topic = process.namespace.add_topic(20, "news", TopicDescription(), [1], created_ms=0, updated_ms=0)
        subscription = process.namespace.add_subscription(
            21, "news/Subscriptions/a", SubscriptionDescription(), created_ms=0, updated_ms=0
        )
        for rule in slow_rules(4):
            subscription.put_rule(rule)
        topics.append(topic)
        subscriptions.append(subscription)
    results = [harness.send(b"%d" % number, to=topics[0], n=1) for number in range(3)]
    while not local_part(topics[1]).main.is_publishing:
        harness.step()
    assert results == [[], [], []]
    harness.run_until_idle()
    assert results == [[None]] * 3
    assert local_part(subscriptions[1]).main.active_count == 3
