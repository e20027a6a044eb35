"""The tab of a connection: under which name it is counted, and where.

Owns: that name: what the client says of itself when it opens the connection (`twinbus:client-id`, as ours does), else
the key that it uses. The containers' names of other SDKs are of no use: they are another one each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.usage import NO_ENTITY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from twinbus.server.access import ConnectionGrants
    from twinbus.server.metering.counter import UsageCounter
    from twinbus.server.metering.meter import UsageMeter

CLIENT_ID_PROPERTY: Final = "twinbus:client-id"
"""A property of a connection."""


class ConnectionUsage:
    """Of one connection."""

    def __init__(self, meter: UsageMeter) -> None:
        """It is not open yet."""
        self._meter = meter
        self._client_name: str | None = None
        self._is_open = False
        self._counters: dict[tuple[str, str], UsageCounter] = {}

    def on_open(self, properties: Mapping[Any, object] | None) -> None:
        """The connection is there, with what its client says of itself."""
        told = (properties or {}).get(CLIENT_ID_PROPERTY)
        self._client_name = str(told) if isinstance(told, str) and told else None
        self._is_open = True
        self._meter.on_connected()

    def on_close(self) -> None:
        """The connection is over."""
        if self._is_open:
            self._is_open = False
            self._meter.on_disconnected()
        for counter in self._counters.values():
            counter.user_count -= 1
        self._counters.clear()

    def counter(self, grants: ConnectionGrants, path: str) -> UsageCounter:
        """Where a link to an entity counts."""
        client = self._client_name or _key_name(grants, path)
        found = self._counters.get((path, client))
        if found is None:
            found = self._counters[path, client] = self._meter.counter(path, client)
            found.user_count += 1
        return found


def _key_name(grants: ConnectionGrants, path: str) -> str:
    """Of the key by which it may use an entity."""
    return next((grant.key_name for grant in grants.current_grants() if grant.covers_path(path)), NO_ENTITY)
