"""Limits of silence: how soon a client that holds a claim is given up when nothing is heard of it.

A client that attaches an exclusive link may promise by the property `twinbus:silence-limit` never to be silent for so
long on its connection while it has the link. The attach that accepts the link has the same property, and binds both
ends (`amqp.agreement` says to what). If the client breaks its promise, its connection is ended and its claim is free
for the next host, long before the time-out of ordinary connections.

Owns: the property and its range, and which limit holds on a connection with several such links: the shortest.
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
"""A link property: milliseconds, a uint."""
MIN_SILENCE_LIMIT_MS: Final = 1_000
"""A client that promises to speak more often is refused: a server that stalls for a moment would end its connection."""
MAX_SILENCE_LIMIT_MS: Final = 60_000


def read_silence_limit(properties: Mapping[str, object] | None) -> int | None:
    """The limit that a client asks for, in milliseconds. InvalidArgument if it cannot be had."""
    asked = (properties or {}).get(SILENCE_LIMIT_PROPERTY)
    if asked is None:
        return None
    if (
        not isinstance(asked, int)
        or isinstance(asked, bool)
        or not MIN_SILENCE_LIMIT_MS <= asked <= MAX_SILENCE_LIMIT_MS
    ):
        text = (
            f"{SILENCE_LIMIT_PROPERTY} is {asked!r:.60}; it is a uint of {MIN_SILENCE_LIMIT_MS} to "
            f"{MAX_SILENCE_LIMIT_MS} milliseconds"
        )
        raise InvalidArgument(text)
    return int(asked)


class SilenceLimits:
    """Those of one connection."""

    def __init__(self, connection: Connection) -> None:
        """None is agreed yet."""
        self._connection = connection
        self._by_link: dict[Link, int] = {}

    def agree(self, link: Link, limit_ms: int) -> dict[str, object]:
        """Agree on a limit with the client of a link. The property with which the link is accepted."""
        self._by_link[link] = limit_ms
        self._apply()
        return {SILENCE_LIMIT_PROPERTY: UInt(limit_ms)}

    def remove(self, link: Link) -> None:
        """A link has ended, whether it had a limit or not."""
        if self._by_link.pop(link, None) is not None:
            self._apply()

    def _apply(self) -> None:
        self._connection.set_silence_limit(min(self._by_link.values(), default=0) / 1000)
