"""Deliveries: messages in one or several frames, aborted messages, size limits, and malformed transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine, split_frames
from twinbus.amqp import errors
from twinbus.amqp.codec.frames import frame
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from twinbus.amqp.errors import LocalError
from twinbus.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    DeliveriesReceived,
    DeliveryRejected,
    LinkDetached,
    SendsUpdated,
    SessionEnded,
)
from twinbus.amqp.outcomes import ACCEPTED, Rejected, TransactionalState
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.settings import Limits
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Target

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite


def receiving_engine(limits: Limits | None = None, credit: int = 100) -> SingleEngine:
    """A server with a receiver attached and credit granted."""
    engine = SingleEngine(limits)
    link = engine.attached()
    assert isinstance(link, Receiver)
    link.grant(credit)
    engine.collect()
    engine.end.clear_events()
    return engine


def test_messages_in_one_read_are_reported_in_one_event() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    for number in range(50):
        sender.send(b"%d" % number, tag=b"tag-%d" % number, message_format=0x80013700)
    pair.exchange()
    event = pair.server.only_event(DeliveriesReceived)
    assert event.link is receiver
    assert [delivery.payload for delivery in event.deliveries] == [b"%d" % number for number in range(50)]
    assert [delivery.tag for delivery in event.deliveries] == [b"tag-%d" % number for number in range(50)]
    assert {delivery.message_format for delivery in event.deliveries} == {0x80013700}


def test_messages_of_two_links_are_reported_in_order_of_arrival() -> None:
    pair = EnginePair()
    session = pair.session()
    first, _ = pair.sender(session=session, name="1")
    second, _ = pair.sender(session=session, name="2")
    for link in (first, second, second, first):
        link.send(b"x")
    pair.exchange()
    order = [(event.link.name, len(event.deliveries)) for event in pair.server.events_of(DeliveriesReceived)]
    assert order == [("1", 1), ("2", 2), ("1", 1)]


@pytest.mark.parametrize("size", [0, 1, 470, 480, 490, 500, 512, 1024, 100_000])
def test_a_message_larger_than_a_frame_is_split_into_several(size: int) -> None:
    pair = EnginePair(server=Limits(max_frame_size=512))
    sender, _ = pair.sender()
    payload = bytes(number % 251 for number in range(size))
    sender.send(payload)
    sent = pair.client.connection.data_to_send()
    at = 0
    while at < len(sent):  # no frame exceeds the peer's max-frame-size
        frame_size = int.from_bytes(sent[at : at + 4], "big")
        assert frame_size <= 512
        at += frame_size
    pair.server.events += pair.server.connection.receive_data(sent, now=0.0)
    (delivery,) = pair.server.only_event(DeliveriesReceived).deliveries
    assert delivery.payload == payload


def test_a_large_message_arrives_through_a_small_window() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512, incoming_window=2))
    sender, _ = pair.sender()
    sender.send(bytes(20_000))
    sender.send(b"next")
    pair.exchange()
    assert [
        len(delivery.payload) for event in pair.server.events_of(DeliveriesReceived) for delivery in event.deliveries
    ] == [
        20_000,
        4,
    ]


def test_a_transactional_state_travels_with_the_message() -> None:
    pair = EnginePair()
    sender, _ = pair.sender()
    sender.send(b"x", state=TransactionalState(txn_id=b"txn"))
    pair.exchange()
    (delivery,) = pair.server.only_event(DeliveriesReceived).deliveries
    assert delivery.state == TransactionalState(txn_id=b"txn")


def test_continuation_frames_need_no_delivery_id_and_no_tag() -> None:
    engine = receiving_engine()
    engine.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"t", more=True), payload=b"one ")
    engine.send(Transfer(handle=0, more=True), payload=b"two ")
    engine.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"t"), payload=b"three")
    (delivery,) = engine.end.only_event(DeliveriesReceived).deliveries
    assert (delivery.delivery_id, delivery.payload) == (5, b"one two three")


def test_the_settled_flag_of_any_frame_applies_to_the_message() -> None:
    engine = receiving_engine()
    engine.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"t", more=True), payload=b"one")
    engine.send(Transfer(handle=0, settled=True), payload=b"two")
    (delivery,) = engine.end.only_event(DeliveriesReceived).deliveries
    assert delivery.settled


def test_frames_of_two_links_may_interleave() -> None:
    engine = receiving_engine()
    second = engine.attached(handle=1, name="second")
    second.grant(10)  # type: ignore[attr-defined]
    engine.end.clear_events()
    engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True), payload=b"a1")
    engine.send(Transfer(handle=1, delivery_id=1, delivery_tag=b"b", more=True), payload=b"b1")
    engine.send(Transfer(handle=0), payload=b"a2")
    engine.send(Transfer(handle=1), payload=b"b2")
    payloads = [delivery.payload for event in engine.end.events_of(DeliveriesReceived) for delivery in event.deliveries]
    assert payloads == [b"a1a2", b"b1b2"]


# --- aborted ----------------------------------------------------------------------------------------------------------


def test_an_aborted_message_is_not_delivered() -> None:
    engine = receiving_engine(credit=10)
    (session,) = engine.connection.sessions.values()
    engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True), payload=b"half")
    engine.send(Transfer(handle=0, delivery_id=0, aborted=True))
    engine.send(Transfer(handle=0, delivery_id=1, delivery_tag=b"b"), payload=b"whole")
    assert [delivery.payload for delivery in engine.end.only_event(DeliveriesReceived).deliveries] == [b"whole"]
    assert list(session.unsettled_deliveries.incoming) == [1]
    assert session.links["link", Role.RECEIVER].credit == 8


def test_a_message_waiting_for_the_window_can_be_aborted() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512, incoming_window=2))
    sender, _ = pair.sender()
    aborted = sender.send(bytes(5000))
    assert sender.abort(aborted)
    sender.send(b"next")
    pair.exchange()
    assert [delivery.payload for delivery in pair.server.only_event(DeliveriesReceived).deliveries] == [b"next"]
    assert sender.unsettled_count == 1


def test_a_partly_sent_message_is_aborted_before_the_next_message() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512, incoming_window=1))
    sender, receiver = pair.sender(credit=10)
    large = sender.send(bytes(2000))
    sender.send(b"next")
    assert sender.abort(large)
    pair.exchange()
    assert [delivery.payload for delivery in pair.server.only_event(DeliveriesReceived).deliveries] == [b"next"]
    assert not pair.server.events_of(SessionEnded)
    assert receiver.credit == 8


def test_queued_messages_of_a_detached_link_leave_no_gap_in_the_delivery_ids() -> None:
    pair = EnginePair(server=Limits(incoming_window=1))
    session = pair.session()
    first, _ = pair.sender(session=session, name="1")
    second, _ = pair.sender(session=session, name="2")
    lost = [first.send(b"%d" % number) for number in range(4)]
    first.detach()
    second.send(b"other")
    pair.exchange()
    ids = [delivery.delivery_id for event in pair.server.events_of(DeliveriesReceived) for delivery in event.deliveries]
    assert ids == [0, 1]
    assert pair.client.only_event(LinkDetached).lost == lost
    assert not any(delivery.settled for delivery in lost)


def test_unsettled_messages_of_an_ended_session_are_returned_in_order() -> None:
    pair = EnginePair(server=Limits(incoming_window=2))
    sender, _ = pair.sender()
    lost = [sender.send(b"%d" % number) for number in range(5)]
    sender.session.end()
    pair.exchange()
    assert pair.client.only_event(LinkDetached).lost == lost
    assert [delivery.delivery_id for delivery in lost] == [0, 1, None, None, None]


def test_only_the_first_frame_of_a_message_has_a_delivery_id_and_tag() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512))
    sender, _ = pair.sender()
    sender.send(bytes(1200))
    frames = [
        transfer
        for _, transfer, _ in split_frames(pair.client.connection.data_to_send())
        if isinstance(transfer, Transfer)
    ]
    assert [(transfer.delivery_id, transfer.delivery_tag is None) for transfer in frames] == [
        (0, False),
        (None, True),
        (None, True),
    ]


@pytest.mark.parametrize("wrong", [{"tag": bytes(33)}, {"message_format": -1}, {"message_format": 2**32}])
def test_an_invalid_send_is_refused_and_uses_no_credit(wrong: dict[str, Any]) -> None:
    pair = EnginePair()
    sender, _ = pair.sender(credit=5)
    with pytest.raises(LocalError):
        sender.send(b"x", **wrong)
    assert (sender.credit, sender.unsettled_count, pair.client.connection.data_to_send()) == (5, 0, b"")


@pytest.mark.parametrize("enforced", [True, False])
def test_a_transfer_on_a_link_that_is_not_accepted_yet_detaches_the_link(*, enforced: bool) -> None:
    engine = SingleEngine(Limits(enforce_credit=enforced)).begun()
    attach = Attach(name="in", handle=0, role=Role.SENDER, initial_delivery_count=0, target=Target())
    events = engine.send(attach, Transfer(handle=0, delivery_id=0, delivery_tag=b"t"))
    assert [type(event) for event in events] == [AttachRequested]
    assert engine.condition(Detach) == errors.TRANSFER_LIMIT_EXCEEDED


def test_queued_bytes_counts_messages_waiting_for_the_window() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512, incoming_window=1))
    sender, _ = pair.sender()
    pair.client.connection.data_to_send()
    sender.send(bytes(2000))
    assert 2000 <= pair.client.connection.queued_bytes < 2200


def test_a_message_already_sent_cannot_be_aborted() -> None:
    pair = EnginePair()
    sender, _ = pair.sender()
    delivery = sender.send(b"gone")
    assert not sender.abort(delivery)
    pair.exchange()
    assert len(pair.server.events_of(DeliveriesReceived)) == 1


# --- too large --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1001, 60_000, 500_000])
def test_a_message_that_is_too_large_is_rejected_and_the_link_stays_attached(size: int) -> None:
    pair = EnginePair(server=Limits(max_message_size=1000))
    sender, receiver = pair.sender(credit=10)
    sender.send(bytes(size))
    sender.send(bytes(1000))
    pair.exchange()
    assert pair.server.only_event(DeliveryRejected).size == size
    (update,) = pair.client.events_of(SendsUpdated)
    assert isinstance(update.state, Rejected)
    assert update.state.error is not None
    assert update.state.error.condition == errors.MESSAGE_SIZE_EXCEEDED
    assert "1000" in (update.state.error.description or "")
    assert [len(delivery.payload) for delivery in pair.server.only_event(DeliveriesReceived).deliveries] == [1000]
    assert receiver.credit == 8


def test_a_settled_message_that_is_too_large_detaches_the_link() -> None:
    pair = EnginePair(server=Limits(max_message_size=1000))
    sender, _ = pair.sender()
    sender.send(bytes(1001), settled=True)
    pair.exchange()
    detached = pair.client.only_event(LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == errors.MESSAGE_SIZE_EXCEEDED
    assert not pair.client.events_of(SessionEnded)


def test_too_many_bytes_of_unfinished_messages_close_the_connection() -> None:
    engine = receiving_engine(Limits(max_assembling_bytes=10_000))
    for handle in range(1, 4):
        engine.attached(handle=handle, name=str(handle)).grant(1)  # type: ignore[attr-defined]
    for number in range(3):
        engine.send(Transfer(handle=number, delivery_id=number, delivery_tag=b"t", more=True), payload=bytes(4000))
    assert engine.condition(Close) == errors.RESOURCE_LIMIT_EXCEEDED
    assert len(engine.end.events_of(ConnectionClosed)) == 1


def test_finished_aborted_and_detached_messages_free_their_assembly_bytes() -> None:
    engine = receiving_engine(Limits(max_assembling_bytes=10_000, max_message_size=7000))
    for number in range(20):
        engine.send(
            Transfer(handle=0, delivery_id=number, delivery_tag=b"t", more=True, settled=True), payload=bytes(4000)
        )
        ending = Transfer(handle=0, aborted=True) if number % 2 else Transfer(handle=0, settled=True)
        engine.send(ending, payload=b"" if number % 2 else bytes(1000))
    assert not engine.end.events_of(ConnectionClosed)
    engine.send(Transfer(handle=0, delivery_id=99, delivery_tag=b"t", more=True), payload=bytes(6000))
    engine.send(Detach(handle=0, closed=True))
    link = engine.attached(handle=0, name="again")
    link.grant(1)  # type: ignore[attr-defined]
    engine.send(Transfer(handle=0, delivery_id=100, delivery_tag=b"t", more=True), payload=bytes(6000))
    assert not engine.end.events_of(ConnectionClosed)


# --- invalid frames ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(handle=0),
        Transfer(handle=0, delivery_id=0),
        Transfer(handle=0, delivery_tag=b"t"),
        Transfer(handle=0, delivery_id=0, delivery_tag=bytes(33)),
        Transfer(handle=0, more=True),
    ],
)
def test_a_delivery_without_a_valid_id_and_tag_ends_the_session(transfer: Composite) -> None:
    engine = receiving_engine()
    engine.send(transfer, payload=b"x")
    assert engine.condition(End) == errors.INVALID_FIELD
    assert not engine.end.events_of(ConnectionClosed)


def test_a_new_delivery_within_an_unfinished_one_ends_the_session() -> None:
    engine = receiving_engine()
    engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), payload=b"x")
    engine.send(Transfer(handle=0, delivery_id=1, delivery_tag=b"u"), payload=b"x")
    assert engine.condition(End) == errors.INVALID_FIELD


def test_a_transfer_on_a_link_whose_peer_is_the_receiver_ends_the_session() -> None:
    engine = SingleEngine()
    engine.attached(role=Role.RECEIVER)
    engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"))
    assert engine.condition(End) == errors.UNATTACHED_HANDLE


def test_a_transfer_may_have_any_legal_descriptor() -> None:
    engine = receiving_engine()
    usual = Transfer(handle=0, delivery_id=0, delivery_tag=b"a").encode()
    for number, descriptor in enumerate(
        (b"\x53\x14", b"\x80" + (0x14).to_bytes(8, "big"), b"\xa3\x12amqp:transfer:list")
    ):
        fields = Transfer(handle=0, delivery_id=number, delivery_tag=b"a").encode()[len(usual[:3]) :]
        engine.feed_bytes(frame(0, b"\x00" + descriptor + fields + b"payload"))
    assert [
        delivery.payload for event in engine.end.events_of(DeliveriesReceived) for delivery in event.deliveries
    ] == [b"payload"] * 3


def test_other_performatives_may_have_any_legal_descriptor() -> None:
    engine = SingleEngine().opened()
    begin = Begin(next_outgoing_id=0, incoming_window=5, outgoing_window=5).encode()
    engine.feed_bytes(frame(0, b"\x00\xa3\x0famqp:begin:list" + begin[3:]))
    assert len(engine.connection.sessions) == 1
    flow = Flow(incoming_window=5, next_outgoing_id=0, outgoing_window=5, echo=True).encode()
    engine.feed_bytes(frame(0, b"\x00\x80" + bytes(7) + b"\x13" + flow[3:]))
    assert engine.last(Flow).handle is None
    disposition = Disposition(role=True, first=0, settled=True, state=ACCEPTED).encode()
    engine.feed_bytes(frame(0, b"\x00\x80" + bytes(7) + b"\x15" + disposition[3:]))
    assert not engine.end.events_of(ConnectionClosed)


@pytest.mark.parametrize(
    "body",
    [
        b"\x40",
        b"\x00\x53\x10\x40",
        b"\x00\x53\x99\x45",
        b"\x00\x53\x70\x45",
        b"\x00\x53\x24\x45",
        b"\x00",
        b"\x00\x53\x14",
        b"\x00\x53\x14\xc0\xff\x04",
        b"\x00\x53\x15\xc0\xff\x04",
        b"\x00\x53\x13\x45",
        Open(container_id="x").encode() + b"tail",
        End().encode() + b"tail",
    ],
)
def test_a_frame_that_cannot_be_decoded_closes_the_connection(body: bytes) -> None:
    engine = SingleEngine().begun()
    engine.feed_bytes(frame(0, body))
    assert engine.condition(Close) == errors.DECODE_ERROR
    assert not engine.end.only_event(ConnectionClosed).by_peer
