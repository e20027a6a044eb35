"""What partitioned queues, topics and subscriptions have in common.

Owns: that all parts are what their entity is: they have its description, its status and its outage, and go with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from twinbus.broker.entity import Entity
from twinbus.broker.queue import Queue
from twinbus.broker.subscription import Subscription
from twinbus.broker.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.outage import Outage
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.path import SubQueue

_PAGE_ENDS: Final = 1_000
Part = TypeVar("Part", bound=Queue | Topic | Subscription)


class Partitioned(Entity, Generic[Part]):
    """One entity over several fragments."""

    def __init__(
        self, entity_id: int, path: str, status: str, parts: list[Part], *, created_ms: int, updated_ms: int
    ) -> None:
        """Made by the namespace; `parts` are those of its fragments, by their numbers."""
        super().__init__(entity_id, path, status, created_ms=created_ms, updated_ms=updated_ms)
        self.parts = parts
        self.page_ends: dict[tuple[SubQueue, int], int] = {}
        """When the messages were enqueued that the last pages of peeks ended with: a reader goes on behind its page
        also if that message has gone meanwhile."""

    def note_page_end(self, sub_queue: SubQueue, sequence: int, enqueued_ms: int) -> None:
        """A page of a peek ends with this message."""
        ends = self.page_ends
        ends[sub_queue, sequence] = enqueued_ms
        if len(ends) > _PAGE_ENDS:
            del ends[next(iter(ends))]

    def part(self, number: int) -> Part:
        """What is of one fragment of it."""
        return self.parts[number]

    @property
    def is_in_use(self) -> bool:
        """Someone receives from a part of it."""
        return any(part.is_in_use for part in self.parts)

    @property
    def is_available(self) -> bool:
        """All of it is."""
        return all(part.main.is_available for part in self.parts)

    def set_status(self, status: str) -> None:
        """Whoever sends or receives, and may not any more, is told."""
        super().set_status(status)
        for part in self.parts:
            part.set_status(status)

    def set_outage(self, outage: Outage | None) -> None:
        """All parts have it."""
        super().set_outage(outage)
        for part in self.parts:
            part.set_outage(outage)

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what its parts hold from their stores, side by side."""
        left = len(self.parts)
        first: ServiceBusError | None = None

        def loaded(error: ServiceBusError | None) -> None:
            nonlocal left, first
            left -= 1
            first = first or error
            if not left:
                done(first)

        for part in self.parts:
            part.load(loaded)

    def settled_down(self) -> None:
        """It and all others are loaded."""
        for part in self.parts:
            part.settled_down()

    def close(self, error: ServiceBusError) -> None:
        """It was deleted: tell everyone who uses it."""
        self.end_producers(error)
        for part in self.parts:
            part.close(error)
