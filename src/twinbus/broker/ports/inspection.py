"""The inspection of a part of an entity: its figures, locks and sessions, for monitoring.

Owns the signatures of these operations, and their results. An inspection changes nothing and reads no message, except
for the enqueued time of the oldest message. Only the process that owns a part can inspect the part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.model.path import SubQueue


class PartFigures(NamedTuple):
    """Message counts and sizes of one part, on disk except for `locked`."""

    enqueued: int = 0
    """Messages stored since the entity was created."""
    removed: int = 0
    """Messages that have left the entity since it was created."""
    dead_lettered_total: int = 0
    """Messages moved to the dead-letter queue since the entity was created."""
    active: int = 0
    scheduled: int = 0
    deferred: int = 0
    dead_lettered: int = 0
    transfer: int = 0
    transfer_dead_lettered: int = 0
    locked: int = 0
    size_bytes: int = 0
    is_available: bool = True


def add_figures(figures: list[PartFigures]) -> PartFigures:
    """Return the sums of the figures of several parts; `is_available` is True if all parts are available."""
    if len(figures) == 1:
        return figures[0]
    (*numbers, _) = (sum(values) for values in zip(*figures, strict=True))
    return PartFigures._make([*numbers, all(one.is_available for one in figures)])


class HeldLock(NamedTuple):
    """The lock of one message."""

    sequence_number: int
    lock_number: int
    """The number by which the message can be settled; this secret number must not leave the server."""
    session_id: bytes | None
    is_deferred: bool
    until_ms: int
    """Wall-clock time of the expiry."""
    duration_ms: int
    """How long the lock lasts after a renewal."""


class HeldSession(NamedTuple):
    """One locked session."""

    session_id: bytes
    until_ms: int
    locked_messages: int


class PartInspection:
    """The inspection of one part that this process owns."""

    __slots__ = ("entity_id", "number")

    def __init__(self, entity_id: int, number: int) -> None:
        """Create the inspection of fragment `number` of an entity."""
        self.entity_id = entity_id
        self.number = number

    def figures(self) -> PartFigures:
        """Return the message counts and sizes."""
        raise NotImplementedError

    def locks(self, sub_queue: SubQueue, after: int, limit: int) -> list[HeldLock]:  # noqa: ARG002
        """Return up to `limit` locks with sequence numbers above `after`, in ascending order."""
        return []

    def sessions(self, after: bytes, limit: int) -> list[HeldSession]:  # noqa: ARG002
        """Return up to `limit` locked sessions with ids above `after`, in ascending order."""
        return []

    def departures(self) -> int:
        """Return a number that changes whenever an active message leaves; -1 if there are none."""
        return -1

    def find_oldest_active(self, on_result: Callable[[int | None], None]) -> None:
        """Read the enqueued time of the oldest active message; None if there is none or the store does not work."""
        on_result(None)
