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
from twinbus.server.changes import EntityDeleted
from twinbus.server.entity_info import info_of, queue_info, subscription_info, topic_info
from twinbus.server.keeper import Keeper
from twinbus.server.replica import Replica, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace
    from twinbus.model.info import Description, EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription
    from twinbus.server.changes import Change
    from twinbus.store.catalogue import Catalogue, DoomedRow

log: Final = logging.getLogger(__name__)

IDLE_LOOK_S: Final = 15.0
"""How often entities are looked at that delete themselves when nobody uses them."""


class Entities(Replica):
    """A namespace, to those who manage it."""

    def __init__(self, namespace: Namespace, name: str, *, stores: int) -> None:
        """New entities are spread over the first `stores` stores."""
        super().__init__(namespace, name)
        self._keeper = Keeper(
            namespace.limits,
            namespace.clock,
            stores=stores,
            trouble=lambda store: namespace.journals[store].trouble,
            publish=self._publish,
        )
        self._idle_look: Timer | None = None

    async def open(self, open_catalogue: Callable[[], Catalogue]) -> None:
        """Read the catalogue, and load what each entity's fragments hold."""
        await self._keeper.open(open_catalogue, len(self._namespace.journals))
        self.created_ms = self._keeper.created_ms
        await self.load([(known.row, known.rules.values()) for known in self._keeper.entities.values()])
        for doomed in list(self._keeper.doomed.values()):
            self._start(self._bury(doomed))
        self._look_for_idle()

    async def close(self) -> None:
        """Finish what is being changed, and let go of the file. What is still to be buried is so at the next start."""
        if self._idle_look is not None:
            self._idle_look.cancel()
        for task in self._tasks:
            task.cancel()
        await self._keeper.close()

    async def _publish(self, change: Change) -> None:
        self.apply(change)
        if isinstance(change, EntityDeleted):
            for doomed in change.doomed:
                self._start(self._bury(doomed))

    async def _bury(self, doomed: DoomedRow) -> None:
        stores = set(doomed.fragments)
        if await self.bury(doomed, stores):
            await self._keeper.buried(doomed.id, stores)

    # --- changing -----------------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Make a queue."""
        queue = self._namespace.find((await self._keeper.create(path, description)).path)
        assert isinstance(queue, Queue)
        return queue_info(queue)

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Make a topic."""
        topic = self._namespace.find((await self._keeper.create(path, description)).path)
        assert isinstance(topic, Topic)
        return topic_info(topic)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Make a subscription with one rule."""
        row = await self._keeper.create_subscription(topic, name, description, rule)
        subscription = self._namespace.find(row.path)
        assert isinstance(subscription, Subscription)
        return subscription_info(subscription)

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Describe an entity anew."""
        await self._keeper.update(path, description)
        return info_of(self._namespace.find(path))

    async def delete(self, path: str) -> None:
        """Delete an entity and all it holds."""
        await self._keeper.delete(path)

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription."""
        return await self._keeper.create_rule(subscription, rule)

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name."""
        return await self._keeper.update_rule(subscription, rule)

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        await self._keeper.delete_rule(subscription, name)

    # --- entities that nobody uses ------------------------------------------------------------------------------------

    def _look_for_idle(self) -> None:
        """Delete entities that were not used for as long as their descriptions say."""
        idle_s = self.idle_times()
        for entity in self._namespace.entities.values():
            if idle_s.get(entity.entity_id, -1.0) >= entity.description.auto_delete_on_idle_ms / 1000:
                self._start(self._delete_idle(entity))
        now_s = self._namespace.clock.monotonic_s()
        self._idle_look = self._namespace.timers.call_at(now_s + IDLE_LOOK_S, self._look_for_idle)

    async def _delete_idle(self, entity: Queue | Topic | Subscription) -> None:
        idle_s = entity.description.auto_delete_on_idle_ms / 1000
        if self._namespace.entities.get(paths.key_of(entity.path)) is entity and not entity.is_in_use:
            with suppress(StoreUnavailable):  # then at a later look
                await self.delete(entity.path)
                log.info("%s was deleted: it was idle", kind_of(entity), extra={"path": entity.path, "idle_s": idle_s})
