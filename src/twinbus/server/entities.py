"""The entities of a namespace: made, changed and deleted, in the catalogue first and then in the broker.

Owns: that both agree, also after a power cut between them. A deleted entity's records are removed after it is gone from
the catalogue; what a stop left behind is removed at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from twinbus.model import path as paths
from twinbus.model.errors import (
    EntityAlreadyExists,
    InvalidArgument,
    NotImplementedHere,
    QuotaExceeded,
    StoreUnavailable,
)
from twinbus.server.administration import QueueInfo
from twinbus.store.catalogue import QUEUE, Catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.queue import Queue
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.queue import QueueDescription
    from twinbus.store.catalogue import EntityRow

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
FIXED: Final = {
    "enable_partitioning": "EnablePartitioning",
    "requires_session": "RequiresSession",
    "requires_duplicate_detection": "RequiresDuplicateDetection",
}
"""What is set when a queue is created, and never after."""
IDLE_LOOK_S: Final = 15.0
"""How often queues are looked at that delete themselves when nobody uses them."""
LATER: Final = {
    "forward_to": "ForwardTo",
    "forward_dead_lettered_to": "ForwardDeadLetteredMessagesTo",
}
"""What a queue cannot be in this version. Better to say so than to take messages and do something else with them."""


class Entities:
    """A namespace, to those who manage it."""

    def __init__(self, namespace: Namespace, name: str, *, stores: int) -> None:
        """New entities are spread over the first `stores` stores."""
        self.namespace = name
        self.created_ms = 0
        self._namespace = namespace
        self._stores = stores
        self._catalogue: Catalogue
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalogue")
        """SQLite waits for the disk, so it does so here; and one change comes after the other."""
        self._turn = asyncio.Lock()
        self._burials: set[asyncio.Task[None]] = set()
        self._idle_look: Timer | None = None

    async def open(self, file: Path) -> None:
        """Read the catalogue, and load what each entity's fragments hold."""
        self._catalogue = await self._call(Catalogue, file)
        rows = await self._call(self._catalogue.all)
        _check_stores(rows, len(self._namespace.journals))
        self.created_ms = min((row.created_ms for row in rows), default=self._namespace.clock.wall_ms())
        queues = [
            self._namespace.add_queue(
                row.id,
                row.path,
                row.description,
                row.fragments[0],
                created_ms=row.created_ms,
                updated_ms=row.updated_ms,
            )
            for row in rows
        ]
        await asyncio.gather(*[self._load(queue) for queue in queues])
        for doomed in await self._call(self._catalogue.doomed):
            self._start(self._bury(doomed.id, doomed.fragments))
        self._look_for_idle()

    async def close(self) -> None:
        """Finish what is being changed, and let go of the file. What is still to be buried is so at the next start."""
        if self._idle_look is not None:
            self._idle_look.cancel()
        for burial in self._burials:
            burial.cancel()
        async with self._turn:
            await self._call(self._catalogue.close)
        self._thread.shutdown()

    # --- what administrators ask --------------------------------------------------------------------------------------

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Make a queue."""
        paths.check_name(path)
        _check_now_possible(description)
        async with self._turn:
            if paths.key_of(path) in self._namespace.queues:
                raise EntityAlreadyExists(f"The messaging entity '{path}' already exists.")
            most = self._namespace.limits.max_entities
            if len(self._namespace.queues) >= most:
                raise QuotaExceeded(f"the namespace has {most} entities, its limit: delete one first")
            store = self._choose_store()
            now_ms = self._namespace.clock.wall_ms()
            row = await self._call(self._catalogue.create, QUEUE, path, description, [store], now_ms)
            queue = self._namespace.add_queue(row.id, path, description, store, created_ms=now_ms, updated_ms=now_ms)
        log.info("queue created", extra={"path": path, "store": store})
        if description.enable_partitioning:
            log.warning("a partitioned queue has one fragment in this version", extra={"path": path})
        return _info(queue)

    async def get_queue(self, path: str) -> QueueInfo:
        """The queue of that path."""
        return _info(self._namespace.find(path))

    async def list_queues(self, *, skip: int, top: int) -> list[QueueInfo]:
        """Some queues, in the order of their paths."""
        queues = self._namespace.queues
        return [_info(queues[key]) for key in sorted(queues)[skip : skip + top]]

    async def update_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Describe a queue anew."""
        async with self._turn:
            queue = self._namespace.find(path)
            for field, name in FIXED.items():
                if getattr(queue.description, field) != getattr(description, field):
                    raise InvalidArgument(f"{name} of '{queue.path}' cannot be changed: it is set at creation")
            _check_now_possible(description)
            now_ms = self._namespace.clock.wall_ms()
            await self._call(self._catalogue.update, paths.key_of(path), description, now_ms)
            self._namespace.update_queue(path, description, updated_ms=now_ms)
        return _info(queue)

    async def delete_queue(self, path: str) -> None:
        """Delete a queue and all it holds."""
        async with self._turn:
            queue = self._namespace.find(path)
            row = await self._call(self._catalogue.delete, paths.key_of(path))
            self._namespace.remove_queue(path)
        log.info("queue deleted", extra={"path": queue.path})
        self._start(self._bury(row.id, row.fragments))  # a store that hangs must not keep administrators waiting

    def health(self) -> dict[str, object]:
        """Which stores work."""
        stores = [
            {"name": journal.store.name, "is_available": journal.trouble is None}
            for journal in self._namespace.journals
        ]
        is_well = all(store["is_available"] for store in stores)
        return {"status": "ok" if is_well else "degraded", "stores": stores}

    # --- queues that nobody uses --------------------------------------------------------------------------------------

    def _look_for_idle(self) -> None:
        """Delete queues that were not used for as long as their descriptions say."""
        now_s = self._namespace.clock.monotonic_s()
        for queue in list(self._namespace.queues.values()):
            if queue.is_in_use:
                queue.used_s = now_s
            elif now_s - queue.used_s >= queue.description.auto_delete_on_idle_ms / 1000:
                self._start(self._delete_idle(queue))
        self._idle_look = self._namespace.timers.call_at(now_s + IDLE_LOOK_S, self._look_for_idle)

    async def _delete_idle(self, queue: Queue) -> None:
        idle_s = queue.description.auto_delete_on_idle_ms / 1000
        if self._namespace.queues.get(paths.key_of(queue.path)) is queue and not queue.is_in_use:
            log.info("queue deleted: it was idle", extra={"path": queue.path, "idle_s": idle_s})
            await self.delete_queue(queue.path)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _choose_store(self) -> int:
        """Of the stores that work the one with the fewest entities; of those that are equal, the first."""
        journals = self._namespace.journals[: self._stores]
        working = [number for number, journal in enumerate(journals) if journal.trouble is None]
        if not working:
            raise StoreUnavailable("no store works now: nothing can be created")
        return min(working, key=lambda number: (len(journals[number].keepers), number))

    def _start(self, burial: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(burial)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _load(self, queue: Queue) -> None:
        for fragment in (queue.main, queue.dead_letters):
            loaded: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
            fragment.load(loaded.set_result)
            error = await loaded
            if error is not None:
                raise error

    async def _bury(self, entity_id: int, stores: Sequence[int]) -> None:
        """Remove an entity's records. Where a store does not work now, the next start does it."""
        for store in set(stores):
            removed: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
            try:
                self._namespace.bury(entity_id, store, removed.set_result)
                error = await removed
            except StoreUnavailable as unavailable:
                error = unavailable
            if error is not None:
                log.warning("the records of a deleted entity stay until the next start: %s", error)
                return
        await self._call(self._catalogue.buried, entity_id)

    async def _call(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)


def _check_stores(rows: Sequence[EntityRow], count: int) -> None:
    for row in rows:
        if max(row.fragments) >= count:
            raise StoreUnavailable(
                f"'{row.path}' lies in store {max(row.fragments)}, and there are {count}: was stores.json lost?"
            )


def _check_now_possible(description: QueueDescription) -> None:
    for field, name in LATER.items():
        if getattr(description, field):
            raise NotImplementedHere(f"{name} is not part of this version")


def _info(queue: Queue) -> QueueInfo:
    return QueueInfo(path=queue.path, description=queue.description, runtime=queue.runtime())
