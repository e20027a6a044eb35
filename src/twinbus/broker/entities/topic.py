"""Topics: entities that copy each message into the subscriptions with a matching rule (`fan_out`).

Owns: a topic's description and its subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.entity import Entity
from twinbus.broker.intake import partitioner
from twinbus.broker.intake.partitioner import Partitioner
from twinbus.broker.intake.send_order import SendOrder
from twinbus.broker.ports.incoming_batch import ValidationPolicy
from twinbus.model.topic import TopicRuntime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.entities.subscription import Subscription
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.incoming_batch import IncomingBatch
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
        stores: Sequence[int],
        *,
        round_robin_start: int,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Create a topic without parts; its first message without a key goes to part `round_robin_start`."""
        super().__init__(
            entity_id,
            path,
            description.status,
            is_partitioned=description.enable_partitioning,
            created_ms=created_ms,
            updated_ms=updated_ms,
        )
        self.description = description
        self.stores = stores
        self.partitioner = Partitioner(self.parts, round_robin_start)
        self.send_order = SendOrder(path)
        self.subscriptions: dict[str, Subscription] = {}
        """The subscriptions, by the canonical keys of their names."""

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached to a subscription of the topic."""
        return any(subscription.is_in_use for subscription in self.subscriptions.values())

    def apply_description(self, description: TopicDescription, limits: NamespaceLimits) -> None:
        """Apply a new description to the topic and its parts."""
        self.description = description
        self.send_order.max_bytes = limits.max_pending_bytes
        self.validation_policy = ValidationPolicy(
            max_ttl_ms=description.default_time_to_live_ms,
            detects_duplicates=description.requires_duplicate_detection,
            is_partitioned=self.is_partitioned,
        )
        for part in self.parts:
            part.apply_description(limits)
        self.set_status(description.status)

    def send(self, batch: IncomingBatch, on_done: OnDone, sequence_numbers: list[int] | None = None) -> None:
        """Publish messages; `on_done` is called when they are on disk. See `EntityPart.send`."""
        if self.is_partitioned:
            partitioner.send(self, batch, on_done, [] if sequence_numbers is None else sequence_numbers)
        else:
            self.parts[0].send(batch, on_done, sequence_numbers)

    def fragment_error(self, fragment_number: int, error: ServiceBusError) -> ServiceBusError:
        """Return the error for the sender of a message that a part refused."""
        return partitioner.fragment_error(self, fragment_number, error)

    def accept_forwarded(
        self, source_prefix: bytes, numbered_records: list[tuple[int, bytes]], on_done: OnDone
    ) -> None:
        """Publish messages that another entity forwards. See `EntityPart.accept_forwarded`."""
        partitioner.accept_forwarded(self, source_prefix, numbered_records, on_done)

    def runtime(self) -> TopicRuntime:
        """Return the message counts and sizes of all parts together."""
        parts = [part.runtime() for part in self.parts]
        return TopicRuntime(
            scheduled_count=sum([part.scheduled_count for part in parts]),
            size_bytes=sum([part.size_bytes for part in parts]),
            subscription_count=len(self.subscriptions),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=max([self.accessed_ms, *[part.accessed_ms for part in parts]]),
            is_available=all(part.is_available for part in parts),
        )
