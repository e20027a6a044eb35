"""Requests about queues, topics and subscriptions.

Owns: what each asks of the namespace, and what it answers. Knows nothing of the elements in a description.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.responses import Response

from twinbus.model import path
from twinbus.model.atom import envelope
from twinbus.model.atom.form import TARGETS
from twinbus.model.atom.kinds import PARTITIONING_SINCE
from twinbus.model.atom.queue import QUEUE
from twinbus.model.atom.subscription import SUBSCRIPTION, read_default_rule
from twinbus.model.atom.topic import TOPIC
from twinbus.model.description import check_window
from twinbus.model.errors import InvalidArgument
from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import TopicDescription
from twinbus.server.http import entries
from twinbus.server.http.entries import Entry
from twinbus.server.http.routes import Route, route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.model.atom.form import Form
    from twinbus.model.atom.kinds import View
    from twinbus.model.info import Description, EntityInfo
    from twinbus.server.administration import Administration
    from twinbus.server.http.call import Call
    from twinbus.server.http.routes import Authorise

AnyForm: TypeAlias = "Form[Any, Any]"
ENTITY: Final = r"(?P<entity>(?!\$).*?)"
SUBSCRIPTION_OF_IT: Final = rf"{ENTITY}/subscriptions/(?P<subscription>[^/]+)"
FORM_OF: Final[dict[type, AnyForm]] = {QueueInfo: QUEUE, TopicInfo: TOPIC, SubscriptionInfo: SUBSCRIPTION}
"""Which entity has which description."""
FORMS: Final[dict[str, AnyForm]] = {form.tag: form for form in FORM_OF.values()}
"""By the names of their elements."""


class EntityRequests:
    """The entities of one namespace, over HTTP."""

    def __init__(self, administration: Administration, authorise: Authorise) -> None:
        """`authorise` is asked whether the targets of forwarding may be sent to."""
        self._administration = administration
        self._authorise = authorise

    def routes(self) -> tuple[Route, ...]:
        """The last takes every address that does not start with `$`."""
        return (
            route(r"\$resources/queues", GET=self._list_queues),
            route(r"\$resources/topics", GET=self._list_topics),
            route(
                SUBSCRIPTION_OF_IT,
                PUT=self._put_subscription,
                GET=self._get_subscription,
                DELETE=self._delete_subscription,
            ),
            route(rf"{ENTITY}/subscriptions", GET=self._list_subscriptions),
            route(ENTITY, PUT=self._put_entity, GET=self._get_entity, DELETE=self._delete_entity),
        )

    # --- making and changing ------------------------------------------------------------------------------------------

    async def _put_entity(self, call: Call) -> Response:
        if call.is_update:
            return await self._update(call, call.entity, QUEUE.tag, TOPIC.tag)
        path.check_name(call.entity)
        return await self._create(call, QUEUE.tag, TOPIC.tag)

    async def _put_subscription(self, call: Call) -> Response:
        if call.is_update:
            return await self._update(call, call.subscription, SUBSCRIPTION.tag)
        path.check_subscription_name(call.names["subscription"])
        return await self._create(call, SUBSCRIPTION.tag)

    async def _create(self, call: Call, *tags: str) -> Response:
        root = envelope.read_description(await call.body(), *tags)
        description: Description = FORMS[envelope.local_name(root)].read(root, now_ms=call.received_ms)
        if getattr(description, "enable_partitioning", False) and not call.knows_partitioning:
            raise InvalidArgument(f"EnablePartitioning needs api-version {PARTITIONING_SINCE} or later")
        _check_message_size(description, type(description)())
        check_window(description)
        self._authorise_forwarding(call, description)
        info: EntityInfo
        if isinstance(description, QueueDescription):
            info = await self._administration.create_queue(call.entity, description)
        elif isinstance(description, TopicDescription):
            info = await self._administration.create_topic(call.entity, description)
        else:
            topic, name, rule = call.entity, call.names["subscription"], read_default_rule(root)
            info = await self._administration.create_subscription(topic, name, description, rule)
        return self._show(call, info, status=201)

    async def _update(self, call: Call, entity: str, *tags: str) -> Response:
        root = envelope.read_description(await call.body(), *tags)
        form = FORMS[envelope.local_name(root)]
        current = await self._administration.get(entity)
        if FORM_OF[type(current)] is not form:
            raise InvalidArgument(f"'{current.path}' is described by a {FORM_OF[type(current)].tag}, not a {form.tag}")
        description = form.read(root, current.description, now_ms=call.received_ms)
        _check_message_size(description, current.description)
        check_window(description, current.description)
        self._authorise_forwarding(call, description)
        return self._show(call, await self._administration.update(entity, description))

    def _authorise_forwarding(self, call: Call, description: Description) -> None:
        """Who may manage one entity may not for that reason send to another: the SDKs show a token for each target."""
        for field, header in TARGETS.items():
            target = getattr(description, field, None)
            if target is not None:
                self._authorise(call.request.headers.get(header, call.token), "Send", target, call.host)

    # --- looking and deleting -----------------------------------------------------------------------------------------

    async def _get_entity(self, call: Call) -> Response:
        return self._show(call, await self._administration.get(call.entity))

    async def _get_subscription(self, call: Call) -> Response:
        return self._show(call, await self._administration.get(call.subscription))

    async def _delete_entity(self, call: Call) -> Response:
        await self._administration.delete(call.entity)
        return Response()

    async def _delete_subscription(self, call: Call) -> Response:
        await self._administration.delete(call.subscription)
        return Response()

    # --- lists --------------------------------------------------------------------------------------------------------

    async def _list_queues(self, call: Call) -> Response:
        return await self._page(call, "$Resources/queues", self._administration.list_queues)

    async def _list_topics(self, call: Call) -> Response:
        return await self._page(call, "$Resources/topics", self._administration.list_topics)

    async def _list_subscriptions(self, call: Call) -> Response:
        list_some = partial(self._administration.list_subscriptions, call.entity)
        return await self._page(call, f"{call.entity}/Subscriptions", list_some)

    async def _page(
        self, call: Call, where: str, list_some: Callable[..., Awaitable[Sequence[EntityInfo]]]
    ) -> Response:
        of_prefix, entry_of = partial(list_some, prefix=call.prefix), partial(_entry, view=call.view)
        return await entries.show_page(call, where, of_prefix, entry_of, self._administration.namespace)

    def _show(self, call: Call, info: EntityInfo, status: int = 200) -> Response:
        return entries.show(call, _entry(info, call.view), self._administration.namespace, status)


def _entry(info: EntityInfo, view: View) -> Entry:
    return Entry(
        path=info.path,
        title=info.name if isinstance(info, SubscriptionInfo) else info.path,
        content=FORM_OF[type(info)].write(info, view),
        created_ms=info.runtime.created_ms,
        updated_ms=info.runtime.updated_ms,
    )


def _check_message_size(wanted: Description, current: Description) -> None:
    """Refuse another size of messages: to choose one is a matter of Premium namespaces, and this one is Standard."""
    size, before = getattr(wanted, "max_message_kb", None), getattr(current, "max_message_kb", None)
    if size != before:
        raise InvalidArgument(
            f"MaxMessageSizeInKilobytes is {size}: it cannot be chosen in a Standard namespace, where it is {before}; "
            "leave it out, or set max_message_kb in the configuration file"
        )
