"""HTTP client for the management API of a namespace: requests, retries and responses in ATOM.

Owns the HTTP connections, the request headers, and the mapping of failures to the client's exceptions. The module knows
nothing of queues, topics or rules, because descriptions are passed as XML elements.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import httpx
import msgspec

from twinbus.client import retry
from twinbus.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    EntityNotFound,
    ObjectClosed,
    TimedOut,
    UnknownAnswer,
    server_busy,
)
from twinbus.client.retry import OperationOutcome
from twinbus.client.settings import tls_context
from twinbus.client.tokens import SAS_TOKEN_TYPE, token_provider_for
from twinbus.model import errors as model
from twinbus.model.atom import envelope
from twinbus.model.atom.value_formats import NEWEST_API_VERSION
from twinbus.model.errors import ERROR_NAME_HEADER, EntityAlreadyExists, InvalidArgument, ServiceBusError, Unauthorized
from twinbus.model.status import ErrorBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from xml.etree.ElementTree import Element

    from twinbus.client.clock import Clock
    from twinbus.client.connection_string import ConnectionString
    from twinbus.client.settings import FactorySettings
    from twinbus.client.tokens import TokenProvider
    from twinbus.model.atom.envelope import AtomResponse, ResponseEntry

CONNECT_TIMEOUT_S: Final = 30.0
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""Largest response accepted, about ten times a page of the largest descriptions."""
PAGE_SIZE: Final = 100
"""Entries requested per page, the most that Azure returns."""
MEDIA_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
_SUCCESS: Final = range(200, 300)


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
        """Path and query of the URL. Slashes in the path are not quoted, since they only separate names."""
        return (
            f"/{quote(self.path, safe='/$')}?{urlencode({'api-version': NEWEST_API_VERSION, **self.query}, safe='$')}"
        )

    def headers(self, token: str) -> dict[str, str]:
        """Return the headers of the request, with the token."""
        headers = {"Authorization": token, **dict.fromkeys(self.token_headers, token)}
        if self.body is not None:
            headers["Content-Type"] = MEDIA_TYPE
        if self.is_update:
            headers["If-Match"] = "*"
        return headers


_RENEW_AT_SHARE: Final = 0.75
"""Share of a token's lifetime after which a new token is requested."""


class CachedToken:
    """Cache for the token that all requests of a manager share."""

    def __init__(self, provider: TokenProvider, audience: str, clock: Clock) -> None:
        """Create an empty cache; the first request gets a token."""
        self._provider = provider
        self._audience = audience
        self._clock = clock
        self._authorization_header = ""
        self._renew_at_s = 0.0

    async def authorization_header(self) -> str:
        """Return the value of the `Authorization` header. Get a new token if the cached one is about to expire."""
        now_s = self._clock.wall_ms() / 1000
        if now_s >= self._renew_at_s:
            token = await self._provider.token(self._audience)
            self._authorization_header = token.text if token.kind == SAS_TOKEN_TYPE else f"Bearer {token.text}"
            self._renew_at_s = now_s + (token.expires_s - now_s) * _RENEW_AT_SHARE
        return self._authorization_header

    def invalidate(self) -> None:
        """Drop the cached token, since the server refused it."""
        self._renew_at_s = 0.0


