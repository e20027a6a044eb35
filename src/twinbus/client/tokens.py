"""Tokens: the client sends a token to `$cbs` for each entity that it uses, and renews each token before it expires.

Owns the token providers and the set of tokens that one connection has sent. Each token is for one audience, the URI of
an entity. This module knows nothing of senders and receivers.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.amqp.types import Timestamp
from twinbus.client.amqp.request_response import RequestResponseLinks
from twinbus.client.errors import ConnectionFailed, TimedOut
from twinbus.model.signature import make_token

if TYPE_CHECKING:
    from twinbus.client.amqp.connection import AmqpConnection
    from twinbus.client.clock import Clock
    from twinbus.client.connection_string import ConnectionString

log: Final = logging.getLogger(__name__)

TOKEN_LIFETIME_S: Final = 3_600
SAS_TOKEN_TYPE: Final = "servicebus.windows.net:sastoken"  # noqa: S105  # a type, not a token
JWT_TOKEN_TYPE: Final = "jwt"  # noqa: S105
PUT_TOKEN_TIMEOUT_S: Final = 30.0
_RENEW_AT_SHARE: Final = 0.75
"""Share of a token's lifetime after which the token is renewed."""
_RENEWAL_RETRY_S: Final = 10.0
_MIN_RENEWAL_S: Final = 1.0
"""Shortest interval between renewals, for tokens that are about to expire."""


@dataclass(frozen=True, slots=True)
class Token:
    """A security token, whose `repr` leaves out the text."""

    text: str
    kind: str
    expires_s: float
    """Expiry time, in seconds since 1970."""

    def __repr__(self) -> str:
        return f"Token({self.kind}, expires {self.expires_s:.0f})"


class TokenProvider(Protocol):
    """A source of tokens: a shared access key, or a provider of the application (for example for Microsoft Entra)."""

    async def token(self, audience: str) -> Token:
        """Return a token for an audience such as `sb://contoso.servicebus.windows.net/orders`."""


class SharedKeyTokenProvider:
    """Token provider that signs tokens with a shared access key."""

    def __init__(self, key_name: str, key: str, clock: Clock) -> None:
        """Create a provider that signs with `key`."""
        self._key_name = key_name
        self._key = key
        self._clock = clock

    async def token(self, audience: str) -> Token:
        """Return a shared access signature that is valid for one hour."""
        expires_s = self._clock.wall_ms() // 1000 + TOKEN_LIFETIME_S
        return Token(make_token(audience, self._key_name, self._key, expires_s), SAS_TOKEN_TYPE, expires_s)


class StaticTokenProvider:
    """Token provider that returns the shared access signature of a connection string."""

    def __init__(self, text: str, clock: Clock) -> None:
        """Create a provider for the shared access signature `text`."""
        self._text = text
        self._clock = clock

    async def token(self, audience: str) -> Token:  # noqa: ARG002  # the signature has its own audience
        """Return the signature, with the expiry time from its `se` field."""
        parameters = dict(part.partition("=")[::2] for part in self._text.split(" ", 1)[-1].split("&"))
        expiry = parameters.get("se", "")
        expires_s = int(expiry) if expiry.isdigit() else self._clock.wall_ms() // 1000 + TOKEN_LIFETIME_S
        return Token(self._text, SAS_TOKEN_TYPE, expires_s)


def token_provider_for(connection_string: ConnectionString, clock: Clock) -> TokenProvider:
    """Return the provider for the signature of a connection string, or for its key if it has no signature."""
    if connection_string.signature is not None:
        return StaticTokenProvider(connection_string.signature, clock)
    assert connection_string.key_name is not None
    assert connection_string.key is not None, "a connection string has one or the other"
    return SharedKeyTokenProvider(connection_string.key_name, connection_string.key, clock)


