"""Leases: how long a client may rely on holding an exclusive link.

An exclusive receiver and the server agree on a silence limit (`twinbus:silence-limit`). If a host is suspended or cut
off from the network for longer than the limit, the server gives the exclusive link to another host. The first host
learns of the takeover late or never, so it must decide by its own clock: its lease is valid for the silence limit,
counted from when it sent the last frame that the server has responded to. A host that resumes from a suspension
therefore finds its lease expired, and does nothing until it receives the next frame from the server.

Owns this rule, and the silence limits of a connection's links. A server without silence limits (Azure) grants no lease,
and receivers work without a lease.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import UInt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.connection import Connection

SILENCE_LIMIT_PROPERTY: Final = "twinbus:silence-limit"
"""Link property with the silence limit in milliseconds."""
_USABLE_SHARE: Final = 0.9
"""Share of the limit that counts as valid; the remainder covers the time from checking the lease to sending a frame."""


def silence_limit_property(limit_s: float) -> dict[str, object]:
    """Return the link property that requests a silence limit."""
    return {SILENCE_LIMIT_PROPERTY: UInt(round(limit_s * 1000))}


class Leases:
    """The leases of one connection."""

    def __init__(self, connection: Connection) -> None:
        """Start without leases."""
        self.connection = connection
        self._limits: dict[Lease, float] = {}

    def grant(self, properties: Mapping[str, object] | None, requested_s: float) -> Lease | None:
        """Return the lease for a link requested at `requested_s`; None if its properties have no silence limit."""
        limit_ms = (properties or {}).get(SILENCE_LIMIT_PROPERTY)
        if not isinstance(limit_ms, int) or limit_ms <= 0:
            return None
        lease = Lease(self, limit_ms / 1000, requested_s)
        self._limits[lease] = limit_ms / 1000
        self._apply_shortest_limit()
        return lease

    def end(self, lease: Lease) -> None:
        """Remove a lease whose link has ended."""
        if self._limits.pop(lease, None) is not None:
            self._apply_shortest_limit()

    def _apply_shortest_limit(self) -> None:
        self.connection.set_silence_limit(min(self._limits.values(), default=0.0))


class Lease:
    """Lease of one exclusive link."""

    def __init__(self, leases: Leases, limit_s: float, requested_s: float) -> None:
        """Create a lease that starts at `requested_s`, the loop time at which the client requested the link."""
        self._leases = leases
        self._limit_s = limit_s
        self._requested_s = requested_s
        self._loop = asyncio.get_running_loop()
        self._has_ended = False

    @property
    def is_valid(self) -> bool:
        """Whether the client definitely still holds the exclusive link."""
        confirmed_s = max(self._requested_s, self._leases.connection.silence_limit.confirmed_s)
        return not self._has_ended and self._loop.time() < confirmed_s + self._limit_s * _USABLE_SHARE

    def end(self) -> None:
        """End the lease, since its link has ended."""
        self._has_ended = True
        self._leases.end(self)
