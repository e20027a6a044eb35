"""Administration of a namespace in one of several workers: reads from a local replica, writes through the supervisor.

Owns: the change requests to the supervisor, and the cleanup of deleted entities in this worker's stores. Reads use the
local replica, with counters from the owners of all fragments. When the supervisor replies to a change request, the
replicas in all workers have applied the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.namespace import Queue, Subscription, Topic
from twinbus.server.catalogue.changes import EntityDeleted
from twinbus.server.catalogue.entity_info import make_info, make_queue_info, make_subscription_info, make_topic_info
from twinbus.server.catalogue.replica import CatalogueReplica
from twinbus.server.cluster import control_protocol
from twinbus.server.cluster.control_protocol import CleanupFinished, EncodedDescription

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twinbus.broker.namespace import Namespace
    from twinbus.model.info import Description, EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription
    from twinbus.server.catalogue.changes import Change
    from twinbus.server.cluster.control_connection import ControlConnection
    from twinbus.server.cluster.peer_network import PeerNetwork
    from twinbus.store.catalogue import CleanupRow

REQUEST_TIMEOUT_S: Final = 15.0
"""How long a change may take, including the changes queued before it: less than the 20 s that clients wait."""


class WorkerCatalogue(CatalogueReplica):
    """The `Administration` of a namespace in a worker."""

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        connection: ControlConnection,
        peer_network: PeerNetwork,
        own_stores: Collection[int],
    ) -> None:
        """Create a replica without entities; `own_stores` are the stores of this process."""
        super().__init__(namespace, name)
        self._connection = connection
        self._peer_network = peer_network
        self._own_stores = own_stores

    async def refresh(self, entities: Sequence[Queue | Topic | Subscription]) -> None:
        """Update the entities' counters from the owners of their fragments."""
        await self._peer_network.refresh(entities)

    # --- changes from the supervisor ----------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Apply a catalogue change, and clean up deleted entities."""
        super().apply(change)
        if isinstance(change, EntityDeleted):
            for deleted in change.deleted_rows:
                self.start_cleanup(deleted)

    def start_cleanup(self, cleanup: CleanupRow) -> None:
        """Start removing a deleted entity's records from the stores of this process."""
        stores = sorted({store for store in cleanup.fragments if store in self._own_stores})
        if stores:
            self._start_task(self._clean_up_and_report(cleanup, stores))

    async def _clean_up_and_report(self, cleanup: CleanupRow, stores: list[int]) -> None:
        if await self.clean_up(cleanup, stores):
            self._connection.notify(CleanupFinished(cleanup.id, stores))

    def close(self) -> None:
        """Cancel running cleanups; the next startup resumes them."""
        for task in self._tasks:
            task.cancel()

    # --- changes through the supervisor -------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Create a queue."""
        queue = await self._request_change(control_protocol.CreateEntity(path, EncodedDescription.encode(description)))
        assert isinstance(queue, Queue)
        return make_queue_info(queue)

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Create a topic."""
        topic = await self._request_change(control_protocol.CreateEntity(path, EncodedDescription.encode(description)))
        assert isinstance(topic, Topic)
        return make_topic_info(topic)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Create a subscription with `rule` (default: a rule that matches every message)."""
        subscription = await self._request_change(
            control_protocol.CreateSubscription(topic, name, EncodedDescription.encode(description), rule)
        )
        assert isinstance(subscription, Subscription)
        return make_subscription_info(subscription)

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Replace the description of an entity."""
        return make_info(
            await self._request_change(control_protocol.UpdateEntity(path, EncodedDescription.encode(description)))
        )

    async def delete(self, path: str) -> None:
        """Delete an entity and its messages; for a topic, also its subscriptions."""
        await self._connection.request(control_protocol.DeleteEntity(path), str, REQUEST_TIMEOUT_S)

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription."""
        return await self._connection.request(
            control_protocol.CreateRule(subscription, rule), type(rule), REQUEST_TIMEOUT_S
        )

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule with the same name."""
        return await self._connection.request(
            control_protocol.UpdateRule(subscription, rule), type(rule), REQUEST_TIMEOUT_S
        )

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule of a subscription."""
        await self._connection.request(control_protocol.DeleteRule(subscription, name), type(None), REQUEST_TIMEOUT_S)

    async def _request_change(self, request: control_protocol.Request) -> Queue | Topic | Subscription:
        entity = self._namespace.find(await self._connection.request(request, str, REQUEST_TIMEOUT_S))
        await self.refresh([entity])
        return entity
