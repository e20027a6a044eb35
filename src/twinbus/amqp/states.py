"""State tables of the protocol: connections, sessions, links and the SASL exchange.

AMQP is symmetric, and the state of each end depends only on the frames that this end has sent. So there is one table
per kind of object, and each object has two states from its table: one for the local end and one for the peer. The
twelve connection states of the specification are pairs of these states. A step that is not in the table is illegal: if
the peer takes such a step, the engine responds with an error; if our own program does, the engine raises LocalError.

One rule involves both ends and is not in the tables: after we have sent close, end or detach, all frames from the peer
are dropped until its own close, end or detach arrives.

Owns the tables. Must not know what the steps carry; `connection`, `session` and `link` take the steps.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import Final


class Role:
    """Role of one end of a link, with its boolean value on the wire."""

    SENDER: Final = False
    RECEIVER: Final = True


class SenderSettleMode(IntEnum):
    """Whether a sender sends its deliveries settled, unsettled, or both."""

    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


class ReceiverSettleMode(IntEnum):
    """Whether a receiver settles when it sends the outcome (first), or only after the sender has settled (second)."""

    FIRST = 0
    SECOND = 1


class Step(Enum):
    """Protocol steps that an end of a connection can take."""

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
    """State of one end of a connection."""

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
    """State of one end of a session."""

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
    """State of one end of a link. A link that is attached again under the same name is a new link."""

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
    """Frames of a SASL exchange."""

    MECHANISMS = auto()
    INIT = auto()
    CHALLENGE = auto()
    RESPONSE = auto()
    OUTCOME = auto()


class SaslState(Enum):
    """State of a SASL exchange. Server and client take turns, so they share one state."""

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
"""Steps that only a server takes; only a client takes the other steps."""
