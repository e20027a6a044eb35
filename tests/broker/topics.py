"""The rig with a topic beside its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.broker.rig import Answers, Rig
from tests.parts import part_of
from twinbus.amqp.message import Properties, build, data
from twinbus.amqp.types import Timestamp
from twinbus.broker.keys import BODY, CHECK, KIND_BYTES, PREFIX_BYTES
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.work import UNITS
from twinbus.model.rule import RuleDescription, SqlAction, SqlFilter, TrueFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from twinbus.broker.subscription import Subscription

LARGE = b"x" * 1_000
"""A body that is worth being kept once."""


class TopicRig(Rig):
    """A topic without subscriptions, in the same store as the queue."""

    def __init__(self, description: TopicDescription | None = None, *, work_units: int = UNITS) -> None:
        super().__init__(work_units=work_units)
        self.topic = self.namespace.add_topic(
            20, "news", description or TopicDescription(), [0], created_ms=0, updated_ms=0
        )
        self._next_id = 30

    def subscribe(
        self,
        name: str,
        *rules: RuleDescription,
        **description: Any,  # noqa: ANN401  # its fields
    ) -> Subscription:
        self._next_id += 1
        subscription = self.namespace.add_subscription(
            self._next_id,
            f"news/Subscriptions/{name}",
            SubscriptionDescription(**description),
            created_ms=0,
            updated_ms=0,
        )
        for rule in rules or (RuleDescription(name="$Default"),):
            subscription.put_rule(rule)
        return subscription

    def publish(self, *bodies: bytes, **details: Any) -> Answers:  # noqa: ANN401  # as `letter` takes them
        parcel, answers = Parcel(), Answers()
        for body in bodies:
            payload = letter(body, **details)
            self.namespace.intake.add_to(parcel, payload, 0, self.clock.wall_ms(), self.topic.terms)
        self.topic.send(parcel, answers)
        return answers

    def published(self, *bodies: bytes, **details: Any) -> None:  # noqa: ANN401
        answers = self.publish(*bodies, **details)
        self.settle()
        assert answers == [None]

    def kept(self) -> tuple[int, int]:
        """How many bodies are on disk that several share, and how many notes to look who needs one."""
        values = self.disk.synced[Table.LOG].values, self.disk.synced[Table.INDEX].values
        kinds = [[key[PREFIX_BYTES : PREFIX_BYTES + KIND_BYTES] for key in table] for table in values]
        return kinds[0].count(BODY), kinds[1].count(CHECK)

    def complete(self, subscription: Subscription, count: int = 1) -> list[bytes]:
        """Receive some messages of a subscription, and complete them."""
        consumer = self.consumer(count, of=part_of(subscription).main)
        part_of(subscription).main.settlement.complete(consumer.numbers(), Answers())
        self.settle()
        consumer.leave()
        return consumer.bodies


def sql(expression: str, action: str | None = None, name: str = "rule") -> RuleDescription:
    return RuleDescription(
        name=name,
        filter=SqlFilter(expression=expression) if expression else TrueFilter(),
        action=SqlAction(expression=action) if action is not None else None,
    )


def letter(
    body: bytes,
    *,
    message_id: str = "m",
    session: str | None = None,
    due_ms: int | None = None,
    **properties: Any,  # noqa: ANN401
) -> bytes:
    return build(
        message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(due_ms)} if due_ms is not None else None,
        properties=Properties(message_id=message_id, group_id=session, subject="a subject"),
        application_properties=properties or None,
        body=data(body),
    )
