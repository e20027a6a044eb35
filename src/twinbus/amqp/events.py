"""Events that the engine reports to the program, in the order in which they happened.

Each event is a record. Most events have a session or link as a field, and the program responds by calling the methods
of this session or link. The engine itself responds to open, begin, end, detach and close. Only SASL exchanges (on a
server) and AttachRequested need a response from the program.

For every link that was announced to the program, exactly one LinkDetached follows, whether the link ends by its own
detach, with its session, with the connection or with the socket. So the program needs only one place for cleanup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.amqp.codec.performatives import Attach, Error, Open
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.link import Link
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session


class Event:
    """Base class of all events."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class SaslInitReceived(Event):
    """The client chose a SASL mechanism. Respond with `connection.send_sasl_outcome` or `send_sasl_challenge`."""

    mechanism: str
    initial_response: bytes | None
    hostname: str | None


@dataclass(slots=True, kw_only=True)
class SaslResponseReceived(Event):
    """The client responded to our SASL challenge."""

    response: bytes


@dataclass(slots=True, kw_only=True)
class SaslChallengeReceived(Event):
    """The server sent a SASL challenge. Respond with `connection.send_sasl_response`."""

    challenge: bytes


@dataclass(slots=True, kw_only=True)
class SaslFailed(Event):
    """The SASL exchange failed; the connection is finished."""

    code: int
    reason: str


@dataclass(slots=True, kw_only=True)
class ConnectionOpened(Event):
    """Both ends have sent open."""

    open: Open


@dataclass(slots=True, kw_only=True)
class ConnectionClosed(Event):
    """The connection has ended; no further events follow."""

    error: Error | None
    """Reason, or None after a clean close."""
    by_peer: bool
    """True if the peer's close arrived; False if the connection was cut off by an error, a timeout or a lost socket."""


@dataclass(slots=True, kw_only=True)
class SessionBegun(Event):
    """Both ends have sent begin."""

    session: Session


@dataclass(slots=True, kw_only=True)
class SessionEnded(Event):
    """A session has ended together with its links."""

    session: Session
    error: Error | None


@dataclass(slots=True, kw_only=True)
class AttachRequested(Event):
    """The peer asks to attach a link. Respond with `link.accept()` or `link.refuse(error)`."""

    link: Link
    attach: Attach


@dataclass(slots=True, kw_only=True)
class AttachConfirmed(Event):
    """The peer responded to our attach. If the peer refuses, source and target are missing and LinkDetached follows."""

    link: Link
    attach: Attach


@dataclass(slots=True, kw_only=True)
class LinkDetached(Event):
    """A link has ended."""

    link: Link
    closed: bool
    error: Error | None
    lost: list[OutgoingDelivery]
    """Messages that we sent on the link and whose outcome will never arrive; the peer may have received them or not."""


@dataclass(slots=True, kw_only=True)
class CreditGranted(Event):
    """The link's credit, the session's window or the peer's drain request changed.

    Check `link.sendable` and `link.drain_requested`.
    """

    link: Sender


@dataclass(slots=True, kw_only=True)
class Drained(Event):
    """The peer's sender has used up or given back its credit, as our drain requested."""

    link: Receiver


@dataclass(slots=True, kw_only=True)
class DeliveriesReceived(Event):
    """Complete messages arrived on one link, one after another."""

    link: Receiver
    deliveries: list[IncomingDelivery]


@dataclass(slots=True, kw_only=True)
class DeliveryRejected(Event):
    """The engine rejected a message that was too large and dropped its bytes."""

    link: Receiver
    size: int


@dataclass(slots=True, kw_only=True)
class SendsUpdated(Event):
    """The peer sent a disposition for messages we sent on one link; all of them have the same `state`."""

    link: Sender
    deliveries: list[OutgoingDelivery]
    state: object
    settled: bool
    """True if the peer has settled; False if the peer waits for `link.settle` (receiver-settle-mode second)."""


@dataclass(slots=True, kw_only=True)
class ReceiptsUpdated(Event):
    """The peer sent a disposition for messages we received: the peer confirms our outcome or no longer waits for it."""

    link: Receiver
    deliveries: list[IncomingDelivery]
    state: object
    settled: bool
