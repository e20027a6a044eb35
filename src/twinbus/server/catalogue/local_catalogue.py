"""Administration of a namespace that a single process serves: changes go to the catalogue first, then to the broker.

Owns: the consistency of catalogue and broker, even after a power cut between the two changes. A deleted entity's
records are removed from the stores once the entity is gone from the catalogue; records left behind at a shutdown are
removed at the next startup.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twinbus.broker.namespace import Queue, Subscription, Topic
from twinbus.server.catalogue.auto_delete import AutoDelete
from twinbus.server.catalogue.changes import EntityDeleted
from twinbus.server.catalogue.entity_info import make_info, make_queue_info, make_subscription_info, make_topic_info
from twinbus.server.catalogue.replica import CatalogueReplica
from twinbus.server.catalogue.service import CatalogueService

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.namespace import Namespace
    from twinbus.model.info import Description, EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription
    from twinbus.server.catalogue.changes import Change
    from twinbus.store.catalogue import Catalogue, CleanupRow

log: Final = logging.getLogger(__name__)


class LocalCatalogue(CatalogueReplica):
    """The `Administration` of a namespace in a single process, with its own catalogue service."""

    def __init__(self, namespace: Namespace, name: str, *, store_count: int) -> None:
        """Create a catalogue that places new entities in the first `store_count` stores."""
        super().__init__(namespace, name)
        self._catalogue_service = CatalogueService(
            namespace.limits,
            namespace.clock,
            store_count=store_count,
            unavailable_reason=lambda store: namespace.stores[store].unavailable_reason,
            publish=self._publish,
        )
        self._auto_delete = AutoDelete(namespace, self.delete, self._start_task)

    async def open(self, open_catalogue: Callable[[], Catalogue]) -> None:
        """Read the catalogue, load the fragments of every entity, and resume unfinished cleanups."""
        await self._catalogue_service.open(open_catalogue, len(self._namespace.stores))
        self.created_ms = self._catalogue_service.created_ms
        await self.load([(entry.row, entry.rules.values()) for entry in self._catalogue_service.entities.values()])
        for deleted in list(self._catalogue_service.deleted_entities.values()):
            self._start_task(self._clean_up_and_report(deleted))
        self._auto_delete.start()

    async def close(self) -> None:
        """Wait for the change in progress, then close the catalogue file. The next startup resumes pending cleanups."""
        self._auto_delete.stop()
        for task in self._tasks:
            task.cancel()
        await self._catalogue_service.close()

    async def _publish(self, change: Change) -> None:
        self.apply(change)
        if isinstance(change, EntityDeleted):
            for deleted in change.deleted_rows:
                self._start_task(self._clean_up_and_report(deleted))

    async def _clean_up_and_report(self, deleted: CleanupRow) -> None:
        stores = set(deleted.fragments)
        if await self.clean_up(deleted, stores):
            await self._catalogue_service.cleanup_finished(deleted.id, stores)

    # --- changes ------------------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Create a queue."""
        queue = self._namespace.find((await self._catalogue_service.create(path, description)).path)
        assert isinstance(queue, Queue)
        return make_queue_info(queue)

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Create a topic."""
        topic = self._namespace.find((await self._catalogue_service.create(path, description)).path)
        assert isinstance(topic, Topic)
        return make_topic_info(topic)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Create a subscription with `rule` (default: a rule that matches every message)."""
        row = await self._catalogue_service.create_subscription(topic, name, description, rule)
        subscription = self._namespace.find(row.path)
        assert isinstance(subscription, Subscription)
        return make_subscription_info(subscription)

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Replace the description of an entity."""
        await self._catalogue_service.update(path, description)
        return make_info(self._namespace.find(path))

    async def delete(self, path: str) -> None:
        """Delete an entity and its messages; for a topic, also its subscriptions."""
        await self._catalogue_service.delete(path)

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription."""
        return await self._catalogue_service.create_rule(subscription, rule)

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule with the same name."""
        return await self._catalogue_service.update_rule(subscription, rule)

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule of a subscription."""
        await self._catalogue_service.delete_rule(subscription, name)
