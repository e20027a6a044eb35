"""Settlement: outcomes, disposition ranges, and the settle modes of both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine, split_frames
from twinbus.amqp import errors
from twinbus.amqp.codec.performatives import Disposition, End, Error, Flow, Transfer
from twinbus.amqp.delivery import OVERHEAD_BYTES
from twinbus.amqp.events import DeliveriesReceived, ReceiptsUpdated, SendsUpdated, SessionEnded
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Declared, Modified, Rejected, TransactionalState
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.states import ReceiverSettleMode, Role, SenderSettleMode
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import ULong

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery

OUTCOMES: list[Composite] = [
    ACCEPTED,
    RELEASED,
    Rejected(),
    Rejected(error=Error(condition="amqp:not-allowed", description="d" * 300, info={"why": "because"})),
    Modified(delivery_failed=True, undeliverable_here=True, message_annotations={"x": 1}),
    Declared(txn_id=b"txn"),
    TransactionalState(txn_id=b"txn", outcome=ACCEPTED),
]


def deliveries(pair: EnginePair) -> list[IncomingDelivery]:
    return [delivery for event in pair.server.events_of(DeliveriesReceived) for delivery in event.deliveries]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_reaches_the_sender(outcome: Composite) -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sent = sender.send(b"x")
    pair.exchange()
    receiver.settle(deliveries(pair), outcome)
    pair.exchange()
    update = pair.client.only_event(SendsUpdated)
    assert (update.deliveries, update.state, update.settled) == ([sent], outcome, True)
    assert sent.state == outcome
    assert sent.settled
    assert (sender.unsettled_count, receiver.unsettled_count) == (0, 0)


def test_adjacent_ids_are_settled_in_one_disposition_and_gaps_split_it() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sent = [sender.send(b"x") for _ in range(10)]
    pair.exchange()
    received = deliveries(pair)
    receiver.settle([*received[0:3], *received[5:9]], ACCEPTED)
    data = pair.server.connection.data_to_send()
    frames = [disposition for _, disposition, _ in split_frames(data) if isinstance(disposition, Disposition)]
    assert [(disposition.first, disposition.last) for disposition in frames] == [(0, 2), (5, 8)]
    assert all(
        disposition.settled and disposition.role is Role.RECEIVER and disposition.state == ACCEPTED
        for disposition in frames
    )
    pair.client.events += pair.client.connection.receive_data(data, now=0.0)
    assert pair.client.only_event(SendsUpdated).deliveries == [*sent[0:3], *sent[5:9]]  # in one event
    assert sender.unsettled_count == 3


def test_settling_a_second_time_sends_nothing() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.send(b"x")
    pair.exchange()
    received = deliveries(pair)
    receiver.settle(received)
    pair.exchange()
    receiver.settle(received, RELEASED)
    assert pair.server.connection.data_to_send() == b""
    assert receiver.unsettled_count == receiver.unanswered_count == 0
    assert pair.server.connection.unanswered_bytes == 0


def test_settling_deliveries_of_an_ended_session_sends_nothing() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.send(b"x")
    pair.exchange()
    sender.session.end()
    pair.exchange()
    receiver.settle(deliveries(pair))
    assert pair.server.connection.data_to_send() == b""
    assert pair.server.connection.unanswered_bytes == 0


def test_delivery_ids_wrap_around() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.session.unsettled_deliveries._next_id = 2**32 - 2  # noqa: SLF001
    sent = [sender.send(b"x") for _ in range(4)]
    assert [delivery.delivery_id for delivery in sent] == [2**32 - 2, 2**32 - 1, 0, 1]
    pair.exchange()
    receiver.settle(deliveries(pair))
    pair.exchange()
    assert all(delivery.settled and delivery.state is not None for delivery in sent)


def engine_with_sends(count: int) -> tuple[SingleEngine, Sender]:
    """Return a server that has sent `count` messages, and its sender."""
    engine = SingleEngine()
    link = engine.attached(role=Role.RECEIVER)
    assert isinstance(link, Sender)
    engine.send(
        Flow(next_incoming_id=0, incoming_window=999, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=99)
    )
    for _ in range(count):
        link.send(b"x")
    engine.collect()
    engine.end.clear_events()
    return engine, link


def test_a_disposition_range_settles_all_its_deliveries() -> None:
    engine, link = engine_with_sends(10)
    engine.send(Disposition(role=Role.RECEIVER, first=2, last=5, settled=True, state=ACCEPTED))
    assert [delivery.delivery_id for delivery in engine.end.only_event(SendsUpdated).deliveries] == [2, 3, 4, 5]
    assert link.unsettled_count == 6


def test_a_disposition_range_may_wrap_around() -> None:
    engine, link = engine_with_sends(2)
    link.session.unsettled_deliveries._next_id = 2**32 - 2  # noqa: SLF001
    for _ in range(2):
        link.send(b"x")
    engine.send(Disposition(role=Role.RECEIVER, first=2**32 - 2, last=1, settled=True, state=ACCEPTED))
    assert {delivery.delivery_id for delivery in engine.end.only_event(SendsUpdated).deliveries} == {
        2**32 - 2,
        2**32 - 1,
        0,
        1,
    }


def test_a_very_wide_disposition_range_visits_only_known_deliveries() -> None:
    engine, link = engine_with_sends(3)
    engine.send(Disposition(role=Role.RECEIVER, first=0, last=2**31 - 1, settled=True, state=ACCEPTED))
    assert len(engine.end.only_event(SendsUpdated).deliveries) == 3
    assert link.unsettled_count == 0


def test_a_disposition_range_that_runs_backwards_ends_the_session() -> None:
    engine, _ = engine_with_sends(3)
    engine.send(Disposition(role=Role.RECEIVER, first=2, last=1, settled=True, state=ACCEPTED))
    assert engine.condition(End) == errors.INVALID_FIELD
    assert len(engine.end.events_of(SessionEnded)) == 1


def test_unknown_delivery_ids_are_ignored() -> None:
    engine, _ = engine_with_sends(1)
    assert engine.send(Disposition(role=Role.RECEIVER, first=77, last=99, settled=True, state=ACCEPTED)) == []
    assert engine.send(Disposition(role=Role.SENDER, first=0, settled=True)) == []


def test_a_modified_state_is_not_shared_between_connections() -> None:
    states = []
    for _ in range(2):
        engine, _ = engine_with_sends(1)
        engine.send(Disposition(role=Role.RECEIVER, first=0, settled=True, state=Modified(delivery_failed=True)))
        state = engine.end.only_event(SendsUpdated).state
        assert isinstance(state, Modified)
        states.append(state.undeliverable_here)
        state.undeliverable_here = True
    assert states == [False, False]


def test_annotations_of_a_modified_outcome_may_have_ulong_keys() -> None:
    engine, _ = engine_with_sends(1)
    outcome = Modified(message_annotations={ULong(7): "seven", "x": 1})
    engine.send(Disposition(role=Role.RECEIVER, first=0, settled=True, state=outcome))
    assert engine.end.only_event(SendsUpdated).state == outcome


# --- settle modes -----------------------------------------------------------------------------------------------------


def test_in_mode_first_the_receivers_disposition_settles_the_delivery() -> None:
    engine, link = engine_with_sends(1)
    engine.sent.clear()
    engine.send(Disposition(role=Role.RECEIVER, first=0, settled=True, state=ACCEPTED))
    assert engine.end.only_event(SendsUpdated).settled
    assert link.session.unsettled_deliveries.outgoing == {}
    assert engine.sent == []


def test_in_mode_second_a_delivery_is_unsettled_until_the_sender_settles() -> None:
    engine, link = engine_with_sends(2)
    engine.send(Disposition(role=Role.RECEIVER, first=0, last=1, settled=False, state=ACCEPTED))
    update = engine.end.only_event(SendsUpdated)
    assert not update.settled
    assert len(link.session.unsettled_deliveries.outgoing) == 2
    link.settle(update.deliveries, ACCEPTED)
    engine.collect()
    reply = engine.last(Disposition)
    assert (reply.role, reply.first, reply.last, reply.settled, reply.state) == (Role.SENDER, 0, 1, True, ACCEPTED)
    assert link.session.unsettled_deliveries.outgoing == {}


def test_in_mode_second_a_receiver_settles_after_the_sender() -> None:
    pair = EnginePair()
    receiver, sender = pair.receiver(credit=5)
    sent = sender.send(b"x")
    pair.exchange()
    received = pair.client.only_event(DeliveriesReceived).deliveries
    receiver.settle(received, ACCEPTED, settled=False)
    pair.exchange()
    assert pair.server.only_event(SendsUpdated).deliveries == [sent]
    assert receiver.unsettled_count == 1
    assert receiver.unanswered_count == 0
    sender.settle([sent], ACCEPTED)
    pair.exchange()
    update = pair.client.only_event(ReceiptsUpdated)
    assert (update.deliveries, update.settled, update.state) == (received, True, ACCEPTED)
    assert receiver.unsettled_count == sender.unsettled_count == 0


def test_a_sender_in_mode_settled_gets_no_disposition() -> None:
    pair = EnginePair()
    sender = pair.session().attach_sender(
        "out",
        target=Target(address="q"),
        snd_settle_mode=SenderSettleMode.SETTLED,
        rcv_settle_mode=ReceiverSettleMode.FIRST,
    )
    pair.exchange()
    link = pair.server_link(sender)
    assert isinstance(link, Receiver)
    link.grant(5)
    pair.exchange()
    assert sender.send(b"x").settled
    pair.exchange()
    (received,) = deliveries(pair)
    assert received.settled
    link.settle([received])
    assert pair.server.connection.data_to_send() == b""


def test_the_settle_modes_of_a_client_are_echoed() -> None:
    pair = EnginePair()
    receiver = pair.session().attach_receiver(
        "in",
        source=Source(address="q"),
        snd_settle_mode=SenderSettleMode.UNSETTLED,
        rcv_settle_mode=ReceiverSettleMode.SECOND,
    )
    pair.exchange()
    assert receiver.remote_attach is not None
    assert receiver.remote_attach.snd_settle_mode == SenderSettleMode.UNSETTLED
    assert receiver.remote_attach.rcv_settle_mode == ReceiverSettleMode.SECOND


def test_a_delivery_settled_by_its_sender_no_longer_counts_as_unanswered() -> None:
    engine = SingleEngine()
    link = engine.attached()
    assert isinstance(link, Receiver)
    link.grant(5)
    engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=b"xyz")
    assert (link.unanswered_count, engine.connection.unanswered_bytes) == (1, 3 + OVERHEAD_BYTES)
    engine.send(Disposition(role=Role.SENDER, first=0, settled=True))
    assert engine.end.only_event(ReceiptsUpdated).settled
    assert (link.unanswered_count, link.unsettled_count, engine.connection.unanswered_bytes) == (0, 0, 0)
