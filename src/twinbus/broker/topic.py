"""A topic: what is sent to it is copied into those of its subscriptions that have a rule for it (`fan_out`).

Owns: its description, and what it and its subscriptions hold together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker import sending
from twinbus.broker.entity import Entity
from twinbus.broker.fragment import Policy
from twinbus.broker.intake import Terms
from twinbus.model.topic import TopicRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fan_out import TopicFragment
    from twinbus.broker.intake import Parcel
    from twinbus.broker.journal import Answered
    from twinbus.broker.subscription import Subscription
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.topic import TopicDescription


class Topic(Entity):
    """One topic of a namespace."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: TopicDescription,
        main: TopicFragment,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace."""
        super().__init__(entity_id, path, description.status, created_ms=created_ms, updated_ms=updated_ms)
        self.description = description
        self.main = main
        self.terms = Terms()

    def part(self, _number: int) -> Topic:
        """What is of one fragment of it: it has one."""
        return self

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        """By the keys of their names."""
        return self.main.subscriptions

    @property
    def is_in_use(self) -> bool:
        """Someone uses one of its subscriptions."""
        return any(subscription.is_in_use for subscription in self.subscriptions.values())

    def send(
        self,
        parcel: Parcel,
        answer: Answered,
        numbers: list[int] | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Publish messages, as `sending.send`."""
        sending.send(self, parcel, answer, numbers, beside)

    def held_bytes(self) -> int:
        """What it and its subscriptions hold together."""
        return self.main.held_bytes()

    def take_arrivals(self, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
        """Messages that another entity forwards here, as `Arrivals.take`; `source` is how the keys of that start."""
        self.main.arrivals.take(source, items, self, answer)

    def describe(self, description: TopicDescription, limits: NamespaceLimits) -> None:
        """It is to be like this from now on."""
        self.description = description
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            detects_duplicates=description.requires_duplicate_detection,
            is_partitioned=description.enable_partitioning,
        )
        self.main.policy = topic_policy(description, limits)
        self.set_status(description.status)

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what it holds from the store."""
        self.main.load(done)

    def settled_down(self) -> None:
        """It and all others are loaded."""
        self.main.settled_down()

    def close(self, error: ServiceBusError) -> None:
        """It was deleted: tell everyone who uses it. Its subscriptions are deleted one by one before."""
        self.end_producers(error)
        self.main.close(error)

    def runtime(self) -> TopicRuntime:
        """What it holds now."""
        shown = self.main.holdings.shown
        return TopicRuntime(
            scheduled_count=shown.scheduled_count,
            size_bytes=self.held_bytes(),
            subscription_count=len(self.subscriptions),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=self.accessed_ms,
            is_available=self.main.is_available,
        )


def topic_policy(description: TopicDescription, limits: NamespaceLimits) -> Policy:
    """What its fragment does with messages: it keeps those for later, and the ids of all."""
    return Policy(
        lock_duration_ms=0,
        max_delivery_count=None,
        max_locks=0,
        duplicate_window_ms=description.duplicate_window_ms,
        max_properties_bytes=limits.max_properties_bytes,
    )
