"""Metering of HTTP requests.

Owns: the choice of the counter for a request. A request is counted by entity and by the name of the caller's key;
requests for an entity that does not exist are counted for the namespace.
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
    """An entity that has a path."""

    @property
    def path(self) -> str:
        """The entity's path, as spelled at creation."""


class HttpUsageMeter:
    """The meter for a namespace's HTTP requests."""

    def __init__(self, usage_meter: UsageMeter, entities: Mapping[str, HasPath]) -> None:
        """Create a meter; `entities` are the current entities of the namespace, by canonical path."""
        self._usage_meter = usage_meter
        self._entities = entities

    @contextmanager
    def counter(self, call: Call, entity: str) -> Iterator[UsageCounter]:
        """Hold the counter for a request to an entity while the request runs. The token must already be checked."""
        counter = self._usage_meter.counter(entity, _key_name(call.token))
        counter.user_count += 1
        try:
            yield counter
        finally:
            counter.user_count -= 1

    async def handle_management(self, call: Call, handler: Handler) -> Response:
        """Handle a management request and count it for its entity, even if it creates or deletes the entity."""
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
        requested = path.subscription_path(entity, subscription) if subscription else entity
        existing = self._entities.get(path.canonical_key(requested))
        return existing.path if existing is not None else None


def _key_name(token: str | None) -> str:
    """Return the key name in a token, decoded as many times as clients have encoded it."""
    return list(Token.parse(token).key_names())[-1] if token is not None else NO_ENTITY
