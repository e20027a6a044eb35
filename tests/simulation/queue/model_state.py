"""State of the reference model: messages and their locations, locks, sessions, operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.queue.links import Receiver
    from tests.simulation.queue.messages import SentMessage


class Violation(AssertionError):
    """The queue does not behave like the reference model."""


MAIN, DEAD = "main", "dead"
ACTIVE, DEFERRED, SCHEDULED = "active", "deferred", "scheduled"
NEVER_S = float("inf")


class Location(NamedTuple):
    """Location of a message."""

    area: str
    kind: str
    number: int


@dataclass(eq=False)
class Operation:
    """A requested or expected operation, until it is known to be over."""

    kind: str
    wall_lo_ms: int
    wall_hi_ms: int
    identities: list[int] = field(default_factory=list)
    applies_to: Callable[[Message], bool] = lambda _: False
    """For operations without fixed messages: whether a message is affected."""
    properties: dict[str, object] = field(default_factory=dict)
    affected: list[int] = field(default_factory=list)
    """Identities of messages whose changes on disk this operation explains."""
    batch: int = 0
    """Batch in which it reached the disk."""
    is_answered: bool = False
    is_shared: bool = False
    """Whether another operation may have caused the same changes."""
    is_exact: bool = False
    """Whether the queue was idle when the operation began."""
    step: int = 0
    """Number of actions before it."""


@dataclass(eq=False)
class SessionHold:
    """A session held by a receiver."""

    session: bytes
    receiver: Receiver
    deadline_s: float
    until_ms: int


@dataclass(eq=False)
class Lock:
    """A message locked by a receiver."""

    message: Message
    location: Location
    tag: bytes
    deadline_s: float
    session: bytes | None = None


@dataclass(eq=False)
class Message:
    """A message that was sent."""

    sent: SentMessage
    ttl_ms: int | None
    """Time to live, from the sender and the queue."""
    location: Location | None = None
    visible_location: Location | None = None
    delivery_count: int = 0
    """Expected delivery count."""
    due_ms: int = 0
    enqueued_ms: int = 0
    size: int = 0
    properties: dict[str, object] = field(default_factory=dict)
    lock: Lock | None = None
    pending_operation: Operation | None = None
    """Operation that is changing the message."""
    is_deleted_for_receiver: bool = False
    """Whether it was deleted for a receiver that has not got it yet."""
    may_be_deleted: bool = False
    """Whether it may have been deleted for another reason."""
    was_due: bool = False
    """Whether it was due or expired at some moment since it is at its location."""
    due_since_s: float | None = None
    """Since when it is due or expired."""
    idle_since_s: float = 0.0
    """Since when it is not locked."""
    was_restored: bool = False
    """Whether it was deleted and stored again."""

    @property
    def identity(self) -> int:
        return self.sent.identity

    @property
    def session(self) -> bytes | None:
        return self.sent.session.encode() if self.sent.session is not None else None

    @property
    def is_idle(self) -> bool:
        """Whether it is neither locked nor being changed."""
        return (
            self.lock is None
            and self.pending_operation is None
            and not self.is_deleted_for_receiver
            and self.visible_location == self.location
        )

    @property
    def is_busy(self) -> bool:
        """Whether it is certainly being changed; released messages may be available before the release completes."""
        return self.pending_operation is not None and self.pending_operation.kind != "release"

    def clear_release(self) -> None:
        """End a pending release, because another change follows."""
        if self.pending_operation is not None and self.pending_operation.kind == "release":
            self.pending_operation = None

    def __repr__(self) -> str:
        state = (
            "locked"
            if self.lock
            else self.pending_operation.kind
            if self.pending_operation
            else "handed"
            if self.is_deleted_for_receiver
            else "idle"
        )
        return (
            f"message {self.identity} at {self.location and tuple(self.location)} (count {self.delivery_count}, "
            f"{state})"
        )


@dataclass
class RememberedId:
    """A message id for duplicate detection."""

    earliest_ms: int
    sent_by_ms: int
    """The id was sent between these two wall-clock times."""
    latest_ms: int
    """Latest wall-clock time since then."""
    shortest_ms: int
    """Shortest duplicate window since then."""
