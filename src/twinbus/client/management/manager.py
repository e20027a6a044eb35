"""The manager of a namespace: makes, shows, changes and deletes what is in it.

    async with NamespaceManager.from_connection_string(text) as manager:
        await manager.create_queue("orders", QueueDescription(max_delivery_count=5))
        async for queue in manager.get_queues(prefix="ord"):
            print(queue.path, queue.runtime.active_count)

Owns: the calls, and where in the namespace each thing is. What is asked of the namespace goes through `service`; how
descriptions are written is in `model.atom`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, TypeVar, Unpack

from twinbus.client.connection_string import ConnectionString
from twinbus.client.management.atom_client import AtomClient, reading_response
from twinbus.client.settings import FactorySettings, settings_from_options
from twinbus.model import path as paths
from twinbus.model.atom import descriptions as namespace_form
from twinbus.model.atom import rule as rule_form
from twinbus.model.atom.description_codec import FORWARD_AUTHORIZATION_HEADERS
from twinbus.model.atom.descriptions import QUEUE_CODEC, SUBSCRIPTION_CODEC, TOPIC_CODEC, add_default_rule
from twinbus.model.atom.value_formats import NEWEST_API_VERSION, WriteContext
from twinbus.model.errors import EntityNotFound, InvalidArgument
from twinbus.model.info import NamespaceInfo, QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription, QueueRuntime
from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from twinbus.client.settings import ClientOptions
    from twinbus.client.tokens import TokenProvider
    from twinbus.model.atom.description_codec import DescriptionCodec
    from twinbus.model.rule import RuleDescription

D = TypeVar("D")
R = TypeVar("R")
_QUEUES_PATH: Final = "$Resources/queues"
_TOPICS_PATH: Final = "$Resources/topics"
_NAMESPACE_PATH: Final = "$namespaceinfo"


class NamespaceManager:
    """One namespace, to those who manage it."""

    def __init__(
        self,
        where: ConnectionString,
        settings: FactorySettings | None = None,
        *,
        token_provider: TokenProvider | None = None,
    ) -> None:
        """Nothing is connected before it is needed. `from_connection_string` is the usual way."""
        self.where = where
        self.settings = settings if settings is not None else FactorySettings()
        self._client = AtomClient(where, self.settings, token_provider)
        self._view = WriteContext(where.host, NEWEST_API_VERSION)

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """A manager of the namespace that a connection string names. ValueError says what is wrong with the string.

        It speaks https, to port 443 or the one in the string; with `UseDevelopmentEmulator=true` http, to port 5300 or
        the one in the string. The certificate is checked by `tls`, by the authorities in `ca_file`, or by this
        machine's.
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
        """End its connections. May be called again."""
        await self._client.close()

    async def get_namespace_info(self) -> NamespaceInfo:
        """What the namespace is."""
        root = await self._client.get(_NAMESPACE_PATH, namespace_form.NAMESPACE_TAG)
        with reading_response(_NAMESPACE_PATH):
            return namespace_form.read_namespace(root)

    # --- queues -------------------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription | None = None) -> QueueDescription:
        """Make a queue, and say what it became; EntityAlreadyExists, QuotaExceeded, InvalidArgument."""
        return await self._put(QUEUE_CODEC, _entity_path(path), description or QueueDescription(), is_update=False)

    async def update_queue(self, path: str, description: QueueDescription) -> QueueDescription:
        """Make a queue be as described in every respect; start from what `get_queue` says. EntityNotFound."""
        return await self._put(QUEUE_CODEC, _entity_path(path), description, is_update=True)

    async def get_queue(self, path: str) -> QueueDescription:
        """What a queue is told to be, or EntityNotFound."""
        return await self._get(QUEUE_CODEC, _entity_path(path))

    async def get_queue_runtime(self, path: str) -> QueueRuntime:
        """What a queue holds now, or EntityNotFound."""
        return await self._get_runtime(QUEUE_CODEC, _entity_path(path))

    async def queue_exists(self, path: str) -> bool:
        """There is a queue of that path."""
        return await self._exists(QUEUE_CODEC.tag, _entity_path(path))

    async def delete_queue(self, path: str) -> None:
        """Delete a queue and all it holds, or EntityNotFound. A topic of that path would be deleted as well."""
        await self._client.delete(_entity_path(path))

    async def get_queues(self, prefix: str = "") -> AsyncIterator[QueueInfo]:
        """All queues whose path starts so, page by page."""
        async for path, description, runtime in self._list(QUEUE_CODEC, _QUEUES_PATH, prefix):
            yield QueueInfo(path=path, description=description, runtime=runtime)

    # --- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(self, path: str, description: TopicDescription | None = None) -> TopicDescription:
        """Make a topic, and say what it became; EntityAlreadyExists, QuotaExceeded, InvalidArgument."""
        return await self._put(TOPIC_CODEC, _entity_path(path), description or TopicDescription(), is_update=False)

    async def update_topic(self, path: str, description: TopicDescription) -> TopicDescription:
        """Make a topic be as described in every respect; start from what `get_topic` says. EntityNotFound."""
        return await self._put(TOPIC_CODEC, _entity_path(path), description, is_update=True)

    async def get_topic(self, path: str) -> TopicDescription:
        """What a topic is told to be, or EntityNotFound."""
        return await self._get(TOPIC_CODEC, _entity_path(path))

    async def get_topic_runtime(self, path: str) -> TopicRuntime:
        """What a topic holds now, or EntityNotFound."""
        return await self._get_runtime(TOPIC_CODEC, _entity_path(path))

    async def topic_exists(self, path: str) -> bool:
        """There is a topic of that path."""
        return await self._exists(TOPIC_CODEC.tag, _entity_path(path))

    async def delete_topic(self, path: str) -> None:
        """Delete a topic with its subscriptions, or EntityNotFound. A queue of that path would be deleted as well."""
        await self._client.delete(_entity_path(path))

    async def get_topics(self, prefix: str = "") -> AsyncIterator[TopicInfo]:
        """All topics whose path starts so, page by page."""
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
        """Make a subscription with one rule: `rule`, or one that is true for every message."""
        place = _subscription_path(topic, name)
        return await self._put(
            SUBSCRIPTION_CODEC, place, description or SubscriptionDescription(), is_update=False, rule=rule
        )

    async def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionDescription:
        """Make a subscription be as described in every respect; start from what `get_subscription` says."""
        return await self._put(SUBSCRIPTION_CODEC, _subscription_path(topic, name), description, is_update=True)

    async def get_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        """What a subscription is told to be, or EntityNotFound."""
        return await self._get(SUBSCRIPTION_CODEC, _subscription_path(topic, name))

    async def get_subscription_runtime(self, topic: str, name: str) -> QueueRuntime:
        """What a subscription holds now, or EntityNotFound. Its size is counted with its topic."""
        return await self._get_runtime(SUBSCRIPTION_CODEC, _subscription_path(topic, name))

    async def subscription_exists(self, topic: str, name: str) -> bool:
        """The topic has a subscription of that name."""
        return await self._exists(SUBSCRIPTION_CODEC.tag, _subscription_path(topic, name))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription and all it holds, or EntityNotFound."""
        await self._client.delete(_subscription_path(topic, name))

    async def get_subscriptions(self, topic: str, prefix: str = "") -> AsyncIterator[SubscriptionInfo]:
        """All subscriptions of a topic whose name starts so, page by page; or EntityNotFound."""
        async for name, description, runtime in self._list(SUBSCRIPTION_CODEC, _subscriptions_path(topic), prefix):
            place = _subscription_path(topic, name)
            yield SubscriptionInfo(
                path=place, topic=_entity_path(topic), name=name, description=description, runtime=runtime
            )

    # --- rules --------------------------------------------------------------------------------------------------------

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription; EntityAlreadyExists, EntityNotFound, InvalidArgument."""
        return await self._put_rule(topic, subscription, rule, is_update=False)

    async def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name, or EntityNotFound."""
        return await self._put_rule(topic, subscription, rule, is_update=True)

    async def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        """A rule, or EntityNotFound."""
        place = _rule_path(topic, subscription, name)
        root = await self._client.get(place, rule_form.RULE_TAG)
        with reading_response(place):
            return rule_form.read_response(root)

    async def rule_exists(self, topic: str, subscription: str, name: str) -> bool:
        """The subscription has a rule of that name."""
        return await self._exists(rule_form.RULE_TAG, _rule_path(topic, subscription, name))

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Delete a rule, or EntityNotFound."""
        await self._client.delete(_rule_path(topic, subscription, name))

    async def get_rules(self, topic: str, subscription: str) -> AsyncIterator[RuleDescription]:
        """All rules of a subscription, page by page; or EntityNotFound."""
        place = _rules_path(topic, subscription)
        async for entry in self._client.list(place, rule_form.RULE_TAG):
            with reading_response(place):
                rule = rule_form.read_response(entry.description)
            yield rule

    # --- what they have in common -------------------------------------------------------------------------------------

    async def _put(
        self,
        form: DescriptionCodec[D, R],
        path: str,
        description: D,
        *,
        is_update: bool,
        rule: RuleDescription | None = None,
    ) -> D:
        wanted = form.write_request(description, self._view, is_update=is_update)
        if rule is not None:
            add_default_rule(wanted, rule)
        headers = tuple(
            header
            for target, header in FORWARD_AUTHORIZATION_HEADERS.items()
            if getattr(description, target, None) is not None
        )
        root = await self._client.put(path, form.tag, wanted, is_update=is_update, token_headers=headers)
        with reading_response(path):
            return form.read_response(root)

    async def _put_rule(
        self, topic: str, subscription: str, rule: RuleDescription, *, is_update: bool
    ) -> RuleDescription:
        place, wanted = _rule_path(topic, subscription, rule.name), rule_form.write_request(rule)
        root = await self._client.put(place, rule_form.RULE_TAG, wanted, is_update=is_update)
        with reading_response(place):
            return rule_form.read_response(root)

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
                shown = entry.title, form.read_response(entry.description), form.read_runtime(entry.description)
            yield shown


# --- paths of what is managed -----------------------------------------------------------------------------------------

_DOT_SEGMENTS: Final = (".", "..")
"""Segments that are resolved on the way: to delete the subscription `..` would be to delete its topic."""


def _entity_path(path: str) -> str:
    """Return the path of a queue or a topic.

    A name stays a name: `news/Subscriptions/all` is no queue, and a slash or `..` in the name of a rule would make it
    the address of something else. What else a name can be is for the namespace to say.
    """
    found = paths.relative_path(path)
    is_elsewhere = any(segment in _DOT_SEGMENTS for segment in found.split("/"))
    if not found or is_elsewhere or found.startswith("$") or paths.parent_entity(found) != found:
        raise InvalidArgument(f"{path!r:.80} is no path of a queue or topic")
    return found


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
        raise InvalidArgument(f"{name!r:.80} is no name of a {kind}: it is not empty, and has no slash")
    return name
