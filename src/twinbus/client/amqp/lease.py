"""A lease: for how long an exclusive link is certainly ours.

A receiver that claims an entity agrees with the server on a limit of silence (`twinbus:silence-limit`): a host that is
stopped or cut off from the network loses its claim after that, and another host goes on with its work. The host itself
learns of it late, or never. So it relies on nothing but the clock: the server has not given up as long as less than the
limit has passed since the host sent the last frame that the server answered. A host that wakes up finds its lease over
before it does anything, and waits for the next answer.

Owns: this rule, and the limits of silence that the links of a connection have agreed on. A server without such limits
(Azure) grants no lease, and everything works as it does without.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import UInt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.connection import Connection

SILENCE_LIMIT_PROPERTY: Final = "twinbus:silence-limit"
"""A link property, in milliseconds."""
_USABLE_SHARE: Final = 0.9
"""Of the limit: the rest is for what is done between a look at the lease and the frame that leaves."""


def silence_limit_property(limit_s: float) -> dict[str, object]:
    """The property with which a link asks for a limit."""
    return {SILENCE_LIMIT_PROPERTY: UInt(round(limit_s * 1000))}


class Leases:
    """Those of one connection."""

    def __init__(self, connection: Connection) -> None:
        """None is granted yet."""
        self.connection = connection
        self._limits: dict[Lease, float] = {}

    def grant(self, properties: Mapping[str, object] | None, requested_s: float) -> Lease | None:
        """The lease of a link that was asked for at `asked_s` and accepted with these properties; None without one."""
        limit_ms = (properties or {}).get(SILENCE_LIMIT_PROPERTY)
        if not isinstance(limit_ms, int) or limit_ms <= 0:
            return None
        lease = Lease(self, limit_ms / 1000, requested_s)
        self._limits[lease] = limit_ms / 1000
        self._apply_shortest_limit()
        return lease

    def end(self, lease: Lease) -> None:
        """Its link has ended."""
        if self._limits.pop(lease, None) is not None:
            self._apply_shortest_limit()

    def _apply_shortest_limit(self) -> None:
        self.connection.set_silence_limit(min(self._limits.values(), default=0.0))


class Lease:
    """Of one link."""

    def __init__(self, leases: Leases, limit_s: float, requested_s: float) -> None:
        """The server knew of us when it was asked for the link."""
        self._leases = leases
        self._limit_s = limit_s
        self._requested_s = requested_s
        self._loop = asyncio.get_running_loop()
        self._has_ended = False

    @property
    def is_valid(self) -> bool:
        """The link is certainly ours now."""
        confirmed_s = max(self._requested_s, self._leases.connection.silence_limit.confirmed_s)
        return not self._has_ended and self._loop.time() < confirmed_s + self._limit_s * _USABLE_SHARE

    def end(self) -> None:
        """The link has ended: nothing is promised any more, by either side."""
        self._has_ended = True
        self._leases.end(self)
