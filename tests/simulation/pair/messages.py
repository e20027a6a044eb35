"""Messages of the pair simulation, and the comparison of received with sent messages."""

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
"""Prefixes of properties that are added to a message on its way or at its destination."""


class Outcome(Enum):
    """Outcome of a send."""

    PENDING = "pending"
    RETURNED = "returned"
    REFUSED = "refused"
    """Error that says that the message was not sent."""
    UNCERTAIN = "uncertain"
    """Error that says that the message may have been sent."""
    CRASHED = "crashed"
    """No outcome: the process was killed, or the call was cancelled."""


class OwnFault(Enum):
    """Reason for which a destination permanently refuses a message."""

    TOO_LARGE = "MessageTooLarge"
    NO_SESSION = "no session id where one is required"


@dataclass(slots=True)
class SimulatedMessage:
    """A message that is sent."""

    id: str
    path: str
    session: str | None
    number: int
    """Position among the messages of its flow, in the order of their sends."""
    body: bytes
    ttl_s: int | None = None
    due_ms: int | None = None
    """Scheduled time on the sender's wall clock."""
    partition_key: str | None = None
    own_fault: OwnFault | None = None
    outcome: Outcome = Outcome.PENDING
    send_began_ms: int = 0
    """Start of its send on the secondary's clock."""
    parked_at_ms: int | None = None
    """First parking on the secondary's clock."""
    may_be_deleted: bool = False
    """Whether it may have been deleted with its destination."""
    record: PairMessage = field(init=False)
    """Record of the delivery checker."""

    def __str__(self) -> str:
        return f"{self.id} for '{self.path}' [{self.outcome.value}]"

    def to_brokered_message(self) -> BrokeredMessage:
        """Return the message to send."""
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
    """A message as it was found at the end of a run."""

    id: str
    found_in: str
    """`arrived`, `expired` (in the dead letters of its destination), `parked`, `backlog` (in the dead letters of a
    backlog queue), or `refused` (of the spool)."""
    entity: str
    """Queue or subscription."""
    order: tuple[int, int]
    """Incarnation of the entity, and the message's sequence number in it."""
    is_marked_duplicate: bool
    parked_at_ms: int | None = None
    """When it was parked; None if it was sent to the primary directly."""
    reason: str = ""
    """Reason of dead-lettering or refusal."""
    changes: tuple[str, ...] = ()
    """Differences from the sent message."""


def changes(message: SimulatedMessage, found: BrokeredMessage, *, deducts: bool) -> tuple[str, ...]:
    """Return the differences between a message at its destination and the sent message."""
    sent = message.to_brokered_message()
    own_properties = {name: value for name, value in found.properties.items() if not name.startswith(_ADDED_PREFIXES)}
    pairs: Iterable[tuple[str, object, object]] = (
        ("body", message.body, found.body),
        ("message id", sent.message_id, found.message_id),
        ("session id", sent.session_id, found.session_id),
        ("correlation id", sent.correlation_id, found.correlation_id),
        ("label", sent.label, found.label),
        ("properties", sent.properties, own_properties),
    )
    differences = [f"{name} {before!r:.60} became {after!r:.60}" for name, before, after in pairs if before != after]
    if message.partition_key is not None and found.partition_key != message.partition_key:
        differences.append(f"partition key {message.partition_key!r} became {found.partition_key!r}")
    is_shorter = (
        deducts
        and PARKED_AT in found.properties
        and found.time_to_live is not None
        and sent.time_to_live is not None
        and found.time_to_live <= sent.time_to_live
    )
    if sent.time_to_live != found.time_to_live and not is_shorter:
        differences.append(f"time to live {sent.time_to_live} became {found.time_to_live}")
    due = found.scheduled_enqueue_time_utc
    if due is not None and due != sent.scheduled_enqueue_time_utc:
        differences.append(f"schedule {sent.scheduled_enqueue_time_utc} became {due}")
    return tuple(differences)


def _datetime_of(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
