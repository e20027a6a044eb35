"""A namespace that only remembers what it was told."""

from __future__ import annotations

from dataclasses import replace

from twinbus.model.errors import EntityAlreadyExists, EntityNotFound, InvalidArgument
from twinbus.model.queue import QueueDescription, QueueRuntime
from twinbus.server.administration import QueueInfo

CREATED_MS = 1_700_000_000_123
FIXED = ("requires_session", "requires_duplicate_detection", "enable_partitioning")


class MemoryAdministration:
    def __init__(self) -> None:
        self.namespace = "contoso"
        self.created_ms = CREATED_MS
        self.queues: dict[str, QueueInfo] = {}
        self.stores: list[dict[str, object]] = [{"name": "0", "is_available": True}]
        self.fails_with: Exception | None = None

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        self._fail()
        if path.lower() in self.queues:
            raise EntityAlreadyExists(f"There is already an entity named '{path}'.")
        runtime = QueueRuntime(
            active_count=0,
            dead_letter_count=0,
            size_bytes=0,
            created_ms=CREATED_MS,
            updated_ms=CREATED_MS,
            accessed_ms=0,
        )
        self.queues[path.lower()] = QueueInfo(path=path, description=description, runtime=runtime)
        return self.queues[path.lower()]

    async def get_queue(self, path: str) -> QueueInfo:
        self._fail()
        if path.lower() not in self.queues:
            raise EntityNotFound(path)
        return self.queues[path.lower()]

    async def list_queues(self, *, skip: int, top: int) -> list[QueueInfo]:
        self._fail()
        return [self.queues[key] for key in sorted(self.queues)[skip : skip + top]]

    async def update_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        info = await self.get_queue(path)
        for name in FIXED:
            if getattr(info.description, name) != getattr(description, name):
                raise InvalidArgument(f"{name} of '{path}' cannot change")
        self.queues[path.lower()] = replace(info, description=description)
        return self.queues[path.lower()]

    async def delete_queue(self, path: str) -> None:
        await self.get_queue(path)
        del self.queues[path.lower()]

    def health(self) -> dict[str, object]:
        is_ok = all(store["is_available"] for store in self.stores)
        return {"status": "ok" if is_ok else "degraded", "stores": self.stores}

    def set_runtime(self, path: str, runtime: QueueRuntime) -> None:
        self.queues[path.lower()] = replace(self.queues[path.lower()], runtime=runtime)

    def _fail(self) -> None:
        if self.fails_with is not None:
            raise self.fails_with
