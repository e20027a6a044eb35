"""Messages of a simulation, each with what was promised of it.

Owns: what a letter is, and how a message that arrived is compared with it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.client import BrokeredMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.delivery_checker.pair_checker import PairMessage

DUPLICATE_MARK: Final = "x-ms-possible-duplicate"
PARKED_AT: Final = "x-ms-parked-at"
_ADDED_PREFIXES: Final = (DUPLICATE_MARK, "x-ms-parked", "DeadLetter")
"""How the names of properties begin that say what happened to a message on its way, or at its destination."""


class Outcome(Enum):
    """What the sender was told."""

    PENDING = "pending"
    RETURNED = "returned"
    REFUSED = "refused"
    """An error that says: it was not sent."""
    UNCERTAIN = "uncertain"
    """An error that says: it may have been sent."""
    CRASHED = "crashed"
    """Nothing: the process was killed, or the call was cancelled."""


class OwnFault(Enum):
    """Why a destination refuses a message for good."""

    TOO_LARGE = "MessageTooLarge"
    NO_SESSION = "no session id where one is required"


@dataclass(slots=True)
class SimulatedMessage:
    """One message."""

    id: str
    path: str
    session: str | None
    number: int
    """Its place among the letters of its flow, in the order in which they were sent."""
    body: bytes
    ttl_s: int | None = None
    due_ms: int | None = None
    """When it is scheduled for, by the wall clock of the sender."""
    partition_key: str | None = None
    own_fault: OwnFault | None = None
    outcome: Outcome = Outcome.PENDING
    send_began_ms: int = 0
    """What the secondary's clock showed when its send began."""
    parked_at_ms: int | None = None
    """What the secondary's clock showed when it was first parked."""
    may_be_deleted: bool = False
    """It was deleted with its destination, or may have been."""
    record: PairMessage = field(init=False)
    """Of the ledger."""

    def __str__(self) -> str:
        return f"{self.id} for '{self.path}' [{self.outcome.value}]"

    def to_brokered_message(self) -> BrokeredMessage:
        """What is sent."""
        return BrokeredMessage(
            self.body,
            message_id=self.id,
            session_id=self.session,
            partition_key=self.partition_key,
            correlation_id=f"re {self.id}",
            label="letter",
            time_to_live=None if self.ttl_s is None else dt.timedelta(seconds=self.ttl_s),
            scheduled_enqueue_time_utc=None if self.due_ms is None else _datetime_of(self.due_ms),
            properties={"number": self.number, "flow": f"{self.path}/{self.session}"},
        )


@dataclass(frozen=True, slots=True)
class FoundCopy:
    """One message as it was found, wherever it ended."""

    id: str
    found_in: str
    """`arrived`, `expired` (in the dead letters of its destination), `parked`, `backlog` (in the dead letters of a
    backlog queue), or `refused` (of the spool)."""
    entity: str
    """The queue or subscription."""
    order: tuple[int, int]
    """The incarnation of the entity, and its sequence number there."""
    is_marked_duplicate: bool
    parked_at_ms: int | None = None
    """None: it came directly."""
    reason: str = ""
    """Why it was dead-lettered or refused."""
    changes: tuple[str, ...] = ()
    """How it differs from what was sent."""


def changes(message: SimulatedMessage, found: BrokeredMessage, *, deducts: bool) -> tuple[str, ...]:
    """How a message at its destination differs from what was sent."""
    sent = message.to_brokered_message()
    own = {name: value for name, value in found.properties.items() if not name.startswith(_ADDED_PREFIXES)}
    pairs: Iterable[tuple[str, object, object]] = (
        ("body", message.body, found.body),
        ("message id", sent.message_id, found.message_id),
        ("session id", sent.session_id, found.session_id),
        ("correlation id", sent.correlation_id, found.correlation_id),
        ("label", sent.label, found.label),
        ("properties", sent.properties, own),
    )
    told = [f"{name} {before!r:.60} became {after!r:.60}" for name, before, after in pairs if before != after]
    if message.partition_key is not None and found.partition_key != message.partition_key:
        told.append(f"partition key {message.partition_key!r} became {found.partition_key!r}")
    is_shorter = (
        deducts
        and PARKED_AT in found.properties
        and found.time_to_live is not None
        and sent.time_to_live is not None
        and found.time_to_live <= sent.time_to_live
    )
    if sent.time_to_live != found.time_to_live and not is_shorter:
        told.append(f"time to live {sent.time_to_live} became {found.time_to_live}")
    due = found.scheduled_enqueue_time_utc
    if due is not None and due != sent.scheduled_enqueue_time_utc:
        told.append(f"schedule {sent.scheduled_enqueue_time_utc} became {due}")
    return tuple(told)


def _datetime_of(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
