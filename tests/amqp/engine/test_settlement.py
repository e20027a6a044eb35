"""What became of messages: outcomes, ranges, and the settle modes of both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine, split_frames
from twinbus.amqp import errors
from twinbus.amqp.delivery import OVERHEAD_BYTES
from twinbus.amqp.events import DeliveriesReceived, ReceiptsUpdated, SendsUpdated, SessionEnded
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Declared, Modified, Rejected, TransactionalState
from twinbus.amqp.performatives import Disposition, End, Error, Flow, Transfer
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.states import ReceiverSettleMode, Role, SenderSettleMode
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import ULong

if TYPE_CHECKING:
    from twinbus.amqp.composite import Composite
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
    return [one for event in pair.server.events_of(DeliveriesReceived) for one in event.deliveries]


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


def test_neighbours_go_in_one_frame_and_gaps_are_kept() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sent = [sender.send(b"x") for _ in range(10)]
    pair.exchange()
    got = deliveries(pair)
    receiver.settle([*got[0:3], *got[5:9]], ACCEPTED)
    data = pair.server.connection.data_to_send()
    frames = [one for _, one, _ in split_frames(data) if isinstance(one, Disposition)]
    assert [(one.first, one.last) for one in frames] == [(0, 2), (5, 8)]
    assert all(one.settled and one.role is Role.RECEIVER and one.state == ACCEPTED for one in frames)
    pair.client.events += pair.client.connection.receive_data(data, now=0.0)
    assert pair.client.only_event(SendsUpdated).deliveries == [*sent[0:3], *sent[5:9]]  # told together
    assert sender.unsettled_count == 3


def test_settling_twice_says_nothing_the_second_time() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.send(b"x")
    pair.exchange()
    got = deliveries(pair)
    receiver.settle(got)
    pair.exchange()
    receiver.settle(got, RELEASED)
    assert pair.server.connection.data_to_send() == b""
    assert receiver.unsettled_count == receiver.unanswered_count == 0
    assert pair.server.connection.unanswered_bytes == 0


def test_settling_what_is_gone_with_its_session_says_nothing() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.send(b"x")
    pair.exchange()
    sender.session.end()
    pair.exchange()
    receiver.settle(deliveries(pair))
    assert pair.server.connection.data_to_send() == b""
    assert pair.server.connection.unanswered_bytes == 0


def test_ids_wrap_around() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.session.unsettled_deliveries._next_id = 2**32 - 2  # noqa: SLF001
    sent = [sender.send(b"x") for _ in range(4)]
    assert [one.delivery_id for one in sent] == [2**32 - 2, 2**32 - 1, 0, 1]
    pair.exchange()
    receiver.settle(deliveries(pair))
    pair.exchange()
    assert all(one.settled and one.state is not None for one in sent)


def sending(count: int) -> tuple[SingleEngine, Sender]:
    """A server that has sent `count` messages to a hand-made peer."""
    lone = SingleEngine()
    link = lone.attached(role=Role.RECEIVER)
    assert isinstance(link, Sender)
    lone.send(
        Flow(next_incoming_id=0, incoming_window=999, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=99)
    )
    for _ in range(count):
        link.send(b"x")
    lone.collect()
    lone.end.clear_events()
    return lone, link


def test_a_range_from_the_peer_is_taken_whole() -> None:
    lone, link = sending(10)
    lone.send(Disposition(role=Role.RECEIVER, first=2, last=5, settled=True, state=ACCEPTED))
    assert [one.delivery_id for one in lone.end.only_event(SendsUpdated).deliveries] == [2, 3, 4, 5]
    assert link.unsettled_count == 6


def test_a_range_over_a_wrap_is_taken_whole() -> None:
    lone, link = sending(2)
    link.session.unsettled_deliveries._next_id = 2**32 - 2  # noqa: SLF001
    for _ in range(2):
        link.send(b"x")
    lone.send(Disposition(role=Role.RECEIVER, first=2**32 - 2, last=1, settled=True, state=ACCEPTED))
    assert {one.delivery_id for one in lone.end.only_event(SendsUpdated).deliveries} == {2**32 - 2, 2**32 - 1, 0, 1}


def test_an_absurdly_wide_range_costs_what_we_hold() -> None:
    lone, link = sending(3)
    lone.send(Disposition(role=Role.RECEIVER, first=0, last=2**31 - 1, settled=True, state=ACCEPTED))
    assert len(lone.end.only_event(SendsUpdated).deliveries) == 3
    assert link.unsettled_count == 0


def test_a_range_that_runs_backwards_ends_the_session() -> None:
    lone, _ = sending(3)
    lone.send(Disposition(role=Role.RECEIVER, first=2, last=1, settled=True, state=ACCEPTED))
    assert lone.condition(End) == errors.INVALID_FIELD
    assert len(lone.end.events_of(SessionEnded)) == 1


def test_unknown_ids_are_passed_over() -> None:
    lone, _ = sending(1)
    assert lone.send(Disposition(role=Role.RECEIVER, first=77, last=99, settled=True, state=ACCEPTED)) == []
    assert lone.send(Disposition(role=Role.SENDER, first=0, settled=True)) == []


def test_a_state_changed_by_one_program_is_not_seen_by_another() -> None:
    states = []
    for _ in range(2):
        lone, _ = sending(1)
        lone.send(Disposition(role=Role.RECEIVER, first=0, settled=True, state=Modified(delivery_failed=True)))
        state = lone.end.only_event(SendsUpdated).state
        assert isinstance(state, Modified)
        states.append(state.undeliverable_here)
        state.undeliverable_here = True
    assert states == [False, False]


def test_annotations_in_an_outcome_may_have_numbers_for_keys() -> None:
    lone, _ = sending(1)
    outcome = Modified(message_annotations={ULong(7): "seven", "x": 1})
    lone.send(Disposition(role=Role.RECEIVER, first=0, settled=True, state=outcome))
    assert lone.end.only_event(SendsUpdated).state == outcome


# --- settle modes -----------------------------------------------------------------------------------------------------


def test_mode_first_is_over_with_the_receivers_word() -> None:
    lone, link = sending(1)
    lone.sent.clear()
    lone.send(Disposition(role=Role.RECEIVER, first=0, settled=True, state=ACCEPTED))
    assert lone.end.only_event(SendsUpdated).settled
    assert link.session.unsettled_deliveries.outgoing == {}
    assert lone.sent == []


def test_mode_second_waits_for_the_senders_word() -> None:
    lone, link = sending(2)
    lone.send(Disposition(role=Role.RECEIVER, first=0, last=1, settled=False, state=ACCEPTED))
    update = lone.end.only_event(SendsUpdated)
    assert not update.settled
    assert len(link.session.unsettled_deliveries.outgoing) == 2
    link.settle(update.deliveries, ACCEPTED)
    lone.collect()
    reply = lone.last(Disposition)
    assert (reply.role, reply.first, reply.last, reply.settled, reply.state) == (Role.SENDER, 0, 1, True, ACCEPTED)
    assert link.session.unsettled_deliveries.outgoing == {}


def test_in_mode_second_we_settle_as_a_receiver_when_the_sender_has() -> None:
    pair = EnginePair()
    receiver, sender = pair.receiver(credit=5)
    sent = sender.send(b"x")
    pair.exchange()
    got = pair.client.only_event(DeliveriesReceived).deliveries
    receiver.settle(got, ACCEPTED, settled=False)
    pair.exchange()
    assert pair.server.only_event(SendsUpdated).deliveries == [sent]
    assert receiver.unsettled_count == 1
    assert receiver.unanswered_count == 0
    sender.settle([sent], ACCEPTED)
    pair.exchange()
    update = pair.client.only_event(ReceiptsUpdated)
    assert (update.deliveries, update.settled, update.state) == (got, True, ACCEPTED)
    assert receiver.unsettled_count == sender.unsettled_count == 0


def test_a_sender_in_mode_settled_asks_for_no_outcome() -> None:
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
    (got,) = deliveries(pair)
    assert got.settled
    link.settle([got])
    assert pair.server.connection.data_to_send() == b""


def test_the_modes_a_client_asks_for_are_echoed() -> None:
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


def test_a_sender_that_gives_up_waiting_takes_the_message_back_from_the_account() -> None:
    lone = SingleEngine()
    link = lone.attached()
    assert isinstance(link, Receiver)
    link.grant(5)
    lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=b"xyz")
    assert (link.unanswered_count, lone.connection.unanswered_bytes) == (1, 3 + OVERHEAD_BYTES)
    lone.send(Disposition(role=Role.SENDER, first=0, settled=True))
    assert lone.end.only_event(ReceiptsUpdated).settled
    assert (link.unanswered_count, link.unsettled_count, lone.connection.unanswered_bytes) == (0, 0, 0)
