"""Silence limits: how soon a silent client loses its claim on an entity.

A client that attaches an exclusive link may promise, with the property `twinbus:silence-limit`, never to be silent on
its connection for longer than this limit while it has the link. The attach that accepts the link has the same property,
and binds both ends (`amqp.heartbeat` describes the obligations). If the client breaks its promise, its connection is
closed and the next host can claim the entity, long before the idle timeout of ordinary connections.

Owns: the property and its range, and the limit for a connection with several such links, which is the shortest of their
limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import UInt
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.connection import Connection
    from twinbus.amqp.link import Link

SILENCE_LIMIT_PROPERTY: Final = "twinbus:silence-limit"
"""A link property: the limit in milliseconds, a uint."""
MIN_SILENCE_LIMIT_MS: Final = 1_000
"""The shortest limit. With a shorter limit, a server that stalls for a moment would close the connection."""
MAX_SILENCE_LIMIT_MS: Final = 60_000


def read_silence_limit(properties: Mapping[str, object] | None) -> int | None:
    """Return the limit in the properties of a link, in milliseconds; None if there is none.

    Raise InvalidArgument if the limit is invalid.
    """
    limit_ms = (properties or {}).get(SILENCE_LIMIT_PROPERTY)
    if limit_ms is None:
        return None
    if (
        not isinstance(limit_ms, int)
        or isinstance(limit_ms, bool)
        or not MIN_SILENCE_LIMIT_MS <= limit_ms <= MAX_SILENCE_LIMIT_MS
    ):
        text = (
            f"{SILENCE_LIMIT_PROPERTY} is {limit_ms!r:.60}; it must be a uint from {MIN_SILENCE_LIMIT_MS} to "
            f"{MAX_SILENCE_LIMIT_MS} milliseconds"
        )
        raise InvalidArgument(text)
    return int(limit_ms)


class SilenceLimits:
    """The silence limits for the links on one connection."""

    def __init__(self, connection: Connection) -> None:
        """Create an empty set of limits."""
        self._connection = connection
        self._by_link: dict[Link, int] = {}

    def agree(self, link: Link, limit_ms: int) -> dict[str, object]:
        """Set the limit for a link; return the properties with which to accept the link."""
        self._by_link[link] = limit_ms
        self._apply()
        return {SILENCE_LIMIT_PROPERTY: UInt(limit_ms)}

    def remove(self, link: Link) -> None:
        """Remove the limit of a detached link, if it had one."""
        if self._by_link.pop(link, None) is not None:
            self._apply()

    def _apply(self) -> None:
        self._connection.set_silence_limit(min(self._by_link.values(), default=0) / 1000)
