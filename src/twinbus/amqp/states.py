"""What may happen next: the protocol's states as tables.

AMQP is symmetric, and each end of a conversation moves by its own steps alone. So there is one table per kind of
thing, and two states by it: what *we* have sent and what *they* have sent. The twelve states the specification draws
for a connection are pairs of these. A step that has no cell is illegal: from the peer it is answered with an error,
from our own program it raises LocalError.

One rule spans the two ends and is not in the tables: once we have sent close, end or detach, what the peer still had
on its way is dropped until its own close, end or detach arrives.

Owns: the tables. Knows nothing of what a step carries; `connection`, `session` and `link` take the steps.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import Final


class Role:
    """Which end of a link, as its boolean on the wire."""

    SENDER: Final = False
    RECEIVER: Final = True


class SenderSettleMode(IntEnum):
    """Whether a sender settles before it hears of the outcome."""

    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


class ReceiverSettleMode(IntEnum):
    """Whether a receiver settles with its outcome, or only after the sender has."""

    FIRST = 0
    SECOND = 1


class Step(Enum):
    """What an end can do."""

    HEADER = auto()
    OPEN = auto()
    BEGIN = auto()
    ATTACH = auto()
    FLOW = auto()
    TRANSFER = auto()
    DISPOSITION = auto()
    DETACH = auto()
    END = auto()
    CLOSE = auto()


class ConnectionState(Enum):
    """How far one end of a connection has come."""

    START = auto()
    HEADER_EXCHANGED = auto()
    OPEN = auto()
    CLOSED = auto()


CONNECTION_TRANSITIONS: Final = {
    (ConnectionState.START, Step.HEADER): ConnectionState.HEADER_EXCHANGED,
    (ConnectionState.HEADER_EXCHANGED, Step.OPEN): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.BEGIN): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.ATTACH): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.FLOW): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.TRANSFER): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.DISPOSITION): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.DETACH): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.END): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.CLOSE): ConnectionState.CLOSED,
}


class SessionState(Enum):
    """How far one end of a session has come."""

    UNMAPPED = auto()
    MAPPED = auto()
    ENDED = auto()


SESSION_TRANSITIONS: Final = {
    (SessionState.UNMAPPED, Step.BEGIN): SessionState.MAPPED,
    (SessionState.MAPPED, Step.ATTACH): SessionState.MAPPED,
    (SessionState.MAPPED, Step.FLOW): SessionState.MAPPED,
    (SessionState.MAPPED, Step.TRANSFER): SessionState.MAPPED,
    (SessionState.MAPPED, Step.DISPOSITION): SessionState.MAPPED,
    (SessionState.MAPPED, Step.DETACH): SessionState.MAPPED,
    (SessionState.MAPPED, Step.END): SessionState.ENDED,
}


class LinkState(Enum):
    """How far one end of a link has come. A link that is attached again by its name is a new link here."""

    UNATTACHED = auto()
    ATTACHED = auto()
    DETACHED = auto()


LINK_TRANSITIONS: Final = {
    (LinkState.UNATTACHED, Step.ATTACH): LinkState.ATTACHED,
    (LinkState.ATTACHED, Step.FLOW): LinkState.ATTACHED,
    (LinkState.ATTACHED, Step.TRANSFER): LinkState.ATTACHED,
    (LinkState.ATTACHED, Step.DETACH): LinkState.DETACHED,
}


class SaslStep(Enum):
    """The frames of a SASL exchange."""

    MECHANISMS = auto()
    INIT = auto()
    CHALLENGE = auto()
    RESPONSE = auto()
    OUTCOME = auto()


class SaslState(Enum):
    """Whose turn it is, and for what. This exchange is strictly in turns, so both ends share one state."""

    AWAITING_MECHANISMS = auto()
    AWAITING_INIT = auto()
    AWAITING_ANSWER = auto()
    AWAITING_RESPONSE = auto()
    DONE = auto()


SASL_TRANSITIONS: Final = {
    (SaslState.AWAITING_MECHANISMS, SaslStep.MECHANISMS): SaslState.AWAITING_INIT,
    (SaslState.AWAITING_INIT, SaslStep.INIT): SaslState.AWAITING_ANSWER,
    (SaslState.AWAITING_ANSWER, SaslStep.CHALLENGE): SaslState.AWAITING_RESPONSE,
    (SaslState.AWAITING_RESPONSE, SaslStep.RESPONSE): SaslState.AWAITING_ANSWER,
    (SaslState.AWAITING_ANSWER, SaslStep.OUTCOME): SaslState.DONE,
}

SASL_FROM_SERVER: Final = frozenset({SaslStep.MECHANISMS, SaslStep.CHALLENGE, SaslStep.OUTCOME})
"""The steps that only a server takes; the others only a client."""
