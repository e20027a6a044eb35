"""Random program that uses the engine: answers every event in a random legal way, and checks the order of events.

The program answers the events of a read in order, even if the link or session of an event has ended meanwhile. Between
reads it takes legal steps of its own.

Owns: the answers, and the rules for events: each link ends once, and no event follows the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.fuzz.finding import require
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.errors import DETACH_FORCED, NOT_FOUND, FrameTooLarge, LocalError
from twinbus.amqp.events import (
    AttachConfirmed,
    AttachRequested,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    DeliveryRejected,
    Drained,
    Event,
    LinkDetached,
    ReceiptsUpdated,
    SaslChallengeReceived,
    SaslFailed,
    SaslInitReceived,
    SaslResponseReceived,
    SendsUpdated,
    SessionBegun,
    SessionEnded,
)
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected, TransactionalState
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import SaslCode
from twinbus.amqp.sender import Sender
from twinbus.amqp.states import ConnectionState, SessionState
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    import collections
    import random
    from collections.abc import Callable, Sequence

    from tests.fuzz.corpus import LinkName
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.connection import Connection
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.link import Link
    from twinbus.amqp.session import Session

ERROR: Final = Error(condition=DETACH_FORCED, description="by lot")
OUTCOMES: Final[tuple[Composite | None, ...]] = (
    ACCEPTED,
    ACCEPTED,
    ACCEPTED,
    RELEASED,
    Rejected(error=ERROR),
    Modified(delivery_failed=True, message_annotations={"reason": "by lot"}),
    TransactionalState(txn_id=b"\x00\x00\x00\x01", outcome=ACCEPTED),
    Rejected(error=Error(condition=DETACH_FORCED, description="d" * 300)),
    Rejected(error=Error(condition=DETACH_FORCED, description="d" * 600)),
    None,
)
STATES: Final = (
    *[None] * 8,
    TransactionalState(txn_id=b"\x00\x00\x00\x01"),
    TransactionalState(txn_id=b"t" * 400),
    TransactionalState(txn_id=b"t" * 600),
)
PAYLOADS: Final = (b"", b"\x00\x53\x75\xa0\x05hello", b"\x00\x53\x77\xa1\x01x", b"\x00\x53\x75\xb0" + b"\x00" * 2500)
CREDITS: Final = (0, 1, 2, 10, 1000, 2**32 - 1)


class RandomProgram:
    """Handler that answers events at random."""

    def __init__(
        self,
        connection: Connection,
        rng: random.Random,
        seen: collections.Counter[str],
        answered: Sequence[LinkName],
    ) -> None:
        """Count events in `seen`; `answered` are the links that the peer will answer."""
        self.connection = connection
        self.rng = rng
        self.seen = seen
        self.answered = answered
        self.links: set[Link] = set()
        """Links that were announced and whose end was not reported yet."""
        self.sessions: set[Session] = set()
        self.is_over = False
        self.unsettled: list[IncomingDelivery] = []
        self.sent: list[OutgoingDelivery] = []
        self.postponed_answers: list[Callable[[], None]] = []
        """Answers to send later."""

    def random_below(self, count: int) -> int:
        return int(self.rng.random() * count)

    def start(self) -> None:
        """As a client without SASL, usually begin and attach without waiting for the peer."""
        if self.answered and self.connection.local_state is ConnectionState.OPEN and self.rng.random() < 0.8:
            self.attach_answered()

    def attach_answered(self) -> None:
        channels = 1 + max(link.channel for link in self.answered) % 4
        try:
            sessions = [self.connection.begin_session() for _ in range(channels)]
        except LocalError:  # the peer allows no more channels
            return
        for link in self.answered:
            self.attach(sessions[link.channel % channels], link.name, is_sender=link.is_receiver)
        self.answered = ()

    def attach(self, session: Session, name: str, *, is_sender: bool) -> None:
        if (name, not is_sender) in session.links:
            return
        try:
            if is_sender:
                link: Link = session.attach_sender(
                    name, target=Target(address="queue"), rcv_settle_mode=self.random_below(2)
                )
            else:
                link = session.attach_receiver(
                    name, source=Source(address="queue"), snd_settle_mode=self.random_below(3)
                )
        except LocalError:  # the peer allows no more handles, or its frames are too small
            return
        self.links.add(link)
        if isinstance(link, Receiver):
            self.grant(link)

    # --- events -------------------------------------------------------------------------------------------------------

    def handle_events(self, events: list[Event]) -> None:
        """Record and answer events."""
        for event in events:
            kind = type(event)
            self.seen[kind.__name__] += 1
            require(not self.is_over, "nothing is told after the last event")
            EVENT_HANDLERS[kind](self, event)

    def track_link(self, link: Link) -> None:
        require(link in self.links, "nothing is told of a link before it is announced or after it is over")

    def on_closed(self, event: ConnectionClosed) -> None:
        self.seen[f"closed by {'the peer' if event.by_peer else 'us'}: {condition_of(event)}"] += 1
        require(not self.links, "every link is told to be over before its connection is")
        require(not self.sessions, "every session is told to be over before its connection is")
        self.is_over = True

    def on_sasl_failed(self, _event: SaslFailed) -> None:
        require(self.connection.is_finished, "a connection is finished when its SASL exchange has failed")

    def on_sasl(self, event: SaslInitReceived | SaslResponseReceived) -> None:
        if self.rng.random() < 0.2:
            self.postponed_answers.append(lambda: self.answer_sasl(event))
        else:
            self.answer_sasl(event)

    def answer_sasl(self, event: SaslInitReceived | SaslResponseReceived) -> None:
        choice = self.random_below(20)
        if choice < 17:
            self.connection.send_sasl_outcome()
        elif choice < 19:
            self.connection.send_sasl_challenge(b"and " + (getattr(event, "response", None) or b"?")[:16])
        else:
            self.connection.send_sasl_outcome(SaslCode.AUTH)

    def on_challenge(self, event: SaslChallengeReceived) -> None:
        self.connection.send_sasl_response(event.challenge[:16])

    def on_opened(self, _event: ConnectionOpened) -> None:
        if self.connection.local_state is not ConnectionState.OPEN:
            return
        if self.rng.random() < 0.02:
            self.connection.close(ERROR)
        elif self.answered:
            self.attach_answered()

    def on_begun(self, event: SessionBegun) -> None:
        require(event.session not in self.sessions, "a session begins once")
        self.sessions.add(event.session)
        if self.rng.random() < 0.1 and self.can_send(event.session):
            self.attach(event.session, "ours", is_sender=self.rng.random() < 0.5)

    def on_ended(self, event: SessionEnded) -> None:
        self.sessions.discard(event.session)
        require(
            all(link.session is not event.session for link in self.links),
            "every link is told to be over before its session is",
        )

    def on_attach(self, event: AttachRequested) -> None:
        require(event.link not in self.links, "a link is announced once")
        self.links.add(event.link)
        if self.rng.random() < 0.1:
            self.postponed_answers.append(lambda: self.answer_attach(event.link))
        else:
            self.answer_attach(event.link)

    def answer_attach(self, link: Link) -> None:
        if self.rng.random() < 0.1:
            link.refuse(Error(condition=NOT_FOUND, description="by lot"))
            return
        link.accept()
        if isinstance(link, Receiver):
            self.grant(link)

    def grant(self, link: Receiver) -> None:
        amount = CREDITS[self.random_below(len(CREDITS))]
        choice = self.random_below(4)
        if choice < 2:
            link.keep_credit(amount)
        else:
            link.grant(amount, drain=choice == 2, echo=self.rng.random() < 0.5)

    def on_confirmed(self, event: AttachConfirmed) -> None:
        self.track_link(event.link)

    def on_detached(self, event: LinkDetached) -> None:
        self.track_link(event.link)
        self.links.remove(event.link)
        require(not event.link.unsettled_count, "nothing is unsettled on a link that is over")

    def on_credit(self, event: CreditGranted) -> None:
        self.track_link(event.link)
        self.pump(event.link)

    def pump(self, link: Sender) -> None:
        is_hasty = link.is_attached and self.rng.random() < 0.2  # sends although the peer's window is closed
        for _ in range(min(link.credit if is_hasty else link.sendable, self.random_below(4))):
            payload = PAYLOADS[self.random_below(len(PAYLOADS))]
            choice = self.random_below(8)
            settled = None if choice < 5 else choice == 5
            try:
                delivery = link.send(payload, settled=settled, state=STATES[self.random_below(len(STATES))])
            except FrameTooLarge:  # the state alone exceeds the peer's max-frame-size
                continue
            if choice < 2:
                link.abort(delivery)
            self.sent.append(delivery)
            if not (link.credit if is_hasty else link.sendable):
                break
        if link.drain_requested:
            link.drained()

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        self.track_link(event.link)
        require(event.deliveries, "an event of deliveries has some")
        choice = self.random_below(6)
        if choice == 0:
            self.unsettled += event.deliveries
        else:
            self.settle(event.link, event.deliveries, settled=choice > 1)

    def settle(self, link: Receiver, deliveries: list[IncomingDelivery], *, settled: bool) -> None:
        try:
            link.settle(deliveries, OUTCOMES[self.random_below(len(OUTCOMES))], settled=settled)
        except FrameTooLarge:  # the outcome exceeds the peer's max-frame-size
            link.settle(deliveries, RELEASED, settled=settled)

    def on_rejected(self, event: DeliveryRejected) -> None:
        self.track_link(event.link)

    def on_drained(self, event: Drained) -> None:
        self.track_link(event.link)
        if self.rng.random() < 0.3:
            self.grant(event.link)

    def on_sends(self, event: SendsUpdated) -> None:
        for delivery in event.deliveries:
            self.track_link(delivery.link)
            require(delivery.settled or not event.settled, "a delivery is settled when it is told to be")
        if not event.settled:
            event.link.settle(event.deliveries, ACCEPTED)

    def on_receipts(self, event: ReceiptsUpdated) -> None:
        for delivery in event.deliveries:
            self.track_link(delivery.link)

    # --- own steps ----------------------------------------------------------------------------------------------------

    def can_send(self, session: Session) -> bool:
        return session.local_state is SessionState.MAPPED and self.connection.local_state is ConnectionState.OPEN

    def act_randomly(self) -> None:
        """Between two reads, send postponed answers and sometimes take a step of its own."""
        if self.postponed_answers and self.rng.random() < 0.5:
            self.postponed_answers.pop(0)()
        if self.rng.random() < 0.7 or self.connection.is_finished:
            return
        if self.unsettled and self.rng.random() < 0.5:
            late = self.unsettled.pop(self.random_below(len(self.unsettled)))
            self.settle(late.link, [late], settled=self.rng.random() < 0.7)
        choice = self.random_below(40)
        if choice < 20:
            self.act_on_link(choice)
        elif choice < 22 and self.connection.local_state is ConnectionState.OPEN:
            self.connection.close(ERROR if choice == 20 else None)
        elif choice < 25 and self.sessions:
            session = next(iter(self.connection.sessions.values()), None)
            if session is not None and self.can_send(session):
                session.end(ERROR if choice == 22 else None)

    def answer_late(self) -> None:
        """After the end, send the postponed answers, which must have no effect."""
        for postponed in self.postponed_answers:
            postponed()
        for late in self.unsettled:
            late.link.settle([late])

    def act_on_link(self, choice: int) -> None:
        link = next((link for session in self.connection.sessions.values() for link in session.links.values()), None)
        if link is None or not link.is_attached:
            return
        if choice < 4:
            link.detach(closed=choice > 0, error=ERROR if choice > 1 else None)
        elif isinstance(link, Receiver):
            if choice < 12:
                self.grant(link)
            else:
                link.drain()
        elif isinstance(link, Sender):
            if choice < 12:
                self.pump(link)
            elif self.sent:
                delivery = self.sent.pop()
                delivery.link.abort(delivery)


def condition_of(event: ConnectionClosed) -> str:
    if event.error is None:
        return "in peace"
    return "with an error" if event.by_peer else event.error.condition


EVENT_HANDLERS: Final[dict[type[Event], Callable[[RandomProgram, Any], None]]] = {
    AttachConfirmed: RandomProgram.on_confirmed,
    AttachRequested: RandomProgram.on_attach,
    ConnectionClosed: RandomProgram.on_closed,
    ConnectionOpened: RandomProgram.on_opened,
    CreditGranted: RandomProgram.on_credit,
    DeliveriesReceived: RandomProgram.on_deliveries,
    DeliveryRejected: RandomProgram.on_rejected,
    Drained: RandomProgram.on_drained,
    LinkDetached: RandomProgram.on_detached,
    ReceiptsUpdated: RandomProgram.on_receipts,
    SaslChallengeReceived: RandomProgram.on_challenge,
    SaslFailed: RandomProgram.on_sasl_failed,
    SaslInitReceived: RandomProgram.on_sasl,
    SaslResponseReceived: RandomProgram.on_sasl,
    SendsUpdated: RandomProgram.on_sends,
    SessionBegun: RandomProgram.on_begun,
    SessionEnded: RandomProgram.on_ended,
}
