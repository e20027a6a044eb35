"""Settlement in every combination of settle modes, with twinbus and proton in both roles.

A message's body names the outcome with which its receiver settles it. A sender in mode settled gets no outcomes; in
mode mixed it gets some. A receiver in mode second waits for the sender to settle first.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from proton import Condition, Delivery, Message, symbol
from proton.reactor import LinkOption

from tests.interop.proton_peers import ProtonClient, ProtonEvent, ProtonPeer, ProtonServer, run, running
from tests.interop.twinbus_peers import RecordingHandler, body_of, connected, payload_of, serving
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.events import (
    AttachRequested,
    CreditGranted,
    DeliveriesReceived,
    ReceiptsUpdated,
    SendsUpdated,
)
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.states import ReceiverSettleMode, SenderSettleMode
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from proton import Connection, Link
    from proton.reactor import Container

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.events import Event
    from twinbus.amqp.sender import Sender

MODES = [
    pytest.param(snd, rcv, id=f"{snd.name}-{rcv.name}".lower())
    for snd, rcv in product(SenderSettleMode, ReceiverSettleMode)
]
OUTCOMES: dict[str, Composite] = {
    "accepted": ACCEPTED,
    "rejected": Rejected(error=Error(condition="amqp:not-allowed", description="no, thank you")),
    "released": RELEASED,
    "modified": Modified(delivery_failed=True, undeliverable_here=True, message_annotations={"x-opt-why": "tired"}),
}
PRE_SETTLED = "pre-settled"
BODIES = [*OUTCOMES, PRE_SETTLED]


def is_pre_settled(body: str, snd: SenderSettleMode) -> bool:
    return snd is SenderSettleMode.SETTLED or (snd is SenderSettleMode.MIXED and body == PRE_SETTLED)


def bodies_for(snd: SenderSettleMode) -> list[str]:
    return BODIES if snd is SenderSettleMode.MIXED else list(OUTCOMES)


def unsettled_bodies(snd: SenderSettleMode) -> list[str]:
    return [body for body in bodies_for(snd) if not is_pre_settled(body, snd)]


# --- twinbus ----------------------------------------------------------------------------------------------------------


class TwinbusSender(RecordingHandler):
    """Sends each body once, and records the outcomes."""

    def __init__(self, snd: SenderSettleMode) -> None:
        super().__init__()
        self.snd = snd
        self.outcomes: dict[str, object] = {}
        self.bodies: dict[bytes, str] = {}

    def attach(self, rcv: ReceiverSettleMode) -> None:
        session = self.peer.connection.begin_session()
        session.attach_sender("petitions", target=Target(address="q"), snd_settle_mode=self.snd, rcv_settle_mode=rcv)

    def handle_event(self, event: Event) -> None:
        super().handle_event(event)
        if isinstance(event, AttachRequested):
            event.link.accept()
        elif isinstance(event, CreditGranted) and not self.bodies:
            self.send_all(event.link)
        elif isinstance(event, SendsUpdated):
            for delivery in event.deliveries:
                self.outcomes[self.bodies[delivery.tag]] = event.state
            if not event.settled:
                event.link.settle(event.deliveries, None)

    def send_all(self, link: Sender) -> None:
        for body in bodies_for(self.snd):
            settled = is_pre_settled(body, self.snd) if self.snd is SenderSettleMode.MIXED else None
            delivery = link.send(payload_of(body), settled=settled)
            self.bodies[delivery.tag] = body


class TwinbusReceiver(RecordingHandler):
    """Settles each message with the outcome that its body names."""

    def __init__(self, rcv: ReceiverSettleMode) -> None:
        super().__init__()
        self.rcv = rcv
        self.pre_settled: dict[str, bool] = {}
        self.confirmed: list[str] = []

    def attach(self, snd: SenderSettleMode) -> None:
        session = self.peer.connection.begin_session()
        link = session.attach_receiver(
            "judgements", source=Source(address="q"), snd_settle_mode=snd, rcv_settle_mode=self.rcv
        )
        link.grant(len(BODIES))

    def handle_event(self, event: Event) -> None:
        super().handle_event(event)
        if isinstance(event, AttachRequested):
            event.link.accept()
            assert isinstance(event.link, Receiver)
            event.link.grant(len(BODIES))
        elif isinstance(event, DeliveriesReceived):
            for delivery in event.deliveries:
                body = body_of(delivery.payload)
                self.pre_settled[body] = delivery.settled
                if not delivery.settled:
                    event.link.settle([delivery], OUTCOMES[body], settled=self.rcv is ReceiverSettleMode.FIRST)
        elif isinstance(event, ReceiptsUpdated) and event.settled:
            self.confirmed += [body_of(delivery.payload) for delivery in event.deliveries]

    def has_all(self, snd: SenderSettleMode) -> bool:
        expected = unsettled_bodies(snd) if self.rcv is ReceiverSettleMode.SECOND else []
        return sorted(self.confirmed) == sorted(expected) and list(self.pre_settled) == bodies_for(snd)


# --- proton -----------------------------------------------------------------------------------------------------------


class Modes(LinkOption):
    def __init__(self, snd: SenderSettleMode, rcv: ReceiverSettleMode) -> None:
        self.snd = snd
        self.rcv = rcv

    def apply(self, link: Link) -> None:
        link.snd_settle_mode, link.rcv_settle_mode = self.snd, self.rcv


def to_twinbus_outcome(delivery: Delivery) -> Composite:
    """Return the outcome that proton received."""
    remote = delivery.remote
    if remote.type == Delivery.REJECTED:
        assert remote.condition is not None
        return Rejected(error=Error(condition=remote.condition.name, description=remote.condition.description))
    if remote.type == Delivery.MODIFIED:
        return Modified(
            delivery_failed=remote.failed,
            undeliverable_here=remote.undeliverable,
            message_annotations={str(key): value for key, value in (remote.annotations or {}).items()},
        )
    assert remote.type in {Delivery.ACCEPTED, Delivery.RELEASED}
    return ACCEPTED if remote.type == Delivery.ACCEPTED else RELEASED


class ProtonSettlingSender(ProtonPeer):
    """Sends each body once, and records the outcomes."""

    def prepare(self, snd: SenderSettleMode) -> None:
        self.snd = snd
        self.outcomes: dict[str, object] = {}
        self.bodies: dict[str, str] = {}

    def on_sendable(self, event: ProtonEvent) -> None:
        if self.bodies:
            return
        for body in bodies_for(self.snd):
            delivery = event.sender.send(Message(body=body))
            self.bodies[delivery.tag] = body
            if self.snd is SenderSettleMode.MIXED and is_pre_settled(body, self.snd):
                delivery.settle()
        self.close_when_done(event)

    def record_outcome(self, event: ProtonEvent) -> None:
        self.outcomes[self.bodies[event.delivery.tag]] = to_twinbus_outcome(event.delivery)
        if not event.delivery.settled:  # the receiver waits for the sender to settle
            event.delivery.settle()
        self.close_when_done(event)

    on_accepted = on_rejected = on_released = record_outcome

    def close_when_done(self, event: ProtonEvent) -> None:
        """Hook for clients, which close when all outcomes have arrived."""


class ProtonSettlingReceiver(ProtonPeer):
    """Settles each message with the outcome that its body names."""

    def prepare(self, snd: SenderSettleMode, rcv: ReceiverSettleMode) -> None:
        self.snd = snd
        self.rcv = rcv
        self.pre_settled: dict[str, bool] = {}
        self.confirmed: list[str] = []
        self.bodies: dict[str, str] = {}

    def on_message(self, event: ProtonEvent) -> None:
        body, delivery = event.message.body, event.delivery
        self.bodies[delivery.tag] = body
        self.pre_settled[body] = delivery.settled
        if not delivery.settled:
            self.give_outcome(delivery, body)
        if delivery.settled or self.rcv is ReceiverSettleMode.FIRST:
            delivery.settle()
        self.close_when_done(event)

    def give_outcome(self, delivery: Delivery, body: str) -> None:
        if body == "rejected":
            delivery.local.condition = Condition("amqp:not-allowed", "no, thank you")
        elif body == "modified":
            delivery.local.failed = delivery.local.undeliverable = True
            delivery.local.annotations = {symbol("x-opt-why"): "tired"}
        delivery.update(getattr(Delivery, body.upper()))

    def on_settled(self, event: ProtonEvent) -> None:
        self.confirmed.append(self.bodies[event.delivery.tag])
        event.delivery.settle()
        self.close_when_done(event)

    def has_all(self) -> bool:
        expected = unsettled_bodies(self.snd) if self.rcv is ReceiverSettleMode.SECOND else []
        return sorted(self.confirmed) == sorted(expected) and list(self.pre_settled) == bodies_for(self.snd)

    def close_when_done(self, event: ProtonEvent) -> None:
        """Hook for clients, which close when all messages are settled."""


class ProtonSenderClient(ProtonSettlingSender, ProtonClient):
    def __init__(self, port: int, snd: SenderSettleMode, rcv: ReceiverSettleMode) -> None:
        super().__init__(port)
        self.prepare(snd)
        self.modes = Modes(snd, rcv)

    def open_links(self, container: Container, connection: Connection) -> None:
        container.create_sender(connection, "q", options=self.modes)

    def on_link_opened(self, event: ProtonEvent) -> None:
        self.modes_answered = (event.link.remote_snd_settle_mode, event.link.remote_rcv_settle_mode)

    def close_when_done(self, event: ProtonEvent) -> None:
        if self.outcomes.keys() == set(unsettled_bodies(self.snd)):
            event.connection.close()


class ProtonReceiverClient(ProtonSettlingReceiver, ProtonClient):
    def __init__(self, port: int, snd: SenderSettleMode, rcv: ReceiverSettleMode) -> None:
        super().__init__(port, auto_accept=False)
        self.prepare(snd, rcv)

    def open_links(self, container: Container, connection: Connection) -> None:
        container.create_receiver(connection, "q", options=Modes(self.snd, self.rcv)).flow(len(BODIES))

    def close_when_done(self, event: ProtonEvent) -> None:
        if self.has_all():
            event.connection.close()


class ProtonSenderServer(ProtonSettlingSender, ProtonServer):
    def __init__(self, snd: SenderSettleMode) -> None:
        super().__init__()
        self.prepare(snd)


class ProtonReceiverServer(ProtonSettlingReceiver, ProtonServer):
    def __init__(self, snd: SenderSettleMode, rcv: ReceiverSettleMode) -> None:
        super().__init__(auto_accept=False)
        self.prepare(snd, rcv)

    def on_link_opening(self, event: ProtonEvent) -> None:
        super().on_link_opening(event)
        event.link.flow(len(BODIES))


# --- tests -----------------------------------------------------------------------------------------------------------


def expected_outcomes(snd: SenderSettleMode) -> dict[str, Composite]:
    return {body: OUTCOMES[body] for body in unsettled_bodies(snd)}


def expected_pre_settled(snd: SenderSettleMode) -> dict[str, bool]:
    return {body: is_pre_settled(body, snd) for body in bodies_for(snd)}


@pytest.mark.parametrize(("snd", "rcv"), MODES)
async def test_a_proton_client_receives_the_outcomes_of_our_server(
    snd: SenderSettleMode, rcv: ReceiverSettleMode
) -> None:
    async with serving(lambda: TwinbusReceiver(rcv)) as server:
        sender = ProtonSenderClient(server.port, snd, rcv)
        await run(sender)
        receiver = await server.accepted()
    assert sender.failures == []
    assert sender.modes_answered == (snd, rcv)
    assert sender.outcomes == expected_outcomes(snd)
    assert isinstance(receiver, TwinbusReceiver)
    assert receiver.pre_settled == expected_pre_settled(snd)
    assert receiver.has_all(snd)


@pytest.mark.parametrize(("snd", "rcv"), MODES)
async def test_our_server_receives_the_outcomes_of_a_proton_client(
    snd: SenderSettleMode, rcv: ReceiverSettleMode
) -> None:
    async with serving(lambda: TwinbusSender(snd)) as server:
        receiver = ProtonReceiverClient(server.port, snd, rcv)
        await run(receiver)
        sender = await server.accepted()
    assert receiver.failures == []
    assert receiver.pre_settled == expected_pre_settled(snd)
    assert receiver.has_all()
    assert isinstance(sender, TwinbusSender)
    assert sender.outcomes == expected_outcomes(snd)


@pytest.mark.parametrize(("snd", "rcv"), MODES)
async def test_our_client_receives_the_outcomes_of_a_proton_server(
    snd: SenderSettleMode, rcv: ReceiverSettleMode
) -> None:
    receiver = ProtonReceiverServer(snd, rcv)
    async with running(receiver) as port, connected(TwinbusSender(snd), port) as sender:
        sender.attach(rcv)
        await sender.wait_until(lambda: sender.bodies and sender.outcomes.keys() == expected_outcomes(snd).keys())
    assert receiver.failures == []
    assert receiver.pre_settled == expected_pre_settled(snd)
    assert receiver.has_all()


@pytest.mark.parametrize(("snd", "rcv"), MODES)
async def test_a_proton_server_receives_the_outcomes_of_our_client(
    snd: SenderSettleMode, rcv: ReceiverSettleMode
) -> None:
    sender = ProtonSenderServer(snd)
    async with running(sender) as port, connected(TwinbusReceiver(rcv), port) as receiver:
        receiver.attach(snd)
        await receiver.wait_until(lambda: receiver.has_all(snd))
    assert sender.failures == []
    assert sender.outcomes == expected_outcomes(snd)
    assert receiver.pre_settled == expected_pre_settled(snd)
