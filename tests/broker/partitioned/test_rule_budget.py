"""Rules that take long are evaluated in turns for each part of a partitioned topic, and in the process that has it."""

from __future__ import annotations

from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.broker.slow_rules import WORK_UNITS, slow_rules
from tests.broker.topic_harness import TopicHarness
from tests.support.parts import local_part
from twinbus.model.topic import SubscriptionDescription, TopicDescription


def test_a_batch_of_several_keys_is_published_in_all_its_parts() -> None:
    rig = TopicHarness(TopicDescription(enable_partitioning=True), work_units=WORK_UNITS)
    subscription = rig.subscribe("a", *slow_rules(4, ending="n IS NULL"))
    numbers: list[int] = []
    batch = [message(b"%d" % number, key=key_for_fragment(number % 3)) for number in range(6)]
    answers = rig.send_batch(*batch, to=rig.topic, numbers=numbers)
    assert sum(part.main.local.is_publishing for part in rig.topic.parts) == 3
    rig.run_until_idle()
    assert answers == [None]
    assert [part.main.local.active_count for part in subscription.parts[:4]] == [2, 2, 2, 0]
    assert len(numbers) == 6


def test_a_topic_of_another_process_answers_when_its_rules_are_evaluated() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2, work_units=WORK_UNITS)
    topics, subscriptions = [], []
    for process in rig.processes:
        topic = process.namespace.add_topic(20, "news", TopicDescription(), [1], created_ms=0, updated_ms=0)
        subscription = process.namespace.add_subscription(
            21, "news/Subscriptions/a", SubscriptionDescription(), created_ms=0, updated_ms=0
        )
        for rule in slow_rules(4):
            subscription.put_rule(rule)
        topics.append(topic)
        subscriptions.append(subscription)
    answers = [rig.send(b"%d" % number, to=topics[0], n=1) for number in range(3)]
    while not local_part(topics[1]).main.is_publishing:
        rig.step()
    assert answers == [[], [], []]
    rig.run_until_idle()
    assert answers == [[None]] * 3
    assert local_part(subscriptions[1]).main.active_count == 3
