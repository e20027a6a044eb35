"""Tokens: what a connection shows at `$cbs` for each entity, and shows anew before it expires.

Owns: where tokens come from, and which are in use on one connection. A token is for one audience: an entity's path.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.amqp.types import Timestamp
from twinbus.client.errors import ConnectionFailed, TimedOut
from twinbus.client.requests import RequestLinks
from twinbus.model.signature import make_token

if TYPE_CHECKING:
    from twinbus.client.clock import Clock
    from twinbus.client.connection_string import ConnectionString
    from twinbus.client.conversation import Conversation

log: Final = logging.getLogger(__name__)

LIFETIME_S: Final = 3_600
SAS: Final = "servicebus.windows.net:sastoken"
JWT: Final = "jwt"
PUT_TIMEOUT_S: Final = 30.0
_RENEW_AT: Final = 0.75
"""Of its life, after which a token is shown anew."""
_RETRY_S: Final = 10.0
_SOONEST_S: Final = 1.0
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


class KeyTokens:
    """Made with a shared access key."""

    def __init__(self, key_name: str, key: str, clock: Clock) -> None:
        """The key is kept, and never shown."""
        self._key_name = key_name
        self._key = key
        self._clock = clock

    async def token(self, audience: str) -> Token:
        """One that is good for an hour."""
        expires_s = self._clock.wall_ms() // 1000 + LIFETIME_S
        return Token(make_token(audience, self._key_name, self._key, expires_s), SAS, expires_s)


class GivenToken:
    """The one that stands in a connection string; nobody here can make another."""

    def __init__(self, text: str, clock: Clock) -> None:
        """`text` is a whole shared access signature."""
        self._text = text
        self._clock = clock

    async def token(self, audience: str) -> Token:  # noqa: ARG002  # it is for what it is for
        """That one."""
        parameters = dict(part.partition("=")[::2] for part in self._text.split(" ", 1)[-1].split("&"))
        expiry = parameters.get("se", "")
        expires_s = int(expiry) if expiry.isdigit() else self._clock.wall_ms() // 1000 + LIFETIME_S
        return Token(self._text, SAS, expires_s)


def provider_of(where: ConnectionString, clock: Clock) -> TokenProvider:
    """What a connection string gives."""
    if where.signature is not None:
        return GivenToken(where.signature, clock)
    assert where.key_name is not None
    assert where.key is not None, "a connection string has one or the other"
    return KeyTokens(where.key_name, where.key, clock)


class Tokens:
    """Those of one connection."""

    def __init__(self, conversation: Conversation, provider: TokenProvider, host: str, clock: Clock) -> None:
        """Nothing is shown yet."""
        self._conversation = conversation
        self._provider = provider
        self._host = host
        self._clock = clock
        self._links: RequestLinks | None = None
        self._shown: dict[str, asyncio.Task[Token]] = {}
        """By audience; not done while it is being shown for the first time."""
        self._due: dict[str, float] = {}
        """When each is to be shown anew, by the loop's time."""
        self._renewing: asyncio.Task[None] | None = None
        self._is_changed = asyncio.Event()
        """There is another one to be renewed."""
        conversation.on_unauthorized = self._forget_all

    async def show(self, path: str) -> None:
        """Have a valid token shown for an entity; Unauthorized where the namespace does not take it."""
        audience = f"sb://{self._host}/{path}"
        shown = self._shown.get(audience)
        if shown is None:
            shown = self._shown[audience] = asyncio.ensure_future(self._put(audience))
            shown.add_done_callback(lambda task: self._forget_failed(audience, task))
        try:
            await asyncio.shield(shown)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if shown.cancelled() and (waiter is None or not waiter.cancelling()):  # not we, but it
                raise ConnectionFailed("the connection ended while a token was shown") from None
            raise

    def close(self) -> None:
        """Renew no more."""
        for task in (self._renewing, *self._shown.values()):
            if task is not None:
                task.cancel()

    async def _put(self, audience: str) -> Token:
        token = await self._provider.token(audience)
        if self._links is None or self._links.failure is not None:
            self._links = RequestLinks(self._conversation, "$cbs")
        links = self._links
        try:
            async with asyncio.timeout(PUT_TIMEOUT_S):
                await links.open()
        except TimeoutError:
            raise TimedOut(f"'$cbs' was not there after {PUT_TIMEOUT_S:g} s", may_have_happened=False) from None
        properties = {
            "operation": "put-token",
            "type": token.kind,
            "name": audience,
            "expiration": Timestamp(round(token.expires_s * 1000)),
        }
        answer = await links.ask(properties, token.text, timeout_s=PUT_TIMEOUT_S)
        if not answer.is_good:
            raise answer.error
        self._renew_in(audience, token.expires_s - self._clock.wall_ms() / 1000)
        return token

    def _forget_failed(self, audience: str, task: asyncio.Task[Token]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._shown.pop(audience, None)

    def _forget_all(self) -> None:
        """Show every token again at its next use: the namespace may have dropped some, as when a key is revoked.

        Otherwise a client whose key is valid again would be refused until it renews its tokens, up to 45 minutes later.
        """
        for audience in [audience for audience, shown in self._shown.items() if shown.done()]:
            del self._shown[audience]

    # --- renewal ------------------------------------------------------------------------------------------------------

    def _renew_in(self, audience: str, left_s: float) -> None:
        """A token was shown that is good for so long."""
        loop = asyncio.get_running_loop()
        self._due[audience] = loop.time() + max(_SOONEST_S, min(left_s, LIFETIME_S) * _RENEW_AT)
        self._is_changed.set()
        if self._renewing is None:
            self._renewing = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        """Show each token anew in time, for as long as the connection is there."""
        loop = asyncio.get_running_loop()
        while not self._conversation.lost.done():
            self._is_changed.clear()
            audience = min(self._due, key=self._due.__getitem__)
            try:
                async with asyncio.timeout_at(self._due[audience]):
                    await self._is_changed.wait()
            except TimeoutError:
                self._due[audience] = loop.time() + _RETRY_S
                await self._show_anew(audience)

    async def _show_anew(self, audience: str) -> None:
        try:
            await self._put(audience)
        except Exception as error:  # noqa: BLE001  # a provider is the application's, and may fail in its own way
            if not self._conversation.lost.done():
                log.warning("the token for %s could not be renewed, tried again in %g s: %s", audience, _RETRY_S, error)
