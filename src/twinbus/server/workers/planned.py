"""The catalogue, as a configuration file is brought to it before any worker is started.

Owns: what `bring_to_plan` asks of a namespace, answered by the keeper of its catalogue alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.model.topic import SubscriptionDescription
from twinbus.server.entity_info import shown

if TYPE_CHECKING:
    from twinbus.model.info import Description
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import TopicDescription
    from twinbus.server.keeper import Keeper


@dataclass(frozen=True, slots=True)
class Found:
    """An entity that is there."""

    path: str
    description: Description


class PlannedEntities:
    """What is in the catalogue."""

    def __init__(self, keeper: Keeper) -> None:
        """Opened before."""
        self._keeper = keeper

    async def get(self, path: str) -> Found:
        """An entity, with the size that it is shown with. EntityNotFound."""
        known = self._keeper.find(path)
        description = known.description
        if isinstance(description, SubscriptionDescription) or not known.is_partitioned:
            return Found(known.path, description)
        return Found(known.path, shown(description))

    async def create_queue(self, path: str, description: QueueDescription) -> object:
        """Make a queue."""
        return await self._keeper.create(path, description)

    async def create_topic(self, path: str, description: TopicDescription) -> object:
        """Make a topic."""
        return await self._keeper.create(path, description)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> object:
        """Make a subscription."""
        return await self._keeper.create_subscription(topic, name, description, rule)

    async def update(self, path: str, description: Description) -> object:
        """Describe an entity anew."""
        return await self._keeper.update(path, description)

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Some rules, in the order of their making."""
        return list(self._keeper.find(subscription).rules.values())[skip : skip + top]

    async def create_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Add a rule."""
        return await self._keeper.create_rule(subscription, rule)

    async def update_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Put a rule in the place of another."""
        return await self._keeper.update_rule(subscription, rule)

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        await self._keeper.delete_rule(subscription, name)
