"""The two charge models.

*Document's model* (the model of Microsoft's document on paired namespaces): sends, receives, and receives that return
no message are charged. *Operation model*: every call is charged, including completing, renewing, peeking and managing.

Owns the charges for messages, polls and pings in both models, and the names of the stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from twinbus.model.usage import units_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class Model(Enum):
    """The model that a bill is based on."""

    OPERATION = "operation"
    DOCUMENT = "document"


class Stage(Enum):
    """The purpose of a charge. The first four values are the stages of a parked message."""

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
"""Additional size of a returned message: the properties that record when the message was parked and for how long."""
PARKED_STAGES = (
    Stage.SEND_TO_BACKLOG,
    Stage.RECEIVE_FROM_BACKLOG,
    Stage.SEND_TO_PRIMARY,
    Stage.RECEIVE_FROM_PRIMARY,
)


@dataclass(frozen=True, slots=True)
class Charges:
    """Charges in both models."""

    document: int = 0
    operation: int = 0

    def __add__(self, other: Self) -> Charges:
        return Charges(self.document + other.document, self.operation + other.operation)

    def __sub__(self, other: Self) -> Charges:
        return Charges(self.document - other.document, self.operation - other.operation)

    def __mul__(self, times: int) -> Charges:
        return Charges(self.document * times, self.operation * times)

    def for_model(self, model: Model) -> int:
        """Return the charges in one model."""
        return self.operation if model is Model.OPERATION else self.document


NO_CHARGES = Charges()


def sum_charges(charges: Mapping[Stage, Charges]) -> Charges:
    """Return the sum of all stages."""
    return sum(charges.values(), NO_CHARGES)


def send_charges(size_bytes: int) -> Charges:
    """Return the charges for sending one message."""
    units = units_of(size_bytes)
    return Charges(units, units)


def receive_charges(size_bytes: int, *, is_peek_lock: bool = True) -> Charges:
    """Return the charges for receiving one message. With peek-lock, the completion is an additional operation."""
    units = units_of(size_bytes)
    return Charges(units, units + is_peek_lock)


def direct_message_charges(size_bytes: int, *, subscriptions: int | None = None, is_peek_lock: bool = True) -> Charges:
    """Return the charges for one message to a queue, or to a topic with `subscriptions` matching subscriptions."""
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
    """Return the charges for one parked message by stage.

    `parking_bytes` is the additional size of the parked message, `returned_bytes` the additional size of the message
    returned to the primary. The syphon always receives with peek-lock; `is_peek_lock` applies to the application.
    """
    receives = 1 if subscriptions is None else subscriptions
    return {
        Stage.SEND_TO_BACKLOG: send_charges(size_bytes + parking_bytes),
        Stage.RECEIVE_FROM_BACKLOG: receive_charges(size_bytes + parking_bytes),
        Stage.SEND_TO_PRIMARY: send_charges(size_bytes + returned_bytes),
        Stage.RECEIVE_FROM_PRIMARY: receive_charges(size_bytes + returned_bytes, is_peek_lock=is_peek_lock) * receives,
    }


def idle_syphon_charges(queues: int, hosts: int, poll_minutes: int, days: int) -> Charges:
    """Return the charges for the polls of an idle syphon, which return no messages."""
    polls = queues * hosts * (days * 1_440 // poll_minutes)
    return Charges(polls, polls)


def ping_charges(outage_seconds: int, interval_seconds: int, *, entities: int, clients: int, factories: int) -> Charges:
    """Return the charges for the pings during one outage, all of which fail."""
    count = outage_seconds // interval_seconds * entities * clients * factories
    return Charges(count, count)


def syphon_start_charges(queues: int, hosts: int, starts: int) -> Charges:
    """Return the charges for the peek for deferred messages that each pump makes on startup."""
    return Charges(0, queues * hosts * starts)


def pairing_start_charges(processes: int, missing_queues: int) -> Charges:
    """Return the charges for listing the backlog queues once per process, and for creating missing backlog queues."""
    return Charges(0, processes + missing_queues)
