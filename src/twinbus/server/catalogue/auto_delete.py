"""Auto-delete: queues, topics and subscriptions are deleted after being idle for their AutoDeleteOnIdle.

In a single process, `AutoDelete` checks the entities of the namespace. In a cluster, the supervisor asks all workers,
and deletes an entity only if it is idle in all workers.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.path import canonical_key
from twinbus.server.catalogue.replica import entity_kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic
    from twinbus.server.catalogue.service import CatalogueService

log: Final = logging.getLogger(__name__)

IDLE_CHECK_INTERVAL_S: Final = 15.0
"""How often entities with AutoDeleteOnIdle are checked."""


def idle_seconds(namespace: Namespace) -> dict[int, float]:
    """Return how many seconds each entity with AutoDeleteOnIdle has been idle in this process, by entity id."""
    now_s, idle_by_id = namespace.clock.monotonic_s(), {}
    for entity in namespace.entities.values():
        if entity.description.auto_delete_on_idle_ms >= FOREVER_MS or entity.is_in_use:
            entity.last_used_s = now_s
        if entity.description.auto_delete_on_idle_ms < FOREVER_MS:
            idle_by_id[entity.entity_id] = now_s - entity.last_used_s
    return idle_by_id


class AutoDelete:
    """The regular check for idle entities in a namespace that a single process serves."""

    def __init__(
        self,
        namespace: Namespace,
        delete: Callable[[str], Awaitable[None]],
        start_task: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """Create a check that is not running; `delete` deletes the entity at a path."""
        self._namespace = namespace
        self._delete = delete
        self._start_task = start_task
        self._timer: Timer | None = None

    def start(self) -> None:
        """Delete idle entities now, and at regular intervals."""
        idle_s = idle_seconds(self._namespace)
        for entity in self._namespace.entities.values():
            if idle_s.get(entity.entity_id, -1.0) >= entity.description.auto_delete_on_idle_ms / 1000:
                self._start_task(self._delete_idle(entity))
        now_s = self._namespace.clock.monotonic_s()
        self._timer = self._namespace.timers.call_at(now_s + IDLE_CHECK_INTERVAL_S, self.start)

    def stop(self) -> None:
        """Stop the regular check."""
        if self._timer is not None:
            self._timer.cancel()

    async def _delete_idle(self, entity: Queue | Topic | Subscription) -> None:
        idle_s = entity.description.auto_delete_on_idle_ms / 1000
        if self._namespace.entities.get(canonical_key(entity.path)) is entity and not entity.is_in_use:
            with suppress(StoreUnavailable):  # a later check tries again
                await self._delete(entity.path)
                log.info(
                    "%s was deleted: it was idle", entity_kind(entity), extra={"path": entity.path, "idle_s": idle_s}
                )


async def delete_idle_entities(
    catalogue: CatalogueService, get_idle_seconds: Callable[[], Awaitable[list[dict[int, float]] | None]]
) -> None:
    """Delete idle entities that have AutoDeleteOnIdle, at regular intervals, until cancelled.

    `get_idle_seconds` returns, for each worker, how long each entity has been idle, by entity id. An entity is deleted
    if it is idle in all workers. While a worker is down, nothing is deleted, because that worker's clients are about to
    reconnect.
    """
    while True:
        await asyncio.sleep(IDLE_CHECK_INTERVAL_S)
        await delete_idle_once(catalogue, get_idle_seconds)


async def delete_idle_once(
    catalogue: CatalogueService, get_idle_seconds: Callable[[], Awaitable[list[dict[int, float]] | None]]
) -> None:
    """Delete the entities that have been idle for their AutoDeleteOnIdle."""
    limits_s = {
        entry.row.id: entry.description.auto_delete_on_idle_ms / 1000
        for entry in catalogue.entities.values()
        if entry.description.auto_delete_on_idle_ms < FOREVER_MS
    }
    idle_by_worker = await get_idle_seconds() if limits_s else None
    if idle_by_worker is None:
        return
    for entry in list(catalogue.entities.values()):
        row, limit_s = entry.row, limits_s.get(entry.row.id)
        if limit_s is None or min(idle_s.get(row.id, 0.0) for idle_s in idle_by_worker) < limit_s:
            continue
        try:
            await catalogue.delete(row.path)
        except ServiceBusError as error:  # already deleted with its topic, or retried at the next check
            log.debug("an idle entity was not deleted: %s", error, extra={"path": row.path})
        else:
            log.info("%s was deleted: it was idle", row.kind, extra={"path": row.path, "idle_s": limit_s})
