"""Rules that take long are evaluated in turns for each part of a partitioned topic, and in the process that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.broker.heavy import UNITS, heavy
from tests.broker.partitioned.rig import key_for, message
from tests.broker.partitioned.test_topics import TopicRig
from tests.broker.remote.rig import TwoProcesses
from tests.broker.rig import Answers
from tests.broker.topics import letter
from tests.parts import part_of
from twinbus.amqp.message import data
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.work import WorkBudget
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


def slow_down(namespace: Namespace, defer: Any) -> None:  # noqa: ANN401
    """One heavy rule is evaluated in a turn, for entities that are made from now on."""
    namespace._work = WorkBudget(defer, UNITS)  # noqa: SLF001


def test_a_batch_of_several_keys_is_published_in_all_its_parts() -> None:
    rig = TopicRig()
    slow_down(rig.namespace, rig.turn.append)
    rig.namespace.remove("news")
    rig._add_topic()  # noqa: SLF001
    subscription = rig.subscribe("a", *heavy(4, ending="n IS NULL"))
    answers, numbers = Answers(), list[int]()
    batch = data(*[message(b"%d" % number, key=key_for(number % 3)) for number in range(6)])
    parcel = Parcel()
    rig.namespace.intake.add_to(parcel, batch, BATCH_FORMAT, rig.clock.wall_ms(), rig.topic.terms)
    rig.topic.send(parcel, answers, numbers)
    assert sum(part.main.local.is_busy for part in rig.topic.parts) == 3
    rig.settle()
    assert answers == [None]
    assert [part.main.local.count for part in subscription.parts[:4]] == [2, 2, 2, 0]
    assert len(numbers) == 6


def test_a_topic_of_another_process_answers_when_its_rules_are_evaluated() -> None:
    rig = TwoProcesses()
    subscriptions = []
    for process in (rig.near, rig.far):
        slow_down(process.namespace, rig.turn.append)
        topic = process.namespace.add_topic(20, "news", TopicDescription(), [1], created_ms=0, updated_ms=0)
        subscription = process.namespace.add_subscription(
            21, "news/Subscriptions/a", SubscriptionDescription(), created_ms=0, updated_ms=0
        )
        for rule in heavy(4):
            subscription.put_rule(rule)
        subscriptions.append(subscription)
    near: Any = rig.near.namespace.find("news")
    topic = rig.far.namespace.find("news")  # type: ignore[assignment]
    answers = [Answers() for _ in range(3)]
    for number, answer in enumerate(answers):
        parcel = Parcel()
        payload = letter(b"%d" % number, n=1)
        rig.near.namespace.intake.add_to(parcel, payload, 0, rig.clock.wall_ms(), near.terms)
        near.send(parcel, answer)
    while not part_of(topic).main.is_busy:
        rig._step()  # noqa: SLF001
    assert answers == [[], [], []]
    rig.settle()
    assert answers == [[None]] * 3
    assert part_of(subscriptions[1]).main.count == 3
