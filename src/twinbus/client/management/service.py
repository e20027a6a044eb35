"""The namespace, as it is asked over HTTP: one request, its retries, its answer.

Owns: the connections, the headers of a request, and that every failure becomes an error of ours. Knows nothing of
queues, topics or rules: descriptions go in and come out as elements.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import httpx

from twinbus.client import attempts
from twinbus.client.attempts import Doubt
from twinbus.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    EntityNotFound,
    ObjectClosed,
    TimedOut,
    UnknownAnswer,
    server_busy,
)
from twinbus.client.settings import trust
from twinbus.client.tokens import SAS, provider_of
from twinbus.model import errors as model
from twinbus.model.atom import envelope, reader
from twinbus.model.atom.kinds import NEWEST
from twinbus.model.errors import NAME_HEADER, EntityAlreadyExists, InvalidArgument, ServiceBusError, Unauthorized

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from xml.etree.ElementTree import Element

    from twinbus.client.clock import Clock
    from twinbus.client.connection_string import ConnectionString
    from twinbus.client.settings import FactorySettings
    from twinbus.client.tokens import TokenProvider
    from twinbus.model.atom.envelope import Answer, ShownEntry

CONNECT_TIMEOUT_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""A page of the largest descriptions is a tenth of it."""
PAGE: Final = 100
"""Entries that are asked for at once: Azure gives no more."""
MEDIA_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
_GOOD: Final = range(200, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    is_update: bool = False
    token_headers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.method} of '{self.path}'"

    @property
    def target(self) -> str:
        """Path and query. A slash in a path is one: no entity's name has another."""
        return f"/{quote(self.path, safe='/$')}?{urlencode({'api-version': NEWEST, **self.query}, safe='$')}"

    def headers(self, token: str) -> dict[str, str]:
        """All that this request needs."""
        found = {"Authorization": token, **dict.fromkeys(self.token_headers, token)}
        if self.body is not None:
            found["Content-Type"] = MEDIA_TYPE
        if self.is_update:
            found["If-Match"] = "*"
        return found


_RENEW_AT: Final = 0.75
"""Of its life, after which another one is asked for."""


class KeptToken:
    """One token, good for all that a manager asks for."""

    def __init__(self, provider: TokenProvider, audience: str, clock: Clock) -> None:
        """Nothing is asked for yet."""
        self._provider = provider
        self._audience = audience
        self._clock = clock
        self._header = ""
        self._renew_at_s = 0.0

    async def header(self) -> str:
        """What goes into `Authorization`."""
        now_s = self._clock.wall_ms() / 1000
        if now_s >= self._renew_at_s:
            token = await self._provider.token(self._audience)
            self._header = token.text if token.kind == SAS else f"Bearer {token.text}"
            self._renew_at_s = now_s + (token.expires_s - now_s) * _RENEW_AT
        return self._header

    def forget(self) -> None:
        """It was refused: the next request asks for another."""
        self._renew_at_s = 0.0


