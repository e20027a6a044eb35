"""What requests over HTTP are counted as, and as whose.

Owns: that a caller is counted under the name of its key, and a call about an entity with that; what is asked about one
that is not there is asked of the namespace.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from twinbus.model import path
from twinbus.model.usage import NO_ENTITY
from twinbus.server.auth.sas import Token

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.responses import Response

    from twinbus.server.http.call import Call
    from twinbus.server.http.routes import Handler
    from twinbus.server.usage.counter import UsageCounter
    from twinbus.server.usage.meter import UsageMeter


class HasPath(Protocol):
    """An entity, as far as it is of interest here."""

    @property
    def path(self) -> str:
        """As its owner writes it."""


class HttpUsageMeter:
    """Of one namespace."""

    def __init__(self, usage_meter: UsageMeter, entities: Mapping[str, HasPath]) -> None:
        """`entities` are those of the namespace now, by the keys of their paths."""
        self._usage_meter = usage_meter
        self._entities = entities

    @contextmanager
    def counter(self, call: Call, entity: str) -> Iterator[UsageCounter]:
        """Where a call about an entity is counted, however long it takes. Its token was checked."""
        found = self._usage_meter.counter(entity, _key_name(call.token))
        found.user_count += 1
        try:
            yield found
        finally:
            found.user_count -= 1

    async def handle_management(self, call: Call, handler: Handler) -> Response:
        """Answer a call of management, and count it: with what it makes, or what it deletes."""
        before = self._find_entity_path(call)
        try:
            return await handler(call)
        finally:
            with self.counter(call, before or self._find_entity_path(call) or NO_ENTITY) as counter:
                counter.management += 1

    def _find_entity_path(self, call: Call) -> str | None:
        entity, subscription = call.names.get("entity"), call.names.get("subscription")
        if not entity:
            return None
        written = path.subscription_path(entity, subscription) if subscription else entity
        found = self._entities.get(path.canonical_key(written))
        return found.path if found is not None else None


def _key_name(token: str | None) -> str:
    """As its owner writes it: decoded as often as it was encoded."""
    return list(Token.parse(token).key_names())[-1] if token is not None else NO_ENTITY
