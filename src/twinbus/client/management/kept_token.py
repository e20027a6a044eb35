"""The token that a manager shows with every request.

Owns: one token, kept until it is near its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.client.tokens import SAS

if TYPE_CHECKING:
    from twinbus.client.clock import Clock
    from twinbus.client.tokens import TokenProvider

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
