"""Management requests: which there are, who may make them, and what each asks of the namespace.

    app = ManagementApp(administration, authorise)
    listener = await listen(app, port=0)

Owns: addresses, methods, query parameters and status codes. Knows nothing of sockets, of keys or of stores: `authorise`
checks a token, an `Administration` does what was asked.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import aclosing
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlencode

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from twinbus.model.errors import InvalidArgument, ServiceBusError
from twinbus.model.path import check_name
from twinbus.server.http import atom, faults, queue_xml
from twinbus.server.http.call import PARTITIONING_SINCE, Call
from twinbus.server.http.limits import DEFAULT_LIMITS, HttpLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from xml.etree.ElementTree import Element

    from starlette.types import Receive, Scope, Send

    from twinbus.model.queue import QueueDescription
    from twinbus.server.administration import Administration, QueueInfo
    from twinbus.server.pauses import PauseMeter

    Authorise = Callable[[str | None, str, str], None]
    """Token of the request or None, right, path ("" is the whole namespace); raises Unauthorized."""
    Handler = Callable[[Call], Awaitable[Response]]

log: Final = logging.getLogger(__name__)


class ManagementApp:
    """An ASGI application over one namespace."""

    def __init__(
        self,
        administration: Administration,
        authorise: Authorise,
        limits: HttpLimits = DEFAULT_LIMITS,
        pauses: PauseMeter | None = None,
    ) -> None:
        """`authorise` is asked before anything else is: also before the body is read. `pauses` may be measured."""
        self._administration = administration
        self._authorise = authorise
        self._limits = limits
        self._pauses = pauses
        self._routes: tuple[tuple[re.Pattern[str], dict[str, Handler]], ...] = (
            (re.compile("/health/?", re.IGNORECASE), {"GET": self._health, "HEAD": self._health}),
            (re.compile(r"/\$resources/queues/?", re.IGNORECASE), {"GET": self._list_queues}),
            (re.compile(r"/\$resources/topics/?", re.IGNORECASE), {"GET": self._list_topics}),
            (re.compile(r"/\$namespaceinfo/?", re.IGNORECASE), {"GET": self._namespace_info}),
            (re.compile(r"/\$pauses/?", re.IGNORECASE), {"DELETE": self._forget_pauses}),
            (
                re.compile(r"/+(?P<name>(?!\$).*?)/*", re.DOTALL),
                {"PUT": self._put, "GET": self._get, "DELETE": self._delete},
            ),
        )  # the first that fits; what fits none is not found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except ClientDisconnect:  # nobody is there to be answered
            return
        response.headers["date"] = formatdate(usegmt=True)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            handler, call = self._find(request)
            if handler != self._health:
                self._authorise(call.token, "Manage", call.name)
            return await handler(call)
        except ServiceBusError as error:
            return faults.answer(error)
        except ClientDisconnect:
            raise
        except Exception:
            tracking_id = faults.new_tracking_id()
            log.exception("%s %r failed. TrackingId:%s", request.method, request.scope["path"], tracking_id)
            return faults.respond(500, "the server failed; its log says why, under this id", tracking_id)

    def _find(self, request: Request) -> tuple[Handler, Call]:
        address = request.scope["path"]  # decoded once, by the protocol; a name may have had its slashes as %2F
        for pattern, handlers in self._routes:
            if match := pattern.fullmatch(address):
                if request.method not in handlers:
                    raise faults.MethodNotAllowed(request.method, tuple(handlers))
                return handlers[request.method], Call.of(request, match.groupdict().get("name", ""))
        raise faults.NoSuchResource(f"{address!r:.300} is nothing that this service has")

    # --- entities -----------------------------------------------------------------------------------------------------

    async def _put(self, call: Call) -> Response:
        condition = call.request.headers.get("if-match")
        if condition is None:
            return await self._create(call)
        if condition != "*":
            raise InvalidArgument(f"If-Match is {condition!r:.40}; entities have no tags here: it can only be *")
        return await self._update(call)

    async def _create(self, call: Call) -> Response:
        check_name(call.name)
        description = queue_xml.read(await self._body(call.request))
        if description.enable_partitioning and not call.knows_partitioning:
            raise InvalidArgument(f"EnablePartitioning needs api-version {PARTITIONING_SINCE} or later")
        self._authorise_forwarding(call, description)
        return self._entry(call, await self._administration.create_queue(call.name, description), status=201)

    async def _update(self, call: Call) -> Response:
        body = await self._body(call.request)
        current = (await self._administration.get_queue(call.entity)).description
        description = queue_xml.read(body, current)
        self._authorise_forwarding(call, description)
        return self._entry(call, await self._administration.update_queue(call.name, description))

    async def _get(self, call: Call) -> Response:
        return self._entry(call, await self._administration.get_queue(call.entity))

    async def _delete(self, call: Call) -> Response:
        await self._administration.delete_queue(call.entity)
        return Response()

    def _authorise_forwarding(self, call: Call, description: QueueDescription) -> None:
        """Who may manage one queue may not for that reason send to another: the SDKs show a token for each target."""
        for target, header in (
            (description.forward_to, "servicebussupplementaryauthorization"),
            (description.forward_dead_lettered_to, "servicebusdlqsupplementaryauthorization"),
        ):
            if target is not None:
                self._authorise(call.request.headers.get(header, call.token), "Send", target)

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.max_body_bytes
        chunks: list[bytes] = []
        size = int(request.headers.get("content-length", 0))  # the protocol has seen to it that it is a number
        try:
            async with asyncio.timeout(self._limits.body_timeout_s), aclosing(request.stream()) as stream:
                while size <= limit and (chunk := await anext(stream, b"")):
                    chunks.append(chunk)
                    size = max(size, sum(map(len, chunks)))
        except TimeoutError:
            raise faults.BodyTooSlow(f"the body did not come within {self._limits.body_timeout_s} s") from None
        if size > limit:  # what is left of it is read and dropped by the protocol, so that this answer arrives
            raise faults.BodyTooLarge(f"the body has {size} bytes or more; it can have {limit}")
        return b"".join(chunks)

    # --- lists --------------------------------------------------------------------------------------------------------

    async def _list_queues(self, call: Call) -> Response:
        skip, top = call.page(self._limits.max_page)
        infos = await self._administration.list_queues(skip=skip, top=top + 1)  # one more tells whether there are more
        return self._feed(call, "queues", infos[:top], has_more=len(infos) > top > 0)

    async def _list_topics(self, call: Call) -> Response:
        call.page(self._limits.max_page)
        return self._feed(call, "topics", [], has_more=False)

    def _feed(self, call: Call, kind: str, infos: list[QueueInfo], *, has_more: bool) -> Response:
        url = f"{call.base}/$Resources/{kind}"
        next_url = None
        if has_more:
            skip, top = call.page(self._limits.max_page)
            page = {**call.request.query_params, "$skip": str(skip + top), "$top": str(top)}
            next_url = f"{url}?{urlencode(page, safe='$')}"
        root = atom.feed(
            [self._entry_element(call, info) for info in infos],
            url=url,
            title=kind.capitalize(),
            updated_ms=_now_ms(),
            next_url=next_url,
        )
        return Response(atom.to_bytes(root), media_type=atom.FEED_MEDIA_TYPE)

    def _entry(self, call: Call, info: QueueInfo, status: int = 200) -> Response:
        content = atom.to_bytes(self._entry_element(call, info))
        return Response(content, status_code=status, media_type=atom.ENTRY_MEDIA_TYPE)

    def _entry_element(self, call: Call, info: QueueInfo) -> Element:
        return atom.entry(
            queue_xml.write(info, host=call.host, shows_partitioning=call.knows_partitioning),
            url=f"{call.base}/{info.path}",
            title=info.path,
            author=self._administration.namespace,
            created_ms=info.runtime.created_ms,
            updated_ms=info.runtime.updated_ms,
        )

    # --- the namespace ------------------------------------------------------------------------------------------------

    async def _namespace_info(self, call: Call) -> Response:
        created_ms = self._administration.created_ms
        content = atom.description("NamespaceInfo")
        atom.add(content, "CreatedTime", atom.timestamp(created_ms))
        atom.add(content, "MessagingSKU", "Standard")  # the limits of messages and entities are that tier's
        atom.add(content, "ModifiedTime", atom.timestamp(created_ms))
        atom.add(content, "Name", self._administration.namespace)
        atom.add(content, "NamespaceType", "Messaging")
        root = atom.entry(
            content,
            url=f"{call.base}/$namespaceinfo",
            title=self._administration.namespace,
            author=self._administration.namespace,
            created_ms=created_ms,
            updated_ms=created_ms,
        )
        return Response(atom.to_bytes(root), media_type=atom.ENTRY_MEDIA_TYPE)

    async def _health(self, _: Call) -> Response:
        health = self._administration.health()
        stores = cast("list[dict[str, object]]", health["stores"])
        serves = not stores or any(store.get("is_available") for store in stores)
        if self._pauses is not None:
            health = {**health, "pauses": self._pauses.told()}
        content = msgspec.json.encode(health)
        return Response(content, status_code=200 if serves else 503, media_type="application/json")

    async def _forget_pauses(self, _: Call) -> Response:
        """What was found so far; from now on it is measured anew."""
        if self._pauses is None:
            raise faults.NoSuchResource("pauses are not measured: twinbus serve --measure-pauses does")
        content = msgspec.json.encode(self._pauses.told())
        self._pauses.forget()
        return Response(content, media_type="application/json")


def _now_ms() -> int:
    return int(time.time() * 1000)
