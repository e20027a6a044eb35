"""A partitioned topic and its subscriptions, part for part: shared bodies, burial, and rules that change sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.broker.partitioned.rig import STORES, GatheringConsumer, PartitionedRig, key_for, message
from tests.broker.rig import Answers
from tests.broker.topics import LARGE, sql
from twinbus.broker.keys import BODY, KIND_BYTES, PREFIX_BYTES, entity_range
from twinbus.model.description import FRAGMENTS
from twinbus.model.partition_key import fragment_of
from twinbus.model.rule import RuleDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from twinbus.broker.subscription import Subscription
    from twinbus.broker.topic import Topic

TOPIC_ID = 20


class TopicRig(PartitionedRig):
    """A partitioned topic beside the queue."""

    topic: Topic

    def __init__(self) -> None:
        super().__init__()
        self._subscribed: list[tuple[int, str, dict[str, Any], tuple[RuleDescription, ...]]] = []
        self._add_topic()

    def _add_topic(self) -> None:
        places = [number % STORES for number in range(FRAGMENTS)]
        description = TopicDescription(enable_partitioning=True)
        self.topic = self.namespace.add_topic(TOPIC_ID, "news", description, places, created_ms=0, updated_ms=0)

    def subscribe(self, name: str, *rules: RuleDescription, **details: Any) -> Subscription:  # noqa: ANN401
        self._subscribed.append((30 + len(self._subscribed), name, details, rules))
        return self._add_subscription(*self._subscribed[-1])

    def _add_subscription(
        self, entity_id: int, name: str, details: dict[str, Any], rules: tuple[RuleDescription, ...]
    ) -> Subscription:
        subscription = self.namespace.add_subscription(
            entity_id, f"news/Subscriptions/{name}", SubscriptionDescription(**details), created_ms=0, updated_ms=0
        )
        for rule in rules or (RuleDescription(name="$Default"),):
            subscription.put_rule(rule)
        return subscription

    def crash(self) -> None:
        super().crash()
        self._add_topic()
        subscriptions = [self._add_subscription(*one) for one in self._subscribed]
        self.load(self.topic, *subscriptions)

    def publish(self, *payloads: bytes) -> None:
        for payload in payloads:
            answers = Answers()
            self.topic.send(self.parcel(payload, to=self.topic), answers)
            self.settle()
            assert answers == [None]

    def bodies_kept(self) -> int:
        keys = [key for disk in self.disks for key in disk.synced[Table.LOG].values]
        return sum(key[PREFIX_BYTES : PREFIX_BYTES + KIND_BYTES] == BODY for key in keys)

    def rows_of(self, entity_id: int) -> int:
        start, end = entity_range(entity_id)
        tables = [table for disk in self.disks for table in disk.synced.values()]
        return sum(start <= key < end for table in tables for key in table.values)

    def bury(self, entity_id: int, topic_id: int | None) -> list[Answers]:
        answers = [Answers() for _ in range(STORES)]
        for store, answer in enumerate(answers):
            self.namespace.bury(entity_id, store, answer, topic_id)
        return answers


def counts(subscription: Subscription) -> list[int]:
    return [part.main.local.count for part in subscription.parts]


def test_each_part_of_a_subscription_gets_what_its_part_of_the_topic_gets() -> None:
    rig = TopicRig()
    one, other = rig.subscribe("one"), rig.subscribe("other")
    rig.publish(*[message(LARGE, key=key_for(number)) for number in range(FRAGMENTS)])
    assert counts(one) == counts(other) == [1] * FRAGMENTS
    assert rig.bodies_kept() == FRAGMENTS


def test_a_subscription_that_is_buried_leaves_no_body_behind_and_takes_none_from_others() -> None:
    rig = TopicRig()
    gone, stays = rig.subscribe("gone"), rig.subscribe("stays")
    rig.publish(*[message(LARGE) for _ in range(3 * FRAGMENTS)])
    assert rig.bodies_kept() == 3 * FRAGMENTS
    rig.namespace.remove(gone.path)
    answers = rig.bury(gone.entity_id, TOPIC_ID)
    rig.settle()
    assert answers == [[None]] * STORES
    assert rig.rows_of(gone.entity_id) == 0
    assert rig.bodies_kept() == 3 * FRAGMENTS
    rig.namespace.remove(stays.path)
    rig.bury(stays.entity_id, TOPIC_ID)
    rig.settle()
    rig.wait(10.0)
    assert rig.rows_of(stays.entity_id) == 0
    assert rig.bodies_kept() == 0


def test_a_burial_that_a_crash_cuts_off_is_done_by_the_next_one() -> None:
    for steps in range(0, 60, 6):
        rig = TopicRig()
        gone = rig.subscribe("gone")
        rig.subscribe("stays")
        rig.publish(*[message(LARGE) for _ in range(FRAGMENTS)])
        rig.namespace.remove(gone.path)
        rig.bury(gone.entity_id, TOPIC_ID)
        for _ in range(steps):
            rig.step()
        rig._subscribed = [one for one in rig._subscribed if one[1] != "gone"]  # noqa: SLF001
        rig.crash()
        answers = rig.bury(gone.entity_id, TOPIC_ID)
        rig.settle()
        assert answers == [[None]] * STORES
        assert rig.rows_of(gone.entity_id) == 0
        stays = rig.topic.subscriptions["stays"]
        assert counts(stays) == [1] * FRAGMENTS
        consumer = _consumer(rig, stays)
        assert consumer == [LARGE] * FRAGMENTS


def _consumer(rig: TopicRig, subscription: Subscription) -> list[bytes]:
    consumer = GatheringConsumer([part.main for part in subscription.parts])
    consumer.grant(1_000)
    rig.settle()
    return consumer.bodies


def test_a_rule_that_gives_a_session_of_another_fragment_dead_letters_the_copy_and_says_why() -> None:
    """Whoever accepts that session looks for it elsewhere."""
    rig = TopicRig()
    rule = sql("", action="SET sys.SessionId = 'changed'")
    subscription = rig.subscribe("changing", rule, requires_session=True)
    here = fragment_of(b"changed")
    rig.publish(message(b"stays", session=key_for(here)), message(b"moves", session=key_for((here + 1) % FRAGMENTS)))
    assert sum(counts(subscription)) == 1
    assert counts(subscription)[here] == 1
    assert subscription.runtime().dead_letter_count == 1


def test_r100_a_publication_without_a_key_goes_to_another_fragment_with_all_its_copies() -> None:
    rig = TopicRig()
    one, other = rig.subscribe("one"), rig.subscribe("other")
    rig.fail(0)
    answers = [Answers() for _ in range(FRAGMENTS)]
    for answer in answers:
        rig.topic.send(rig.parcel(message(LARGE), to=rig.topic), answer)
    rig.settle()
    assert answers == [[None]] * FRAGMENTS
    rig.reopen()
    assert sum(counts(one)) == sum(counts(other)) == FRAGMENTS
    assert counts(one) == counts(other)
