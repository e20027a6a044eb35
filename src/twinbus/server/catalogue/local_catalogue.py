"""The entities of a namespace: made, changed and deleted, in the catalogue first and then in the broker.

For a namespace that one process serves. Owns: that both agree, also after a power cut between them. A deleted entity's
records are removed after it is gone from the catalogue; what a stop left behind is removed at the next start.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twinbus.broker.namespace import Queue, Subscription, Topic
from twinbus.model import path as paths
from twinbus.model.errors import StoreUnavailable
from twinbus.server.catalogue.changes import EntityDeleted
from twinbus.server.catalogue.entity_info import make_info, make_queue_info, make_subscription_info, make_topic_info
from twinbus.server.catalogue.replica import CatalogueReplica, entity_kind
from twinbus.server.catalogue.service import CatalogueService

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace
    from twinbus.model.info import Description, EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription
    from twinbus.server.catalogue.changes import Change
    from twinbus.store.catalogue import Catalogue, CleanupRow

log: Final = logging.getLogger(__name__)

IDLE_CHECK_INTERVAL_S: Final = 15.0
"""How often entities are looked at that delete themselves when nobody uses them."""


class LocalCatalogue(CatalogueReplica):
    """A namespace, to those who manage it."""

    def __init__(self, namespace: Namespace, name: str, *, store_count: int) -> None:
        """New entities are spread over the first `stores` stores."""
        super().__init__(namespace, name)
        self._catalogue_service = CatalogueService(
            namespace.limits,
            namespace.clock,
            store_count=store_count,
            unavailable_reason=lambda store: namespace.stores[store].unavailable_reason,
            publish=self._publish,
        )
        self._idle_timer: Timer | None = None

    async def open(self, open_catalogue: Callable[[], Catalogue]) -> None:
        """Read the catalogue, and load what each entity's fragments hold."""
        await self._catalogue_service.open(open_catalogue, len(self._namespace.stores))
        self.created_ms = self._catalogue_service.created_ms
        await self.load([(known.row, known.rules.values()) for known in self._catalogue_service.entities.values()])
        for doomed in list(self._catalogue_service.deleted_entities.values()):
            self._start_task(self._clean_up_and_report(doomed))
        self._delete_idle_entities()

    async def close(self) -> None:
        """Finish what is being changed, and let go of the file. What is still to be buried is so at the next start."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for task in self._tasks:
            task.cancel()
        await self._catalogue_service.close()

    async def _publish(self, change: Change) -> None:
        self.apply(change)
        if isinstance(change, EntityDeleted):
            for doomed in change.deleted_rows:
                self._start_task(self._clean_up_and_report(doomed))

    async def _clean_up_and_report(self, deleted: CleanupRow) -> None:
        stores = set(deleted.fragments)
        if await self.clean_up(deleted, stores):
            await self._catalogue_service.cleanup_finished(deleted.id, stores)

    # --- changing -----------------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Make a queue."""
        queue = self._namespace.find((await self._catalogue_service.create(path, description)).path)
        assert isinstance(queue, Queue)
        return make_queue_info(queue)

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Make a topic."""
        topic = self._namespace.find((await self._catalogue_service.create(path, description)).path)
        assert isinstance(topic, Topic)
        return make_topic_info(topic)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Make a subscription with one rule."""
        row = await self._catalogue_service.create_subscription(topic, name, description, rule)
        subscription = self._namespace.find(row.path)
        assert isinstance(subscription, Subscription)
        return make_subscription_info(subscription)

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Describe an entity anew."""
        await self._catalogue_service.update(path, description)
        return make_info(self._namespace.find(path))

    async def delete(self, path: str) -> None:
        """Delete an entity and all it holds."""
        await self._catalogue_service.delete(path)

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription."""
        return await self._catalogue_service.create_rule(subscription, rule)

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name."""
        return await self._catalogue_service.update_rule(subscription, rule)

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        await self._catalogue_service.delete_rule(subscription, name)

    # --- entities that nobody uses ------------------------------------------------------------------------------------

    def _delete_idle_entities(self) -> None:
        """Delete entities that were not used for as long as their descriptions say."""
        idle_s = self.idle_seconds()
        for entity in self._namespace.entities.values():
            if idle_s.get(entity.entity_id, -1.0) >= entity.description.auto_delete_on_idle_ms / 1000:
                self._start_task(self._delete_idle(entity))
        now_s = self._namespace.clock.monotonic_s()
        self._idle_timer = self._namespace.timers.call_at(now_s + IDLE_CHECK_INTERVAL_S, self._delete_idle_entities)

    async def _delete_idle(self, entity: Queue | Topic | Subscription) -> None:
        idle_s = entity.description.auto_delete_on_idle_ms / 1000
        if self._namespace.entities.get(paths.canonical_key(entity.path)) is entity and not entity.is_in_use:
            with suppress(StoreUnavailable):  # then at a later look
                await self.delete(entity.path)
                log.info(
                    "%s was deleted: it was idle", entity_kind(entity), extra={"path": entity.path, "idle_s": idle_s}
                )
