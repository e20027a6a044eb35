"""What the model speaks of: messages and their places, locks, sessions that someone has, and what was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.queue.links import Receiver
    from tests.simulation.queue.messages import SentMessage


class Violation(AssertionError):
    """The queue did what no queue should do, or did not what it should."""


MAIN, DEAD = "main", "dead"
ACTIVE, DEFERRED, SCHEDULED = "active", "deferred", "scheduled"
NEVER_S = float("inf")


class Location(NamedTuple):
    """Where a message is."""

    area: str
    kind: str
    number: int


@dataclass(eq=False)
class Operation:
    """Something that was asked for, or that has to happen; until it is known to be over."""

    kind: str
    wall_lo_ms: int
    wall_hi_ms: int
    identities: list[int] = field(default_factory=list)
    applies_to: Callable[[Message], bool] = lambda _: False
    """Of one that takes whatever is there: this message is meant."""
    properties: dict[str, object] = field(default_factory=dict)
    affected: list[int] = field(default_factory=list)
    """Identities that it was the reason for, on disk."""
    batch: int = 0
    """In which it reached the disk."""
    is_answered: bool = False
    is_shared: bool = False
    """Another one was asked to do the same: which of them did is not known."""
    is_exact: bool = False
    """Nothing else was going on when it was asked for."""
    step: int = 0
    """How many things had been done before."""


@dataclass(eq=False)
class SessionHold:
    """A session that a receiver has."""

    session: bytes
    receiver: Receiver
    deadline_s: float
    until_ms: int


@dataclass(eq=False)
class Lock:
    """A message that a receiver has."""

    message: Message
    location: Location
    tag: bytes
    deadline_s: float
    session: bytes | None = None


@dataclass(eq=False)
class Message:
    """One message, from being sent to its end."""

    sent: SentMessage
    ttl_ms: int | None
    """How long it lives, as its sender and the queue say."""
    location: Location | None = None
    visible_location: Location | None = None
    delivery_count: int = 0
    """Deliveries that were counted."""
    due_ms: int = 0
    enqueued_ms: int = 0
    size: int = 0
    properties: dict[str, object] = field(default_factory=dict)
    lock: Lock | None = None
    pending_operation: Operation | None = None
    """What is being done to it."""
    is_deleted_for_receiver: bool = False
    """It was deleted for a receiver, who has yet to get it."""
    may_be_deleted: bool = False
    """... or for another reason."""
    was_due: bool = False
    """Its time was over at some moment since it is where it is."""
    due_since_s: float | None = None
    """Since when its time is over."""
    idle_since_s: float = 0.0
    """Since when nobody has it."""
    was_restored: bool = False
    """It was deleted, and came back."""

    @property
    def identity(self) -> int:
        return self.sent.identity

    @property
    def session(self) -> bytes | None:
        return self.sent.session.encode() if self.sent.session is not None else None

    @property
    def is_idle(self) -> bool:
        """Nobody has it, and nothing is being done to it."""
        return (
            self.lock is None
            and self.pending_operation is None
            and not self.is_deleted_for_receiver
            and self.visible_location == self.location
        )

    @property
    def is_busy(self) -> bool:
        """Something is being done to it for sure; of several that are given back some are there before the last."""
        return self.pending_operation is not None and self.pending_operation.kind != "release"

    def clear_release(self) -> None:
        """It was given back: something else is done to it now."""
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
    """An id that was sent."""

    earliest_ms: int
    sent_by_ms: int
    """Between these two, by the wall clock."""
    latest_ms: int
    """The latest time that the wall clock has shown since."""
    shortest_ms: int
    """The shortest window that the queue has had since."""
