"""Events of a pair: their kinds and fields. `pair_events` publishes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class EventKind(Enum):
    """What can happen."""

    SUSPECTED = "suspected"
    """A send failed: the failover interval of an entity began."""
    FAILED_OVER = "failed over"
    PARKED = "parked"
    PINGED = "pinged"
    """With the reason why the ping did not succeed, if it did not."""
    RESTORED = "restored"
    """An entity is healthy again."""
    UNREACHABLE = "unreachable"
    """Pings are refused: sends fail, and nothing is parked."""
    FRAGMENT_DOWN = "fragment down"
    """What is sent to an entity with a key that leads there is parked; all else is not."""
    FRAGMENT_BACK = "fragment back"
    """A ping with such a key was answered; with the reason, if it was refused."""
    QUEUE_OUT = "backlog queue out of rotation"
    QUEUE_BACK = "backlog queue back in rotation"
    SPOOLED = "spooled"
    """Both namespaces were down: the message is on the local disk."""
    UNSPOOLED = "taken from the spool"
    """It is with the primary now, or parked."""
    SPOOL_REFUSED = "refused from the spool"
    """A spooled message will never be taken, for the reason given: it is in the folder `refused` of the spool."""
    MOVED = "moved back"
    """The syphon brought a parked message to its destination."""
    DEFERRED = "deferred"
    """The destination of a parked message is not available: the message waits in its backlog queue."""
    DESTINATION_REFUSES = "destination refuses"
    """A destination is disabled or missing, or the key is not accepted: its parked messages stay in the backlog."""
    DESTINATION_ACCEPTS = "destination accepts again"
    """... or its messages were dead-lettered, or another pump has the backlog queue."""
    DEAD_LETTERED = "dead-lettered"
    """A parked message cannot be delivered, for the reason given."""
    PUMP_STARTED = "pump started"
    PUMP_DISPLACED = "pump displaced"
    """Another host drains that backlog queue now."""
    PUMP_FAILED = "pump failed"
    PRIMARY_LOST = "primary lost"
    """The syphon has lost its connection to the primary. Told once in an outage, however many pumps wait."""
    PRIMARY_BACK = "primary back"
    SECONDARY_LOST = "secondary lost"
    """The secondary cannot be reached: parked messages are not taken back, and nothing can be parked."""
    SECONDARY_BACK = "secondary back"
    ALARM = "alarm"
    ALARM_OVER = "alarm over"
    FACTORY_FAULTED = "factory faulted"
    UNPROTECTED = "unprotected"
    """The secondary could not be prepared, or not yet, and is still being tried: sends fail if the primary does."""
    PROTECTED = "protected"
    """The backlog queues of a secondary that is not required are there."""
    EVENTS_LOST = "events lost"


ALL_KINDS: Final = frozenset(EventKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingEvent:
    """One thing that happened."""

    kind: EventKind
    at_ms: int
    """Of the wall clock."""
    path: str | None = None
    """The entity of the primary."""
    fragment: int | None = None
    """Of that entity, where it is about one."""
    backlog_queue: str | None = None
    message_id: object = None
    session_id: str | None = None
    sequence_number: int | None = None
    count: int = 1
    """Messages it is about."""
    time_to_live_ms: int | None = None
    """Of a message that was parked or spooled, if it was sent with one."""
    reason: str | None = None
    is_outage: bool = False
    """It follows from the outage of a namespace, which another event tells of: of a pump, or a backlog queue."""