class CbsAuthorizer:
    """Sends the tokens of one connection to `$cbs` and renews them."""

    def __init__(self, connection: AmqpConnection, provider: TokenProvider, host: str, clock: Clock) -> None:
        """Create an authorizer that has sent no token yet."""
        self._connection = connection
        self._provider = provider
        self._host = host
        self._clock = clock
        self._cbs_links: RequestResponseLinks | None = None
        self._authorizations: dict[str, asyncio.Task[Token]] = {}
        """The first put-token request of each audience; its task is not done until `$cbs` has responded."""
        self._renewal_due_s: dict[str, float] = {}
        """When the token of each audience is to be renewed, in loop time."""
        self._renewal_task: asyncio.Task[None] | None = None
        self._due_changed = asyncio.Event()
        """Set when a renewal was scheduled, so that the renewal task looks at the due times again."""
        connection.on_unauthorized = self._invalidate_all

    async def authorize(self, path: str) -> None:
        """Send a token for an entity unless one was sent. Raise Unauthorized if the namespace rejects the token."""
        audience = f"sb://{self._host}/{path}"
        authorization = self._authorizations.get(audience)
        if authorization is None:
            authorization = self._authorizations[audience] = asyncio.ensure_future(self._put_token(audience))
            authorization.add_done_callback(lambda task: self._remove_failed(audience, task))
        try:
            await asyncio.shield(authorization)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if authorization.cancelled() and (waiter is None or not waiter.cancelling()):  # the caller is not cancelled
                raise ConnectionFailed("the connection ended before '$cbs' accepted the token") from None
            raise

    def close(self) -> None:
        """Cancel pending put-token requests and stop renewing tokens."""
        for task in (self._renewal_task, *self._authorizations.values()):
            if task is not None:
                task.cancel()

    async def _put_token(self, audience: str) -> Token:
        token = await self._provider.token(audience)
        if self._cbs_links is None or self._cbs_links.failure is not None:
            self._cbs_links = RequestResponseLinks(self._connection, "$cbs")
        links = self._cbs_links
        try:
            async with asyncio.timeout(PUT_TOKEN_TIMEOUT_S):
                await links.open()
        except TimeoutError:
            raise TimedOut(f"'$cbs' did not attach within {PUT_TOKEN_TIMEOUT_S:g} s", may_have_happened=False) from None
        properties = {
            "operation": "put-token",
            "type": token.kind,
            "name": audience,
            "expiration": Timestamp(round(token.expires_s * 1000)),
        }
        response = await links.request(properties, token.text, timeout_s=PUT_TOKEN_TIMEOUT_S)
        if not response.is_success:
            raise response.error
        self._schedule_renewal(audience, token.expires_s - self._clock.wall_ms() / 1000)
        return token

    def _remove_failed(self, audience: str, task: asyncio.Task[Token]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._authorizations.pop(audience, None)

    def _invalidate_all(self) -> None:
        """Send each token again at its next use. The namespace may have dropped tokens, as when a key is revoked.

        Otherwise a client whose key is valid again would be refused until it renews its tokens, up to 45 minutes later.
        """
        for audience in [audience for audience, authorization in self._authorizations.items() if authorization.done()]:
            del self._authorizations[audience]

    # --- renewal ------------------------------------------------------------------------------------------------------

    def _schedule_renewal(self, audience: str, left_s: float) -> None:
        """Schedule the renewal of a token that expires in `left_s` seconds."""
        loop = asyncio.get_running_loop()
        self._renewal_due_s[audience] = loop.time() + max(
            _MIN_RENEWAL_S, min(left_s, TOKEN_LIFETIME_S) * _RENEW_AT_SHARE
        )
        self._due_changed.set()
        if self._renewal_task is None:
            self._renewal_task = asyncio.ensure_future(self._run_renewals())

    async def _run_renewals(self) -> None:
        """Renew each token when it is due, until the connection is lost."""
        loop = asyncio.get_running_loop()
        while not self._connection.lost.done():
            self._due_changed.clear()
            audience = min(self._renewal_due_s, key=self._renewal_due_s.__getitem__)
            try:
                async with asyncio.timeout_at(self._renewal_due_s[audience]):
                    await self._due_changed.wait()
            except TimeoutError:
                self._renewal_due_s[audience] = loop.time() + _RENEWAL_RETRY_S
                await self._renew_token(audience)

    async def _renew_token(self, audience: str) -> None:
        try:
            await self._put_token(audience)
        except Exception as error:  # noqa: BLE001  # an application's provider may raise anything
            if not self._connection.lost.done():
                log.warning("could not renew the token for %s, retrying in %g s: %s", audience, _RENEWAL_RETRY_S, error)
