"""Events of a pair: their kinds and fields. `event_publisher` publishes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class EventKind(Enum):
    """Kinds of events."""

    SUSPECTED = "suspected"
    """A send failed, and the failover interval of the entity began."""
    FAILED_OVER = "failed over"
    PARKED = "parked"
    PINGED = "pinged"
    """A ping was sent; `reason` is set if the ping failed."""
    RESTORED = "restored"
    """An entity is healthy again."""
    UNREACHABLE = "unreachable"
    """Pings are refused. Sends fail, and nothing is parked."""
    FRAGMENT_DOWN = "fragment down"
    """Messages whose key maps to this fragment are parked; the entity's other messages are not."""
    FRAGMENT_BACK = "fragment back"
    """The fragment's outage ended because a ping succeeded, or was refused with `reason`."""
    QUEUE_OUT = "backlog queue out of rotation"
    QUEUE_BACK = "backlog queue back in rotation"
    SPOOLED = "spooled"
    """The message is on the local disk, because both namespaces were down or the spool holds earlier messages of its
    session."""
    UNSPOOLED = "taken from the spool"
    """A spooled message was sent to the primary or parked."""
    SPOOL_REFUSED = "refused from the spool"
    """A spooled message was moved to the spool's folder `refused`, because it will never be accepted (see `reason`)."""
    MOVED = "moved back"
    """The syphon moved a parked message to its destination."""
    DEFERRED = "deferred"
    """The destination of a parked message is not available, so the message stays in its backlog queue."""
    DESTINATION_REFUSES = "destination refuses"
    """A destination is disabled or missing, or the key is not accepted. Its parked messages stay in the backlog."""
    DESTINATION_ACCEPTS = "destination accepts again"
    """A destination accepts messages again, or its messages were dead-lettered, or another pump took over the backlog
    queue."""
    DEAD_LETTERED = "dead-lettered"
    """A parked message cannot be delivered, because of `reason`."""
    PUMP_STARTED = "pump started"
    PUMP_DISPLACED = "pump displaced"
    """Another host drains the backlog queue now."""
    PUMP_FAILED = "pump failed"
    PRIMARY_LOST = "primary lost"
    """The syphon lost its connection to the primary. This event is published once per outage, however many pumps
    wait."""
    PRIMARY_BACK = "primary back"
    SECONDARY_LOST = "secondary lost"
    """The secondary cannot be reached, so no messages can be parked or drained."""
    SECONDARY_BACK = "secondary back"
    ALARM = "alarm"
    ALARM_OVER = "alarm over"
    FACTORY_FAULTED = "factory faulted"
    UNPROTECTED = "unprotected"
    """The secondary could not be prepared in time; the preparation is repeated. Sends fail if the primary fails."""
    PROTECTED = "protected"
    """The backlog queues exist now (only with `require_secondary=False`)."""
    EVENTS_LOST = "events lost"


ALL_KINDS: Final = frozenset(EventKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingEvent:
    """An event of a pair."""

    kind: EventKind
    at_ms: int
    """The wall-clock time."""
    path: str | None = None
    """The entity of the primary that the event is about."""
    fragment: int | None = None
    """The fragment of that entity, for events about a fragment."""
    backlog_queue: str | None = None
    message_id: object = None
    session_id: str | None = None
    sequence_number: int | None = None
    count: int = 1
    """The number of messages that the event is about."""
    time_to_live_ms: int | None = None
    """The time to live of a parked or spooled message, if it has one."""
    reason: str | None = None
    is_outage: bool = False
    """Whether this event of a pump or a backlog queue is part of a namespace outage, which has an event of its own."""
