"""The entities of a namespace, in one of several processes: known here, and changed by the supervisor.

Owns: which change is asked for there, and what follows from one here. Whoever looks is answered from the copy that is
here, with counts that the owners of all fragments were asked for. A change that was asked for here is in this copy, and
in every other one, when the supervisor answers.
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
"""How long a change may take, all those before it in the queue included. Clients wait for twenty seconds."""


class WorkerCatalogue(CatalogueReplica):
    """A namespace, to those who manage it."""

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        connection: ControlConnection,
        peer_network: PeerNetwork,
        own_stores: Collection[int],
    ) -> None:
        """Empty. `own_stores` are those of this process."""
        super().__init__(namespace, name)
        self._connection = connection
        self._peer_network = peer_network
        self._own_stores = own_stores

    async def refresh(self, entities: Sequence[Queue | Topic | Subscription]) -> None:
        """Ask the owners of all fragments what these hold."""
        await self._peer_network.refresh(entities)

    # --- what has happened --------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Do what was done in the catalogue."""
        super().apply(change)
        if isinstance(change, EntityDeleted):
            for doomed in change.deleted_rows:
                self.start_cleanup(doomed)

    def start_cleanup(self, cleanup: CleanupRow) -> None:
        """Remove what a deleted entity has left in the stores of this process."""
        stores = sorted({store for store in cleanup.fragments if store in self._own_stores})
        if stores:
            self._start_task(self._clean_up_and_report(cleanup, stores))

    async def _clean_up_and_report(self, cleanup: CleanupRow, stores: list[int]) -> None:
        if await self.clean_up(cleanup, stores):
            self._connection.notify(CleanupFinished(cleanup.id, stores))

    def close(self) -> None:
        """What is still to be buried is so at the next start."""
        for task in self._tasks:
            task.cancel()

    # --- what is to happen --------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Make a queue."""
        queue = await self._request_change(control_protocol.CreateEntity(path, EncodedDescription.encode(description)))
        assert isinstance(queue, Queue)
        return make_queue_info(queue)

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Make a topic."""
        topic = await self._request_change(control_protocol.CreateEntity(path, EncodedDescription.encode(description)))
        assert isinstance(topic, Topic)
        return make_topic_info(topic)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Make a subscription with one rule."""
        subscription = await self._request_change(
            control_protocol.CreateSubscription(topic, name, EncodedDescription.encode(description), rule)
        )
        assert isinstance(subscription, Subscription)
        return make_subscription_info(subscription)

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Describe an entity anew."""
        return make_info(
            await self._request_change(control_protocol.UpdateEntity(path, EncodedDescription.encode(description)))
        )

    async def delete(self, path: str) -> None:
        """Delete an entity and all it holds."""
        await self._connection.request(control_protocol.DeleteEntity(path), str, REQUEST_TIMEOUT_S)

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription."""
        return await self._connection.request(
            control_protocol.CreateRule(subscription, rule), type(rule), REQUEST_TIMEOUT_S
        )

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name."""
        return await self._connection.request(
            control_protocol.UpdateRule(subscription, rule), type(rule), REQUEST_TIMEOUT_S
        )

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        await self._connection.request(control_protocol.DeleteRule(subscription, name), type(None), REQUEST_TIMEOUT_S)

    async def _request_change(self, request: control_protocol.Request) -> Queue | Topic | Subscription:
        entity = self._namespace.find(await self._connection.request(request, str, REQUEST_TIMEOUT_S))
        await self.refresh([entity])
        return entity
