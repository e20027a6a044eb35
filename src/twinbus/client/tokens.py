"""Tokens: what a connection shows at `$cbs` for each entity, and shows anew before it expires.

Owns: where tokens come from, and which are in use on one connection. A token is for one audience: an entity's path.
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
"""Of its life, after which a token is shown anew."""
_RENEWAL_RETRY_S: Final = 10.0
_MIN_RENEWAL_S: Final = 1.0
"""A token that is nearly over is not shown on and on."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is shown. Never printed."""

    text: str
    kind: str
    expires_s: float
    """Seconds since 1970."""

    def __repr__(self) -> str:
        return f"Token({self.kind}, expires {self.expires_s:.0f})"


class TokenProvider(Protocol):
    """Where tokens come from: a key, or whatever an application has (Microsoft Entra among them)."""

    async def token(self, audience: str) -> Token:
        """One for an audience like `sb://contoso.servicebus.windows.net/orders`."""


class SharedKeyTokenProvider:
    """Made with a shared access key."""

    def __init__(self, key_name: str, key: str, clock: Clock) -> None:
        """The key is kept, and never shown."""
        self._key_name = key_name
        self._key = key
        self._clock = clock

    async def token(self, audience: str) -> Token:
        """One that is good for an hour."""
        expires_s = self._clock.wall_ms() // 1000 + TOKEN_LIFETIME_S
        return Token(make_token(audience, self._key_name, self._key, expires_s), SAS_TOKEN_TYPE, expires_s)


class StaticTokenProvider:
    """The one that stands in a connection string; nobody here can make another."""

    def __init__(self, text: str, clock: Clock) -> None:
        """`text` is a whole shared access signature."""
        self._text = text
        self._clock = clock

    async def token(self, audience: str) -> Token:  # noqa: ARG002  # it is for what it is for
        """That one."""
        parameters = dict(part.partition("=")[::2] for part in self._text.split(" ", 1)[-1].split("&"))
        expiry = parameters.get("se", "")
        expires_s = int(expiry) if expiry.isdigit() else self._clock.wall_ms() // 1000 + TOKEN_LIFETIME_S
        return Token(self._text, SAS_TOKEN_TYPE, expires_s)


def token_provider_for(connection_string: ConnectionString, clock: Clock) -> TokenProvider:
    """What a connection string gives."""
    if connection_string.signature is not None:
        return StaticTokenProvider(connection_string.signature, clock)
    assert connection_string.key_name is not None
    assert connection_string.key is not None, "a connection string has one or the other"
    return SharedKeyTokenProvider(connection_string.key_name, connection_string.key, clock)


class CbsAuthorizer:
    """Those of one connection."""

    def __init__(self, connection: AmqpConnection, provider: TokenProvider, host: str, clock: Clock) -> None:
        """Nothing is shown yet."""
        self._connection = connection
        self._provider = provider
        self._host = host
        self._clock = clock
        self._cbs_links: RequestResponseLinks | None = None
        self._authorizations: dict[str, asyncio.Task[Token]] = {}
        """By audience; not done while it is being shown for the first time."""
        self._renewal_due_s: dict[str, float] = {}
        """When each is to be shown anew, by the loop's time."""
        self._renewal_task: asyncio.Task[None] | None = None
        self._due_changed = asyncio.Event()
        """There is another one to be renewed."""
        connection.on_unauthorized = self._invalidate_all

    async def authorize(self, path: str) -> None:
        """Have a valid token shown for an entity; Unauthorized where the namespace does not take it."""
        audience = f"sb://{self._host}/{path}"
        shown = self._authorizations.get(audience)
        if shown is None:
            shown = self._authorizations[audience] = asyncio.ensure_future(self._put_token(audience))
            shown.add_done_callback(lambda task: self._remove_failed(audience, task))
        try:
            await asyncio.shield(shown)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if shown.cancelled() and (waiter is None or not waiter.cancelling()):  # not we, but it
                raise ConnectionFailed("the connection ended while a token was shown") from None
            raise

    def close(self) -> None:
        """Renew no more."""
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
            raise TimedOut(f"'$cbs' was not there after {PUT_TOKEN_TIMEOUT_S:g} s", may_have_happened=False) from None
        properties = {
            "operation": "put-token",
            "type": token.kind,
            "name": audience,
            "expiration": Timestamp(round(token.expires_s * 1000)),
        }
        answer = await links.request(properties, token.text, timeout_s=PUT_TOKEN_TIMEOUT_S)
        if not answer.is_success:
            raise answer.error
        self._schedule_renewal(audience, token.expires_s - self._clock.wall_ms() / 1000)
        return token

    def _remove_failed(self, audience: str, task: asyncio.Task[Token]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._authorizations.pop(audience, None)

    def _invalidate_all(self) -> None:
        """Show every token again at its next use: the namespace may have dropped some, as when a key is revoked.

        Otherwise a client whose key is valid again would be refused until it renews its tokens, up to 45 minutes later.
        """
        for audience in [audience for audience, shown in self._authorizations.items() if shown.done()]:
            del self._authorizations[audience]

    # --- renewal ------------------------------------------------------------------------------------------------------

    def _schedule_renewal(self, audience: str, left_s: float) -> None:
        """A token was shown that is good for so long."""
        loop = asyncio.get_running_loop()
        self._renewal_due_s[audience] = loop.time() + max(
            _MIN_RENEWAL_S, min(left_s, TOKEN_LIFETIME_S) * _RENEW_AT_SHARE
        )
        self._due_changed.set()
        if self._renewal_task is None:
            self._renewal_task = asyncio.ensure_future(self._run_renewals())

    async def _run_renewals(self) -> None:
        """Show each token anew in time, for as long as the connection is there."""
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
        except Exception as error:  # noqa: BLE001  # a provider is the application's, and may fail in its own way
            if not self._connection.lost.done():
                log.warning(
                    "the token for %s could not be renewed, tried again in %g s: %s", audience, _RENEWAL_RETRY_S, error
                )
