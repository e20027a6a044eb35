"""What the engine tells the program, in the order in which it happened.

Each event is a record; most name a session or link whose methods answer it. Begin, end, detach, close and the opening
of a connection are answered by the engine itself. What waits for the program: a SASL exchange (server) and
AttachRequested.

Every link that was ever announced is followed by exactly one LinkDetached, however it ends: by its own detach, with
its session, with the connection or with the socket. One place for cleaning up is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.link import Link
    from twinbus.amqp.performatives import Attach, Error, Open
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session


class Event:
    """Anything the engine tells."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class SaslInitReceived(Event):
    """A client chose a mechanism. Answer with `connection.send_sasl_outcome` or `send_sasl_challenge`."""

    mechanism: str
    initial_response: bytes | None
    hostname: str | None


@dataclass(slots=True, kw_only=True)
class SaslResponseReceived(Event):
    """A client answered our challenge."""

    response: bytes


@dataclass(slots=True, kw_only=True)
class SaslChallengeReceived(Event):
    """A server asks for more. Answer with `connection.send_sasl_response`."""

    challenge: bytes


@dataclass(slots=True, kw_only=True)
class SaslFailed(Event):
    """The exchange failed; the connection is finished."""

    code: int
    reason: str


@dataclass(slots=True, kw_only=True)
class ConnectionOpened(Event):
    """Both ends have sent open."""

    open: Open


@dataclass(slots=True, kw_only=True)
class ConnectionClosed(Event):
    """The connection has ended: nothing more comes from it."""

    error: Error | None
    """Why, if not in peace."""
    by_peer: bool
    """Its close has come, first or as the answer to ours; else it was cut off: for what it sent, silent, or gone."""


@dataclass(slots=True, kw_only=True)
class SessionBegun(Event):
    """Both ends have sent begin."""

    session: Session


@dataclass(slots=True, kw_only=True)
class SessionEnded(Event):
    """A session has ended, and its links with it."""

    session: Session
    error: Error | None


@dataclass(slots=True, kw_only=True)
class AttachRequested(Event):
    """The peer wants a link. Answer with `link.accept()` or `link.refuse(error)`."""

    link: Link
    attach: Attach


@dataclass(slots=True, kw_only=True)
class AttachConfirmed(Event):
    """The peer answered our attach. Where it refuses, source and target are missing and LinkDetached follows."""

    link: Link
    attach: Attach


@dataclass(slots=True, kw_only=True)
class LinkDetached(Event):
    """A link has ended."""

    link: Link
    closed: bool
    error: Error | None
    lost: list[OutgoingDelivery]
    """Messages we sent on it of which nobody will say any more what became: the peer may have them, or not."""


@dataclass(slots=True, kw_only=True)
class CreditGranted(Event):
    """More credit, or room in the session: `link.sendable` may have grown, and `link.drain_requested` may be set."""

    link: Sender


@dataclass(slots=True, kw_only=True)
class Drained(Event):
    """The peer's sender has used up or given back the credit we asked it to drain."""

    link: Receiver


@dataclass(slots=True, kw_only=True)
class DeliveriesReceived(Event):
    """Whole messages that arrived on one link, next to each other."""

    link: Receiver
    deliveries: list[IncomingDelivery]


@dataclass(slots=True, kw_only=True)
class DeliveryRejected(Event):
    """A message was too large: the engine dropped its bytes and rejected it."""

    link: Receiver
    size: int


@dataclass(slots=True, kw_only=True)
class SendsUpdated(Event):
    """The peer said what became of messages we sent on one link; all of them came to the same `state`."""

    link: Sender
    deliveries: list[OutgoingDelivery]
    state: object
    settled: bool
    """The peer has settled. If not, it waits for us to (`link.settle`): receiver-settle-mode second."""


@dataclass(slots=True, kw_only=True)
class ReceiptsUpdated(Event):
    """The peer said something of messages we received: it confirms our outcome, or gives up waiting for one."""

    link: Receiver
    deliveries: list[IncomingDelivery]
    state: object
    settled: bool
