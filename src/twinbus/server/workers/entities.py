"""The entities of a namespace, in one of several processes: known here, and changed by the supervisor.

Owns: which change is asked for there, and what follows from one here. Whoever looks is answered from the copy that is
here, with counts that the owners of all fragments were asked for. A change that was asked for here is in this copy, and
in every other one, when the supervisor answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.namespace import Queue, Subscription, Topic
from twinbus.server.changes import EntityDeleted
from twinbus.server.entity_info import info_of, queue_info, subscription_info, topic_info
from twinbus.server.replica import Replica
from twinbus.server.workers import words
from twinbus.server.workers.words import Buried, Described

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from twinbus.broker.namespace import Namespace
    from twinbus.model.info import Description, EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription
    from twinbus.server.changes import Change
    from twinbus.server.peers.peers import Peers
    from twinbus.server.workers.control import Control
    from twinbus.store.catalogue import DoomedRow

ANSWER_S: Final = 15.0
"""How long a change may take, all those before it in the queue included. Clients wait for twenty seconds."""


class WorkerEntities(Replica):
    """A namespace, to those who manage it."""

    def __init__(
        self, namespace: Namespace, name: str, control: Control, peers: Peers, own_stores: Collection[int]
    ) -> None:
        """Empty. `own_stores` are those of this process."""
        super().__init__(namespace, name)
        self._control = control
        self._peers = peers
        self._own_stores = own_stores

    async def refresh(self, entities: Sequence[Queue | Topic | Subscription]) -> None:
        """Ask the owners of all fragments what these hold."""
        await self._peers.refresh(entities)

    # --- what has happened --------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Do what was done in the catalogue."""
        super().apply(change)
        if isinstance(change, EntityDeleted):
            for doomed in change.doomed:
                self.start_burial(doomed)

    def start_burial(self, doomed: DoomedRow) -> None:
        """Remove what a deleted entity has left in the stores of this process."""
        stores = sorted({store for store in doomed.fragments if store in self._own_stores})
        if stores:
            self._start(self._bury(doomed, stores))

    async def _bury(self, doomed: DoomedRow, stores: list[int]) -> None:
        if await self.bury(doomed, stores):
            self._control.say(Buried(doomed.id, stores))

    def close(self) -> None:
        """What is still to be buried is so at the next start."""
        for task in self._tasks:
            task.cancel()

    # --- what is to happen --------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Make a queue."""
        queue = await self._changed(words.CreateEntity(path, Described.of(description)))
        assert isinstance(queue, Queue)
        return queue_info(queue)

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Make a topic."""
        topic = await self._changed(words.CreateEntity(path, Described.of(description)))
        assert isinstance(topic, Topic)
        return topic_info(topic)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Make a subscription with one rule."""
        subscription = await self._changed(words.CreateSubscription(topic, name, Described.of(description), rule))
        assert isinstance(subscription, Subscription)
        return subscription_info(subscription)

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Describe an entity anew."""
        return info_of(await self._changed(words.UpdateEntity(path, Described.of(description))))

    async def delete(self, path: str) -> None:
        """Delete an entity and all it holds."""
        await self._control.ask(words.DeleteEntity(path), str, ANSWER_S)

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription."""
        return await self._control.ask(words.CreateRule(subscription, rule), type(rule), ANSWER_S)

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name."""
        return await self._control.ask(words.UpdateRule(subscription, rule), type(rule), ANSWER_S)

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        await self._control.ask(words.DeleteRule(subscription, name), type(None), ANSWER_S)

    async def _changed(self, request: words.Request) -> Queue | Topic | Subscription:
        entity = self._namespace.find(await self._control.ask(request, str, ANSWER_S))
        await self.refresh([entity])
        return entity
