"""The two ways to count what is charged.

*Document's model*: each message is charged when it is sent and when it is received, and so is a receive that finds
nothing. *Operation model*: every call is charged, so that completing, renewing, peeking and managing count, too.

Owns: both counts side by side, what one message costs in them, and the names of what they are for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from twinbus.model.usage import units_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class Model(Enum):
    """Which of the two a bill is made by."""

    OPERATION = "operation"
    DOCUMENT = "document"


class Stage(Enum):
    """What charges are for. The first four are the way of a parked message."""

    SEND_TO_BACKLOG = "send to backlog"
    RECEIVE_FROM_BACKLOG = "receive from backlog"
    SEND_TO_PRIMARY = "send to primary"
    RECEIVE_FROM_PRIMARY = "receive from primary"
    NOT_PARKED = "messages not parked"
    EMPTY = "receives that found nothing"
    PING = "pings"
    IDLE_SYPHON = "idle syphon"
    MANAGEMENT = "management"
    OTHER = "other operations"


RETURNED_BYTES = 94
"""A message that is back says when it was parked, and for how long."""
PARKED_STAGES = (
    Stage.SEND_TO_BACKLOG,
    Stage.RECEIVE_FROM_BACKLOG,
    Stage.SEND_TO_PRIMARY,
    Stage.RECEIVE_FROM_PRIMARY,
)


@dataclass(frozen=True, slots=True)
class Charges:
    """The same thing, counted both ways."""

    document: int = 0
    operation: int = 0

    def __add__(self, other: Self) -> Charges:
        return Charges(self.document + other.document, self.operation + other.operation)

    def __sub__(self, other: Self) -> Charges:
        return Charges(self.document - other.document, self.operation - other.operation)

    def __mul__(self, times: int) -> Charges:
        return Charges(self.document * times, self.operation * times)

    def for_model(self, model: Model) -> int:
        """In one of them."""
        return self.operation if model is Model.OPERATION else self.document


NO_CHARGES = Charges()


def sum_charges(charges: Mapping[Stage, Charges]) -> Charges:
    """Of all stages."""
    return sum(charges.values(), NO_CHARGES)


def send_charges(size_bytes: int) -> Charges:
    """One message."""
    units = units_of(size_bytes)
    return Charges(units, units)


def receive_charges(size_bytes: int, *, is_peek_lock: bool = True) -> Charges:
    """One message; with peek-lock it has to be completed, which is an operation (C03)."""
    units = units_of(size_bytes)
    return Charges(units, units + is_peek_lock)


def direct_message_charges(size_bytes: int, *, subscriptions: int | None = None, is_peek_lock: bool = True) -> Charges:
    """One message to a queue, or to a topic with so many subscriptions that want it."""
    receives = 1 if subscriptions is None else subscriptions
    return send_charges(size_bytes) + receive_charges(size_bytes, is_peek_lock=is_peek_lock) * receives


def parked_message_charges(
    size_bytes: int,
    *,
    parking_bytes: int = 0,
    returned_bytes: int = 0,
    subscriptions: int | None = None,
    is_peek_lock: bool = True,
) -> dict[Stage, Charges]:
    """One message that went through the backlog (C07).

    `parking_bytes` are those that it grows by when it is parked, `returned_bytes` those that it still has more when it
    is back. The syphon always receives with peek-lock; `is_peek_lock` is how the application receives.
    """
    receives = 1 if subscriptions is None else subscriptions
    return {
        Stage.SEND_TO_BACKLOG: send_charges(size_bytes + parking_bytes),
        Stage.RECEIVE_FROM_BACKLOG: receive_charges(size_bytes + parking_bytes),
        Stage.SEND_TO_PRIMARY: send_charges(size_bytes + returned_bytes),
        Stage.RECEIVE_FROM_PRIMARY: receive_charges(size_bytes + returned_bytes, is_peek_lock=is_peek_lock) * receives,
    }


def idle_syphon_charges(queues: int, hosts: int, poll_minutes: int, days: int) -> Charges:
    """Receives that find nothing (C05)."""
    polls = queues * hosts * (days * 1_440 // poll_minutes)
    return Charges(polls, polls)


def ping_charges(outage_seconds: int, interval_seconds: int, *, entities: int, clients: int, factories: int) -> Charges:
    """Of one outage, all of which fail (C06)."""
    count = outage_seconds // interval_seconds * entities * clients * factories
    return Charges(count, count)


def syphon_start_charges(queues: int, hosts: int, starts: int) -> Charges:
    """Peeks for deferred messages: a pump looks for them before it receives, at each of its starts."""
    return Charges(0, queues * hosts * starts)


def pairing_start_charges(processes: int, missing_queues: int) -> Charges:
    """Each process lists the backlog queues once; each missing one is created once (C08). No message is in it."""
    return Charges(0, processes + missing_queues)
