"""What the HTTP side asks of a namespace.

Owns: the protocol between those who speak to administrators and whoever keeps the catalogue. Knows nothing of XML,
of HTTP or of where entities lie. Answers and errors are of the model, so that another way in can use the same protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twinbus.model.queue import QueueDescription, QueueRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue as it is now."""

    path: str
    """As it was spelled when the queue was created."""
    description: QueueDescription
    runtime: QueueRuntime


class Administration(Protocol):
    """A namespace, to those who manage it. Paths compare without regard to case."""

    namespace: str
    """Its name."""
    created_ms: int
    """When it was made: milliseconds of the wall clock."""

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Make a queue: EntityAlreadyExists, QuotaExceeded, InvalidArgument or StoreUnavailable if it cannot be."""

    async def get_queue(self, path: str) -> QueueInfo:
        """The queue of that path, or EntityNotFound."""

    async def list_queues(self, *, skip: int, top: int) -> list[QueueInfo]:
        """At most `top` queues, in order of their paths, after the first `skip`."""

    async def update_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Give a queue another description; InvalidArgument if what is fixed at creation would change."""

    async def delete_queue(self, path: str) -> None:
        """Delete a queue and all it holds, or EntityNotFound."""

    def health(self) -> dict[str, object]:
        """`{"status": "ok" | "degraded", "stores": [{"is_available": bool, ...}, ...]}`."""
