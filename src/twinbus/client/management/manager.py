"""The manager of a namespace: creates, reads, updates and deletes its entities and rules.

    async with NamespaceManager.from_connection_string(text) as manager:
        await manager.create_queue("orders", QueueDescription(max_delivery_count=5))
        async for queue in manager.get_queues(prefix="ord"):
            print(queue.path, queue.runtime.active_count)

Owns the management operations and the paths of entities and rules. HTTP is in `atom_client`, the XML form of
descriptions in `model.atom`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, TypeVar, Unpack

from twinbus.client.connection_string import ConnectionString
from twinbus.client.management import entity_export, entity_import
from twinbus.client.management.atom_client import AtomClient, reading_response
from twinbus.client.settings import FactorySettings, settings_from_options
from twinbus.model import path as paths
from twinbus.model.atom import descriptions as namespace_form
from twinbus.model.atom import rule as rule_codec
from twinbus.model.atom.description_codec import FORWARD_AUTHORIZATION_HEADERS
from twinbus.model.atom.descriptions import QUEUE_CODEC, SUBSCRIPTION_CODEC, TOPIC_CODEC, add_default_rule
from twinbus.model.atom.value_formats import NEWEST_API_VERSION, WriteContext
from twinbus.model.errors import EntityNotFound, InvalidArgument
from twinbus.model.info import NamespaceInfo, QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription, QueueRuntime
from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from twinbus.client.management.entity_import import EntityChange
    from twinbus.client.settings import ClientOptions
    from twinbus.client.tokens import TokenProvider
    from twinbus.model.atom.description_codec import DescriptionCodec
    from twinbus.model.entity_file.plan import Plan
    from twinbus.model.rule import RuleDescription

D = TypeVar("D")
R = TypeVar("R")
_QUEUES_PATH: Final = "$Resources/queues"
_TOPICS_PATH: Final = "$Resources/topics"
_NAMESPACE_PATH: Final = "$namespaceinfo"


class NamespaceManager:
    """Management client for one namespace."""

    def __init__(
        self,
        where: ConnectionString,
        settings: FactorySettings | None = None,
        *,
        token_provider: TokenProvider | None = None,
    ) -> None:
        """Create a manager; the first operation connects. Applications usually call `from_connection_string`."""
        self.where = where
        self.settings = settings if settings is not None else FactorySettings()
        self._client = AtomClient(where, self.settings, token_provider)
        self._view = WriteContext(where.host, NEWEST_API_VERSION)

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """Create a manager for the namespace of a connection string. Raise ValueError if the string is invalid.

        The manager uses HTTPS (default port: 443), or HTTP with `UseDevelopmentEmulator=true` (default port: 5300). The
        certificate is verified with `tls`, with the certificate authorities in `ca_file`, or with those of this
        machine.
        """
        provider = options.get("token_provider")
        return cls(ConnectionString.parse(text), settings_from_options(options), token_provider=provider)

    def __repr__(self) -> str:
        return f"<NamespaceManager {self.where.http_base}{' closed' if self._client.is_closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()

    async def get_namespace_info(self) -> NamespaceInfo:
        """Return the name and properties of the namespace."""
        root = await self._client.get(_NAMESPACE_PATH, namespace_form.NAMESPACE_TAG)
        with reading_response(_NAMESPACE_PATH):
            return namespace_form.read_namespace(root)

    # --- queues -------------------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription | None = None) -> QueueDescription:
        """Create a queue and return its description.

        Raise EntityAlreadyExists, QuotaExceeded or InvalidArgument if the namespace refuses.
        """
        return await self._put(QUEUE_CODEC, _entity_path(path), description or QueueDescription(), is_update=False)

    async def update_queue(self, path: str, description: QueueDescription) -> QueueDescription:
        """Replace the whole description of a queue; start from `get_queue`. Raise EntityNotFound if there is none."""
        return await self._put(QUEUE_CODEC, _entity_path(path), description, is_update=True)

    async def get_queue(self, path: str) -> QueueDescription:
        """Return the description of a queue. Raise EntityNotFound if there is none."""
        return await self._get(QUEUE_CODEC, _entity_path(path))

    async def get_queue_runtime(self, path: str) -> QueueRuntime:
        """Return the message counts and size of a queue. Raise EntityNotFound if there is none."""
        return await self._get_runtime(QUEUE_CODEC, _entity_path(path))

    async def queue_exists(self, path: str) -> bool:
        """Return whether the queue exists."""
        return await self._exists(QUEUE_CODEC.tag, _entity_path(path))

    async def delete_queue(self, path: str) -> None:
        """Delete a queue, or a topic with that path, and its messages. Raise EntityNotFound if there is none."""
        await self._client.delete(_entity_path(path))

    async def get_queues(self, prefix: str = "") -> AsyncIterator[QueueInfo]:
        """Yield the queues whose path starts with `prefix`."""
        async for path, description, runtime in self._list(QUEUE_CODEC, _QUEUES_PATH, prefix):
            yield QueueInfo(path=path, description=description, runtime=runtime)

    # --- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(self, path: str, description: TopicDescription | None = None) -> TopicDescription:
        """Create a topic and return its description.

        Raise EntityAlreadyExists, QuotaExceeded or InvalidArgument if the namespace refuses.
        """
        return await self._put(TOPIC_CODEC, _entity_path(path), description or TopicDescription(), is_update=False)

    async def update_topic(self, path: str, description: TopicDescription) -> TopicDescription:
        """Replace the whole description of a topic; start from `get_topic`. Raise EntityNotFound if there is none."""
        return await self._put(TOPIC_CODEC, _entity_path(path), description, is_update=True)

    async def get_topic(self, path: str) -> TopicDescription:
        """Return the description of a topic. Raise EntityNotFound if there is none."""
        return await self._get(TOPIC_CODEC, _entity_path(path))

    async def get_topic_runtime(self, path: str) -> TopicRuntime:
        """Return the counts and size of a topic. Raise EntityNotFound if there is none."""
        return await self._get_runtime(TOPIC_CODEC, _entity_path(path))

    async def topic_exists(self, path: str) -> bool:
        """Return whether the topic exists."""
        return await self._exists(TOPIC_CODEC.tag, _entity_path(path))

    async def delete_topic(self, path: str) -> None:
        """Delete a topic with its subscriptions, or a queue with that path. Raise EntityNotFound if there is none."""
        await self._client.delete(_entity_path(path))

    async def get_topics(self, prefix: str = "") -> AsyncIterator[TopicInfo]:
        """Yield the topics whose path starts with `prefix`."""
        async for path, description, runtime in self._list(TOPIC_CODEC, _TOPICS_PATH, prefix):
            yield TopicInfo(path=path, description=description, runtime=runtime)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription | None = None,
        rule: RuleDescription | None = None,
    ) -> SubscriptionDescription:
        """Create a subscription with one rule (default: a rule that matches every message)."""
        path = _subscription_path(topic, name)
        return await self._put(
            SUBSCRIPTION_CODEC, path, description or SubscriptionDescription(), is_update=False, rule=rule
        )

    async def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionDescription:
        """Replace the whole description of a subscription; start from `get_subscription`."""
        return await self._put(SUBSCRIPTION_CODEC, _subscription_path(topic, name), description, is_update=True)

    async def get_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        """Return the description of a subscription. Raise EntityNotFound if there is none."""
        return await self._get(SUBSCRIPTION_CODEC, _subscription_path(topic, name))

    async def get_subscription_runtime(self, topic: str, name: str) -> QueueRuntime:
        """Return the message counts of a subscription, without its size, which is part of the topic's size.

        Raise EntityNotFound if there is no such subscription.
        """
        return await self._get_runtime(SUBSCRIPTION_CODEC, _subscription_path(topic, name))

    async def subscription_exists(self, topic: str, name: str) -> bool:
        """Return whether the subscription exists."""
        return await self._exists(SUBSCRIPTION_CODEC.tag, _subscription_path(topic, name))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription with its messages. Raise EntityNotFound if there is none."""
        await self._client.delete(_subscription_path(topic, name))

    async def get_subscriptions(self, topic: str, prefix: str = "") -> AsyncIterator[SubscriptionInfo]:
        """Yield the subscriptions of a topic whose name starts with `prefix`.

        Raise EntityNotFound if there is no such topic.
        """
        async for name, description, runtime in self._list(SUBSCRIPTION_CODEC, _subscriptions_path(topic), prefix):
            path = _subscription_path(topic, name)
            yield SubscriptionInfo(
                path=path, topic=_entity_path(topic), name=name, description=description, runtime=runtime
            )

    # --- rules --------------------------------------------------------------------------------------------------------

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription. Raise EntityAlreadyExists, EntityNotFound or InvalidArgument."""
        return await self._put_rule(topic, subscription, rule, is_update=False)

    async def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule of the same name. Raise EntityNotFound if there is none."""
        return await self._put_rule(topic, subscription, rule, is_update=True)

    async def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        """Return a rule. Raise EntityNotFound if there is none."""
        path = _rule_path(topic, subscription, name)
        root = await self._client.get(path, rule_codec.RULE_TAG)
        with reading_response(path):
            return rule_codec.read_response(root)

    async def rule_exists(self, topic: str, subscription: str, name: str) -> bool:
        """Return whether the rule exists."""
        return await self._exists(rule_codec.RULE_TAG, _rule_path(topic, subscription, name))

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Delete a rule. Raise EntityNotFound if there is none."""
        await self._client.delete(_rule_path(topic, subscription, name))

    async def get_rules(self, topic: str, subscription: str) -> AsyncIterator[RuleDescription]:
        """Yield the rules of a subscription. Raise EntityNotFound if there is no such subscription."""
        path = _rules_path(topic, subscription)
        async for entry in self._client.list(path, rule_codec.RULE_TAG):
            with reading_response(path):
                rule = rule_codec.read_response(entry.description)
            yield rule

    # --- all entities -------------------------------------------------------------------------------------------------

    async def export_entities(self, prefix: str = "", *, with_keys: bool = False) -> Plan:
        """Return the queues and topics whose path starts with `prefix`, with subscriptions and rules.

        `with_keys` includes the keys of queues and topics with their secrets.
        """
        return await entity_export.read_plan(self, prefix, with_keys=with_keys)

    async def plan_import(self, plan: Plan, *, prune: bool = False) -> list[EntityChange]:
        """Return what `import_entities` would do with each entity."""
        return await entity_import.plan_import(self, plan, prune=prune)

    async def import_entities(
        self, plan: Plan, *, prune: bool = False, on_change: Callable[[EntityChange], None] | None = None
    ) -> list[EntityChange]:
        """Create and update entities as planned, and return the result for each entity.

        `prune` deletes all other entities with their messages. An entity that the namespace refuses does not stop the
        import.
        """
        return await entity_import.import_plan(self, plan, prune=prune, on_change=on_change)

    # --- common operations --------------------------------------------------------------------------------------------

    async def _put(
        self,
        form: DescriptionCodec[D, R],
        path: str,
        description: D,
        *,
        is_update: bool,
        rule: RuleDescription | None = None,
    ) -> D:
        body = form.write_request(description, self._view, is_update=is_update)
        if rule is not None:
            add_default_rule(body, rule)
        headers = tuple(
            header
            for target, header in FORWARD_AUTHORIZATION_HEADERS.items()
            if getattr(description, target, None) is not None
        )
        root = await self._client.put(path, form.tag, body, is_update=is_update, token_headers=headers)
        with reading_response(path):
            return form.read_response(root)

    async def _put_rule(
        self, topic: str, subscription: str, rule: RuleDescription, *, is_update: bool
    ) -> RuleDescription:
        path, body = _rule_path(topic, subscription, rule.name), rule_codec.write_request(rule)
        root = await self._client.put(path, rule_codec.RULE_TAG, body, is_update=is_update)
        with reading_response(path):
            return rule_codec.read_response(root)

    async def _get(self, form: DescriptionCodec[D, R], path: str) -> D:
        root = await self._client.get(path, form.tag)
        with reading_response(path):
            return form.read_response(root)

    async def _get_runtime(self, form: DescriptionCodec[D, R], path: str) -> R:
        root = await self._client.get(path, form.tag)
        with reading_response(path):
            return form.read_runtime(root)

    async def _exists(self, tag: str, path: str) -> bool:
        try:
            await self._client.get(path, tag)
        except EntityNotFound:
            return False
        return True

    async def _list(self, form: DescriptionCodec[D, R], path: str, prefix: str) -> AsyncIterator[tuple[str, D, R]]:
        async for entry in self._client.list(path, form.tag, prefix):
            with reading_response(path):
                item = entry.title, form.read_response(entry.description), form.read_runtime(entry.description)
            yield item


# --- paths of entities and rules --------------------------------------------------------------------------------------

_DOT_SEGMENTS: Final = (".", "..")
"""Segments that HTTP clients and servers resolve. Deleting the subscription `..` would delete its topic."""


def _entity_path(path: str) -> str:
    """Return the relative path of a queue or a topic. Raise InvalidArgument for the path of anything else.

    `news/Subscriptions/all` is not a queue, and `..` would turn the path into that of another entity. All other rules
    for names are left to the namespace.
    """
    relative = paths.relative_path(path)
    has_dot_segment = any(segment in _DOT_SEGMENTS for segment in relative.split("/"))
    if not relative or has_dot_segment or relative.startswith("$") or paths.parent_entity(relative) != relative:
        raise InvalidArgument(f"{path!r:.80} is not the path of a queue or topic")
    return relative


def _subscription_path(topic: str, name: str) -> str:
    """Return the path of a subscription."""
    return paths.subscription_path(_entity_path(topic), _checked_name(name, "subscription"))


def _subscriptions_path(topic: str) -> str:
    """Return the path of all subscriptions of a topic."""
    return f"{_entity_path(topic)}/Subscriptions"


def _rule_path(topic: str, subscription_name: str, name: str) -> str:
    """Return the path of a rule."""
    return f"{_rules_path(topic, subscription_name)}/{_checked_name(name, 'rule')}"


def _rules_path(topic: str, subscription_name: str) -> str:
    """Return the path of all rules of a subscription."""
    return f"{_subscription_path(topic, subscription_name)}/Rules"


def _checked_name(name: str, kind: str) -> str:
    if not name or "/" in name or name in _DOT_SEGMENTS:
        raise InvalidArgument(f"{name!r:.80} is not a valid name of a {kind}: use a name without slashes")
    return name
