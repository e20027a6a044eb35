"""Endpoints for queues, topics, subscriptions and rules.

Owns: which operation of the `Administration` a request calls, and the response. Knows nothing of the XML elements of a
description.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.responses import Response

from twinbus.model import path
from twinbus.model.atom import envelope
from twinbus.model.atom import rule as rule_codec
from twinbus.model.atom.description_codec import FORWARD_AUTHORIZATION_HEADERS
from twinbus.model.atom.descriptions import QUEUE_CODEC, SUBSCRIPTION_CODEC, TOPIC_CODEC, read_default_rule
from twinbus.model.atom.value_formats import PARTITIONING_SINCE
from twinbus.model.description import check_duplicate_window
from twinbus.model.errors import InvalidArgument
from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import TopicDescription
from twinbus.server.http import atom_responses
from twinbus.server.http.atom_responses import AtomEntry
from twinbus.server.http.routes import Route, route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.model.atom.description_codec import DescriptionCodec
    from twinbus.model.atom.value_formats import WriteContext
    from twinbus.model.info import Description, EntityInfo
    from twinbus.model.rule import RuleDescription
    from twinbus.server.catalogue.administration import Administration
    from twinbus.server.http.call import Call
    from twinbus.server.http.routes import Authorise

AnyCodec: TypeAlias = "DescriptionCodec[Any, Any]"
ENTITY_PATTERN: Final = r"(?P<entity>(?!\$).*?)"
SUBSCRIPTION_PATTERN: Final = rf"{ENTITY_PATTERN}/subscriptions/(?P<subscription>[^/]+)"
CODEC_BY_INFO: Final[dict[type, AnyCodec]] = {
    QueueInfo: QUEUE_CODEC,
    TopicInfo: TOPIC_CODEC,
    SubscriptionInfo: SUBSCRIPTION_CODEC,
}
"""The codec for each kind of entity, by info type."""
CODEC_BY_TAG: Final[dict[str, AnyCodec]] = {form.tag: form for form in CODEC_BY_INFO.values()}
"""The codec for each kind of entity, by XML element name."""


class EntityEndpoints:
    """Endpoints for the queues, topics and subscriptions of a namespace."""

    def __init__(self, administration: Administration, authorise: Authorise) -> None:
        """Create the endpoints; `authorise` checks the right to send to forwarding targets."""
        self._administration = administration
        self._authorise = authorise

    def routes(self) -> tuple[Route, ...]:
        """Return the routes; the last route matches every path that does not start with `$`."""
        return (
            route(r"\$resources/queues", GET=self._list_queues),
            route(r"\$resources/topics", GET=self._list_topics),
            route(
                SUBSCRIPTION_PATTERN,
                PUT=self._put_subscription,
                GET=self._get_subscription,
                DELETE=self._delete_subscription,
            ),
            route(rf"{ENTITY_PATTERN}/subscriptions", GET=self._list_subscriptions),
            route(ENTITY_PATTERN, PUT=self._put_entity, GET=self._get_entity, DELETE=self._delete_entity),
        )

    # --- create and update --------------------------------------------------------------------------------------------

    async def _put_entity(self, call: Call) -> Response:
        if call.is_update:
            return await self._update(call, call.entity, QUEUE_CODEC.tag, TOPIC_CODEC.tag)
        path.check_entity_path(call.entity)
        return await self._create(call, QUEUE_CODEC.tag, TOPIC_CODEC.tag)

    async def _put_subscription(self, call: Call) -> Response:
        if call.is_update:
            return await self._update(call, call.subscription, SUBSCRIPTION_CODEC.tag)
        path.check_subscription_name(call.names["subscription"])
        return await self._create(call, SUBSCRIPTION_CODEC.tag)

    async def _create(self, call: Call, *tags: str) -> Response:
        root = envelope.read_description(await call.body(), *tags)
        description: Description = CODEC_BY_TAG[envelope.local_name(root)].read(root, now_ms=call.received_ms)
        if getattr(description, "enable_partitioning", False) and not call.knows_partitioning:
            raise InvalidArgument(f"EnablePartitioning needs api-version {PARTITIONING_SINCE} or later")
        _check_message_size(description, type(description)())
        check_duplicate_window(description)
        self._authorise_forwarding(call, description)
        info: EntityInfo
        if isinstance(description, QueueDescription):
            info = await self._administration.create_queue(call.entity, description)
        elif isinstance(description, TopicDescription):
            info = await self._administration.create_topic(call.entity, description)
        else:
            topic, name, rule = call.entity, call.names["subscription"], read_default_rule(root)
            info = await self._administration.create_subscription(topic, name, description, rule)
        return self._entry_response(call, info, status=201)

    async def _update(self, call: Call, entity: str, *tags: str) -> Response:
        root = envelope.read_description(await call.body(), *tags)
        form = CODEC_BY_TAG[envelope.local_name(root)]
        current = await self._administration.get(entity)
        if CODEC_BY_INFO[type(current)] is not form:
            raise InvalidArgument(
                f"'{current.path}' is described by a {CODEC_BY_INFO[type(current)].tag}, not a {form.tag}"
            )
        description = form.read(root, current.description, now_ms=call.received_ms)
        _check_message_size(description, current.description)
        check_duplicate_window(description, current.description)
        self._authorise_forwarding(call, description)
        return self._entry_response(call, await self._administration.update(entity, description))

    def _authorise_forwarding(self, call: Call, description: Description) -> None:
        """Raise Unauthorized if the caller may not send to a forwarding target.

        The right to manage one entity does not include sending to another entity. The SDKs send a token for each
        target.
        """
        for field, header in FORWARD_AUTHORIZATION_HEADERS.items():
            target = getattr(description, field, None)
            if target is not None:
                self._authorise(call.request.headers.get(header, call.token), "Send", target, call.host)

    # --- get and delete -----------------------------------------------------------------------------------------------

    async def _get_entity(self, call: Call) -> Response:
        return self._entry_response(call, await self._administration.get(call.entity))

    async def _get_subscription(self, call: Call) -> Response:
        return self._entry_response(call, await self._administration.get(call.subscription))

    async def _delete_entity(self, call: Call) -> Response:
        await self._administration.delete(call.entity)
        return Response()

    async def _delete_subscription(self, call: Call) -> Response:
        await self._administration.delete(call.subscription)
        return Response()

    # --- list ---------------------------------------------------------------------------------------------------------

    async def _list_queues(self, call: Call) -> Response:
        return await self._list_page(call, "$Resources/queues", self._administration.list_queues)

    async def _list_topics(self, call: Call) -> Response:
        return await self._list_page(call, "$Resources/topics", self._administration.list_topics)

    async def _list_subscriptions(self, call: Call) -> Response:
        list_entities = partial(self._administration.list_subscriptions, call.entity)
        return await self._list_page(call, f"{call.entity}/Subscriptions", list_entities)

    async def _list_page(
        self, call: Call, list_path: str, list_entities: Callable[..., Awaitable[Sequence[EntityInfo]]]
    ) -> Response:
        list_items, make_entry = partial(list_entities, prefix=call.prefix), partial(_entity_entry, view=call.view)
        return await atom_responses.feed_response(
            call, list_path, list_items, make_entry, self._administration.namespace
        )

    def _entry_response(self, call: Call, info: EntityInfo, status: int = 200) -> Response:
        return atom_responses.entry_response(
            call, _entity_entry(info, call.view), self._administration.namespace, status
        )


def _entity_entry(info: EntityInfo, view: WriteContext) -> AtomEntry:
    return AtomEntry(
        path=info.path,
        title=info.name if isinstance(info, SubscriptionInfo) else info.path,
        content=CODEC_BY_INFO[type(info)].write(info, view),
        created_ms=info.runtime.created_ms,
        updated_ms=info.runtime.updated_ms,
    )


def _check_message_size(desired: Description, current: Description) -> None:
    """Raise InvalidArgument if the message size would change, which Standard namespaces do not allow."""
    size, before = getattr(desired, "max_message_kb", None), getattr(current, "max_message_kb", None)
    if size != before:
        raise InvalidArgument(
            f"MaxMessageSizeInKilobytes is {size}: it cannot be chosen in a Standard namespace, where it is {before}; "
            "leave it out, or set max_message_kb in the configuration file"
        )


class RuleEndpoints:
    """Endpoints for the rules of subscriptions."""

    def __init__(self, administration: Administration) -> None:
        """Create the endpoints for the subscriptions of a namespace."""
        self._administration = administration

    def routes(self) -> tuple[Route, ...]:
        """Return the routes, which must come before the entity routes, because entity routes match every path."""
        return (
            route(rf"{SUBSCRIPTION_PATTERN}/rules/(?P<rule>[^/]+)", PUT=self._put, GET=self._get, DELETE=self._delete),
            route(rf"{SUBSCRIPTION_PATTERN}/rules", GET=self._list),
        )

    async def _put(self, call: Call) -> Response:
        is_update = call.is_update
        rule = rule_codec.read(envelope.read_description(await call.body(), rule_codec.RULE_TAG), call.rule)
        if is_update:
            return self._entry_response(call, await self._administration.update_rule(call.subscription, rule))
        return self._entry_response(call, await self._administration.create_rule(call.subscription, rule), status=201)

    async def _get(self, call: Call) -> Response:
        return self._entry_response(call, await self._administration.get_rule(call.subscription, call.rule))

    async def _delete(self, call: Call) -> Response:
        await self._administration.delete_rule(call.subscription, call.rule)
        return Response()

    async def _list(self, call: Call) -> Response:
        list_items = partial(self._administration.list_rules, call.subscription)
        make_entry = partial(_rule_entry, subscription=call.subscription)
        return await atom_responses.feed_response(
            call, f"{call.subscription}/Rules", list_items, make_entry, self._administration.namespace
        )

    def _entry_response(self, call: Call, rule: RuleDescription, status: int = 200) -> Response:
        return atom_responses.entry_response(
            call, _rule_entry(rule, call.subscription), self._administration.namespace, status
        )


def _rule_entry(rule: RuleDescription, subscription: str) -> AtomEntry:
    return AtomEntry(
        path=f"{subscription}/Rules/{rule.name}",
        title=rule.name,
        content=rule_codec.write(rule),
        created_ms=rule.created_ms,
        updated_ms=rule.created_ms,
    )