class AtomService:
    """One namespace."""

    def __init__(self, where: ConnectionString, settings: FactorySettings, provider: TokenProvider | None) -> None:
        """Nothing is connected before it is needed."""
        self.where = where
        self.is_closed = False
        self._settings = settings
        provider = provider or provider_of(where, settings.clock)
        self._token = KeptToken(provider, f"https://{where.host}/{where.entity_path or ''}", settings.clock)
        self._http = httpx.AsyncClient(
            base_url=where.http_base,
            verify=settings.tls or trust(None),
            timeout=httpx.Timeout(None, connect=min(CONNECT_TIMEOUT_S, settings.operation_timeout_s)),
            headers={"Accept": "application/xml, application/atom+xml", "Accept-Encoding": "identity"},
            trust_env=False,  # neither proxies nor other credentials: messages go straight there, too
        )

    async def close(self) -> None:
        """End the connections. May be called again."""
        self.is_closed = True
        await self._http.aclose()

    # --- what can be asked --------------------------------------------------------------------------------------------

    async def get(self, path: str, tag: str) -> Element:
        """The description of that name at an address; EntityNotFound if there is none, or one of something else."""
        request = _Request(method="GET", path=path)
        answer = _read(request, await self._ask(request))
        if answer.is_feed or not answer.entries:  # how Azure says that there is no such entity
            raise EntityNotFound(f"The messaging entity '{path}' could not be found.")
        return _described(path, tag, answer.entries[0])

    async def put(
        self,
        path: str,
        tag: str,
        description: Element,
        *,
        is_update: bool,
        token_headers: tuple[str, ...] = (),
    ) -> Element:
        """Make something, or change it; the description that it then has. `token_headers` show the token as well."""
        body = envelope.request(description)
        request = _Request(method="PUT", path=path, body=body, is_update=is_update, token_headers=token_headers)
        answer = _read(request, await self._ask(request))
        if answer.is_feed or not answer.entries:
            raise UnknownAnswer(f"{request}: answered without a description")
        return _described(path, tag, answer.entries[0])

    async def delete(self, path: str) -> None:
        """Delete what is at an address."""
        await self._ask(_Request(method="DELETE", path=path))

    async def list(self, path: str, tag: str, prefix: str = "") -> AsyncIterator[ShownEntry]:
        """All entries of a list, page by page. What is made or deleted meanwhile may be there, or not."""
        skip, has_more = 0, True
        while has_more:
            query = {"$skip": str(skip), "$top": str(PAGE), **({"prefix": prefix} if prefix else {})}
            request = _Request(method="GET", path=path, query=query)
            answer = _read(request, await self._ask(request))
            for entry in answer.entries:
                # Azure knows no prefix, and lists them all.
                if envelope.local_name(entry.description) == tag and entry.title.lower().startswith(prefix.lower()):
                    yield entry
            skip += len(answer.entries)
            has_more = bool(answer.entries) and (answer.has_more or len(answer.entries) >= PAGE)

    # --- how it is asked ----------------------------------------------------------------------------------------------

    async def _ask(self, request: _Request) -> bytes:
        """The body of a good answer, after as many tries as it takes."""
        doubt = Doubt()

        async def attempt() -> bytes:
            try:
                return await self._ask_once(request)
            except (EntityAlreadyExists, EntityNotFound) as error:
                if doubt.may_have_happened:
                    error.add_note("a try before this one got no answer: it may be what did it")
                raise
            except ServiceBusError as error:
                doubt.note(error)
                raise
            except asyncio.CancelledError:  # nobody knows how much of the request had left
                doubt.may_have_happened = True
                raise

        settings = self._settings
        with doubt.told():
            return await attempts.run(
                str(request),
                attempt,
                limit_s=settings.operation_timeout_s,
                policy=settings.retry_policy,
                check_open=self._check_open,
                doubt=doubt,
            )

    async def _ask_once(self, request: _Request) -> bytes:
        headers = request.headers(await self._token.header())
        with _errors_of_ours(self.where.http_base):
            async with self._http.stream(
                request.method, request.target, content=request.body, headers=headers
            ) as response:
                body = await _whole(response)
        if response.status_code in _GOOD:
            return body
        is_create = request.method == "PUT" and not request.is_update
        error = failure(
            response.status_code,
            body,
            str(request),
            is_create=is_create,
            name=response.headers.get(NAME_HEADER),
            retry_after=response.headers.get("Retry-After"),
        )
        if isinstance(error, Unauthorized):
            self._token.forget()
        raise error

    def _check_open(self) -> None:
        if self.is_closed:
            raise ObjectClosed(f"the manager of {self.where.http_base} is closed")


