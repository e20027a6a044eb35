"""An administration service that stores entities and rules in memory, without a broker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from twinbus.model import path as paths
from twinbus.model.errors import EntityAlreadyExists, EntityNotFound, InvalidArgument
from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription, QueueRuntime
from twinbus.model.rule import DEFAULT_RULE, RuleDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime

if TYPE_CHECKING:
    from typing import TypeVar

    from twinbus.model.info import Description, EntityInfo

    Info = TypeVar("Info", QueueInfo, TopicInfo, SubscriptionInfo)

CREATED_MS = 1_700_000_000_123
FIXED = ("requires_session", "requires_duplicate_detection", "enable_partitioning")
NOTHING = QueueRuntime(
    active_count=0, dead_letter_count=0, size_bytes=0, created_ms=CREATED_MS, updated_ms=CREATED_MS, accessed_ms=0
)
NO_SUBSCRIPTIONS = TopicRuntime(
    scheduled_count=0, size_bytes=0, subscription_count=0, created_ms=CREATED_MS, updated_ms=CREATED_MS, accessed_ms=0
)


class InMemoryAdministration:
    def __init__(self) -> None:
        self.namespace = "contoso"
        self.created_ms = CREATED_MS
        self.queues: dict[str, QueueInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.subscriptions: dict[str, SubscriptionInfo] = {}
        self._kinds: list[dict[str, Any]] = [self.queues, self.topics, self.subscriptions]
        self.rules: dict[str, dict[str, RuleDescription]] = {}
        """Rules by lower-case name, for each lower-case path of a subscription."""
        self.stores: list[dict[str, object]] = [{"name": "0", "is_available": True, "takes_messages": True}]
        self.fails_with: Exception | None = None

    # --- entities -----------------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        return self._add(self.queues, QueueInfo(path=path, description=description, runtime=NOTHING))

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        return self._add(self.topics, TopicInfo(path=path, description=description, runtime=NO_SUBSCRIPTIONS))

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        if topic.lower() not in self.topics:
            raise EntityNotFound(topic)
        topic = self.topics[topic.lower()].path
        path = paths.subscription_path(topic, name)
        info = SubscriptionInfo(path=path, topic=topic, name=name, description=description, runtime=NOTHING)
        self._add(self.subscriptions, info)
        self.rules[path.lower()] = {}
        await self.create_rule(path, rule or RuleDescription(name=DEFAULT_RULE))
        return info

    async def get(self, path: str) -> EntityInfo:
        self._fail()
        for kind in self._kinds:
            if path.lower() in kind:
                info: EntityInfo = kind[path.lower()]
                return info
        raise EntityNotFound(path)

    async def list_queues(self, *, skip: int, top: int, prefix: str = "") -> list[QueueInfo]:
        return self._page(self.queues, skip, top, prefix)

    async def list_topics(self, *, skip: int, top: int, prefix: str = "") -> list[TopicInfo]:
        return self._page(self.topics, skip, top, prefix)

    async def list_subscriptions(self, topic: str, *, skip: int, top: int, prefix: str = "") -> list[SubscriptionInfo]:
        if topic.lower() not in self.topics:
            raise EntityNotFound(topic)
        return self._page(self.subscriptions, skip, top, paths.subscription_path(topic, prefix))

    async def update(self, path: str, description: Description) -> EntityInfo:
        info = await self.get(path)
        for name in FIXED:
            if getattr(info.description, name, None) != getattr(description, name, None):
                raise InvalidArgument(f"{name} of '{path}' cannot change")
        changed: EntityInfo = replace(info, description=description)  # type: ignore[arg-type]  # has the same type
        for kind in self._kinds:
            if path.lower() in kind:
                kind[path.lower()] = changed
        return changed

    async def delete(self, path: str) -> None:
        await self.get(path)
        for kind in self._kinds:
            kind.pop(path.lower(), None)

    def _add(self, kind: dict[str, Info], info: Info) -> Info:
        self._fail()
        if info.path.lower() in {**self.queues, **self.topics, **self.subscriptions}:
            raise EntityAlreadyExists(f"There is already an entity named '{info.path}'.")
        kind[info.path.lower()] = info
        return info

    def _page(self, kind: dict[str, Info], skip: int, top: int, prefix: str) -> list[Info]:
        self._fail()
        return [kind[key] for key in sorted(kind) if key.startswith(prefix.lower())][skip : skip + top]

    # --- rules --------------------------------------------------------------------------------------------------------

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        rules = self._rules(subscription)
        if rule.name.lower() in rules:
            raise EntityAlreadyExists(f"There is already a rule named '{rule.name}'.")
        rules[rule.name.lower()] = msgspec.structs.replace(rule, created_ms=CREATED_MS)
        return rules[rule.name.lower()]

    async def get_rule(self, subscription: str, name: str) -> RuleDescription:
        rules = self._rules(subscription)
        if name.lower() not in rules:
            raise EntityNotFound(f"{subscription}/Rules/{name}")
        return rules[name.lower()]

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        return list(self._rules(subscription).values())[skip : skip + top]

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        before = await self.get_rule(subscription, rule.name)
        changed = msgspec.structs.replace(rule, name=before.name, created_ms=before.created_ms)
        self._rules(subscription)[rule.name.lower()] = changed
        return changed

    async def delete_rule(self, subscription: str, name: str) -> None:
        await self.get_rule(subscription, name)
        del self._rules(subscription)[name.lower()]

    def _rules(self, subscription: str) -> dict[str, RuleDescription]:
        self._fail()
        if subscription.lower() not in self.rules:
            raise EntityNotFound(subscription)
        return self.rules[subscription.lower()]

    # --- for tests ----------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, object]:
        is_ok = all(store["is_available"] and store["takes_messages"] for store in self.stores)
        return {"status": "ok" if is_ok else "degraded", "stores": self.stores}

    def set_runtime(self, path: str, runtime: QueueRuntime) -> None:
        self.queues[path.lower()] = replace(self.queues[path.lower()], runtime=runtime)

    def _fail(self) -> None:
        if self.fails_with is not None:
            raise self.fails_with