class AtomClient:
    """HTTP client for one namespace."""

    def __init__(
        self, where: ConnectionString, settings: FactorySettings, token_provider: TokenProvider | None
    ) -> None:
        """Create a client; the first request connects."""
        self.where = where
        self.is_closed = False
        self._settings = settings
        token_provider = token_provider or token_provider_for(where, settings.clock)
        self._cached_token = CachedToken(
            token_provider, f"https://{where.host}/{where.entity_path or ''}", settings.clock
        )
        self._http_client = httpx.AsyncClient(
            base_url=where.http_base,
            verify=settings.tls or tls_context(None),
            timeout=httpx.Timeout(None, connect=min(CONNECT_TIMEOUT_S, settings.operation_timeout_s)),
            headers={"Accept": "application/xml, application/atom+xml", "Accept-Encoding": "identity"},
            trust_env=False,  # ignore proxies and credentials in the environment, as the AMQP connection does
        )

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        self.is_closed = True
        await self._http_client.aclose()

    # --- operations ---------------------------------------------------------------------------------------------------

    async def get(self, path: str, tag: str) -> Element:
        """Return the description at `path`. Raise EntityNotFound if there is no description with this tag."""
        request = _Request(method="GET", path=path)
        response = _parse_response(request, await self._request(request))
        if response.is_feed or not response.entries:  # Azure's response if the entity does not exist
            raise EntityNotFound(f"The messaging entity '{path}' could not be found.")
        return _description_of(path, tag, response.entries[0])

    async def put(
        self,
        path: str,
        tag: str,
        description: Element,
        *,
        is_update: bool,
        token_headers: tuple[str, ...] = (),
    ) -> Element:
        """Create or update an entity or rule; return its new description. The token is also sent in `token_headers`."""
        body = envelope.make_request(description)
        request = _Request(method="PUT", path=path, body=body, is_update=is_update, token_headers=token_headers)
        response = _parse_response(request, await self._request(request))
        if response.is_feed or not response.entries:
            raise UnknownAnswer(f"{request}: the response has no description")
        return _description_of(path, tag, response.entries[0])

    async def delete(self, path: str) -> None:
        """Delete the entity or rule at `path`."""
        await self._request(_Request(method="DELETE", path=path))

    async def list(self, path: str, tag: str, prefix: str = "") -> AsyncIterator[ResponseEntry]:
        """Yield the entries of a list, page by page. Concurrent changes may be included or not."""
        skip, has_more = 0, True
        while has_more:
            query = {"$skip": str(skip), "$top": str(PAGE_SIZE), **({"prefix": prefix} if prefix else {})}
            request = _Request(method="GET", path=path, query=query)
            response = _parse_response(request, await self._request(request))
            for entry in response.entries:
                # Azure ignores the prefix and lists all entries.
                if envelope.local_name(entry.description) == tag and entry.title.lower().startswith(prefix.lower()):
                    yield entry
            skip += len(response.entries)
            has_more = bool(response.entries) and (response.has_more or len(response.entries) >= PAGE_SIZE)

    async def fetch(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        """Send a request to a resource that is not ATOM, with retries, and return the body of the response."""
        return await self._request(_Request(method=method, path=path, query=query))

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _request(self, request: _Request) -> bytes:
        """Send a request, with retries, and return the body of the successful response."""
        outcome = OperationOutcome()

        async def attempt() -> bytes:
            try:
                return await self._request_once(request)
            except (EntityAlreadyExists, EntityNotFound) as error:
                if outcome.may_have_happened:
                    error.add_note("an earlier attempt got no response, and may have caused this error")
                raise
            except ServiceBusError as error:
                outcome.note_failure(error)
                raise
            except asyncio.CancelledError:  # part of the request may have been sent
                outcome.may_have_happened = True
                raise

        settings = self._settings
        with outcome.adjusted_errors():
            return await retry.run_with_retries(
                str(request),
                attempt,
                limit_s=settings.operation_timeout_s,
                policy=settings.retry_policy,
                check_open=self._check_open,
                outcome=outcome,
            )

    async def _request_once(self, request: _Request) -> bytes:
        headers = request.headers(await self._cached_token.authorization_header())
        with _http_errors(self.where.http_base):
            async with self._http_client.stream(
                request.method, request.target, content=request.body, headers=headers
            ) as response:
                body = await _read_body(response)
        if response.status_code in _SUCCESS:
            return body
        is_create = request.method == "PUT" and not request.is_update
        error = error_for_response(
            response.status_code,
            body,
            str(request),
            is_create=is_create,
            name=response.headers.get(ERROR_NAME_HEADER),
            retry_after=response.headers.get("Retry-After"),
        )
        if isinstance(error, Unauthorized):
            self._cached_token.invalidate()
        raise error

    def _check_open(self) -> None:
        if self.is_closed:
            raise ObjectClosed(f"the manager of {self.where.http_base} is closed")


async def _read_body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise UnknownAnswer(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
    return bytes(body)


@contextmanager
def _http_errors(address: str) -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ConnectionFailed(f"{address} cannot be reached: {_text_of(error)}") from error
    except httpx.LocalProtocolError:
        # The text of the error contains the header, and so the token.
        raise InvalidArgument("the token has characters that are invalid in a header") from None
    except httpx.TransportError as error:
        raise ConnectionLost(f"{address} did not answer: {_text_of(error)}") from error
    except httpx.RequestError as error:
        raise UnknownAnswer(f"malformed response of {address}: {error}") from error


def _text_of(error: httpx.TransportError) -> str:
    """Return the text of the first failure: that of httpx is only `All connection attempts failed`."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):  # one for each address of the host
            cause = cause.exceptions[0]
        if isinstance(cause, ConnectionError) and str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _parse_response(request: _Request, body: bytes) -> AtomResponse:
    with reading_response(str(request)):
        return envelope.read_response(body)


def _description_of(path: str, tag: str, entry: ResponseEntry) -> Element:
    entry_tag = envelope.local_name(entry.description)
    if entry_tag != tag:
        raise EntityNotFound(f"'{path}' is described by a {entry_tag!r:.60}, not by a {tag}")
    return entry.description


@contextmanager
def reading_response(operation: str) -> Iterator[None]:
    """Raise UnknownAnswer instead of InvalidArgument, since a malformed response is not the caller's fault."""
    try:
        yield
    except InvalidArgument as error:
        raise UnknownAnswer(f"malformed response to {operation}: {error}") from error


# --- the errors of failed requests ------------------------------------------------------------------------------------

_ERROR_BY_STATUS: Final[dict[int, type[ServiceBusError]]] = {
    400: model.InvalidArgument,
    401: model.Unauthorized,
    403: model.QuotaExceeded,
    404: EntityNotFound,
    405: model.NotAllowed,
    409: model.EntityAlreadyExists,
    410: EntityNotFound,
    412: EntityNotFound,  # the only condition that is sent is If-Match: *
    413: model.InvalidArgument,
    429: model.ServerBusy,
    500: model.InternalFault,
    501: model.NotImplementedHere,
    502: model.StoreUnavailable,
    503: model.ServerBusy,
    504: model.StoreUnavailable,
}
_STATUS_TIMEOUT: Final = 408
_STATUS_CONFLICT: Final = 409
_STATUS_FORBIDDEN: Final = 403
_CONCURRENT_CHANGE_SUBCODE: Final = "SubCode=40901"
"""Azure's subcode for a concurrent change to the entity."""
_NOT_ALLOWED_SUBCODE: Final = "SubCode=40301"
"""Azure's subcode for an operation that the entity does not allow."""
_MAX_TEXT_LENGTH: Final = 1_000


def error_for_response(
    status: int,
    body: bytes,
    operation: str,
    *,
    is_create: bool,
    name: str | None = None,
    retry_after: str | None = None,
) -> ServiceBusError:
    """Return the error for a failed response to `operation`; `is_create` is True for a create.

    `name` is the ERROR_NAME_HEADER of the response, `retry_after` its `Retry-After`.
    """
    detail = detail_of(body)
    text = f"{operation}: {detail}" if detail else f"{operation}: status {status} without a reason"
    if status == _STATUS_TIMEOUT:
        return TimedOut(text)
    kind = model.DiskFull if name == model.DiskFull.__name__ else _ERROR_BY_STATUS.get(status)
    # A lost race: another client has just created or deleted the entity.
    is_race_lost = status == _STATUS_CONFLICT and (not is_create or _CONCURRENT_CHANGE_SUBCODE in detail)
    if kind is model.ServerBusy or is_race_lost:
        return server_busy(text, retry_after)
    if status == _STATUS_FORBIDDEN and _NOT_ALLOWED_SUBCODE in detail:
        return model.NotAllowed(text)
    if kind is model.DiskFull:
        return kind(text, may_have_happened=False)  # the disk of the catalogue is full, so nothing was changed
    if kind is not None:
        return kind(text)
    return _error_for_unknown_status(status, text)


def _error_for_unknown_status(status: int, text: str) -> ServiceBusError:
    kind_by_class = {4: model.NotAllowed, 5: model.InternalFault}
    return kind_by_class.get(status // 100, UnknownAnswer)(f"status {status}: {text}")


def detail_of(body: bytes) -> str:
    """Return the reason in the body of an error response; a body that is not XML is the reason itself."""
    if body.startswith(b"{"):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(body, type=ErrorBody).error[:_MAX_TEXT_LENGTH]
    try:
        root = envelope.parse_xml(body)
    except InvalidArgument:
        return body.decode(errors="replace").strip()[:_MAX_TEXT_LENGTH]
    detail = root.find("{*}Detail")
    return "" if detail is None else (detail.text or "").strip()[:_MAX_TEXT_LENGTH]