async def _whole(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise UnknownAnswer(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


@contextmanager
def _errors_of_ours(where: str) -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ConnectionFailed(f"{where} cannot be reached: {_said(error)}") from error
    except httpx.LocalProtocolError:
        # Its text holds the header, and so the token.
        raise InvalidArgument("the token has characters that no header can have") from None
    except httpx.TransportError as error:
        raise ConnectionLost(f"{where} did not answer: {_said(error)}") from error
    except httpx.RequestError as error:
        raise UnknownAnswer(f"{where} answered what cannot be read: {error}") from error


def _said(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _read(request: _Request, body: bytes) -> Answer:
    with as_unknown(str(request)):
        return envelope.read_answer(body)


def _described(path: str, tag: str, entry: ShownEntry) -> Element:
    found = envelope.local_name(entry.description)
    if found != tag:
        raise EntityNotFound(f"'{path}' is described by a {found!r:.60}, not by a {tag}")
    return entry.description


@contextmanager
def as_unknown(what: str) -> Iterator[None]:
    """What cannot be in an answer is no fault of the caller."""
    try:
        yield
    except InvalidArgument as error:
        raise UnknownAnswer(f"the answer to {what} cannot be read: {error}") from error


# --- the errors of failed requests ------------------------------------------------------------------------------------

_BY_STATUS: Final[dict[int, type[ServiceBusError]]] = {
    400: model.InvalidArgument,
    401: model.Unauthorized,
    403: model.QuotaExceeded,
    404: EntityNotFound,
    405: model.NotAllowed,
    409: model.EntityAlreadyExists,
    410: EntityNotFound,
    412: EntityNotFound,  # "if it exists" is the only condition that is ever set
    413: model.InvalidArgument,
    429: model.ServerBusy,
    500: model.InternalFault,
    501: model.NotImplementedHere,
    502: model.StoreUnavailable,
    503: model.ServerBusy,
    504: model.StoreUnavailable,
}
_TIMEOUT: Final = 408
_CONFLICT: Final = 409
_FORBIDDEN: Final = 403
_ANOTHER_OPERATION: Final = "SubCode=40901"
"""Azure's words for: somebody else is changing this entity right now."""
_NOT_ALLOWED: Final = "SubCode=40301"
"""Azure's for: such an entity cannot have this."""
_MAX_TEXT: Final = 1_000


def failure(
    status: int,
    body: bytes,
    what: str,
    *,
    is_create: bool,
    name: str | None = None,
    retry_after: str | None = None,
) -> ServiceBusError:
    """Return the error of an answer to `what`, a request that creates something (`is_create`) or does not.

    `name` is the NAME_HEADER of the response, `retry_after` its `Retry-After`.
    """
    detail = detail_of(body)
    text = f"{what}: {detail}" if detail else f"{what}: answered with status {status}, and no reason"
    if status == _TIMEOUT:
        return TimedOut(text)
    kind = model.DiskFull if name == model.DiskFull.__name__ else _BY_STATUS.get(status)
    # A race that was lost: what was asked for is there already, or gone.
    is_race_lost = status == _CONFLICT and (not is_create or _ANOTHER_OPERATION in detail)
    if kind is model.ServerBusy or is_race_lost:
        return server_busy(text, retry_after)
    if status == _FORBIDDEN and _NOT_ALLOWED in detail:
        return model.NotAllowed(text)
    if kind is model.DiskFull:
        return kind(text, may_have_happened=False)  # the catalogue's disk is full: nothing was changed
    if kind is not None:
        return kind(text)
    return _unheard_of(status, text)


def _unheard_of(status: int, text: str) -> ServiceBusError:
    by_hundreds = {4: model.NotAllowed, 5: model.InternalFault}
    return by_hundreds.get(status // 100, UnknownAnswer)(f"status {status}: {text}")


def detail_of(body: bytes) -> str:
    """The reason in an error's body; what is no such body is taken as text."""
    try:
        root = reader.parse(body)
    except InvalidArgument:
        return body.decode(errors="replace").strip()[:_MAX_TEXT]
    found = root.find("{*}Detail")
    return "" if found is None else (found.text or "").strip()[:_MAX_TEXT]
