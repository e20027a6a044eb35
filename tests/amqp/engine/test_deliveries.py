"""Messages from end to end: in one frame or many, whole, aborted or too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine, split_frames
from twinbus.amqp import errors
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
from twinbus.amqp.frames import frame
from twinbus.amqp.outcomes import ACCEPTED, Rejected, TransactionalState
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.settings import Limits
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Target

if TYPE_CHECKING:
    from twinbus.amqp.composite import Composite


def listening(limits: Limits | None = None, credit: int = 100) -> SingleEngine:
    """A server with a receiver attached and credit granted."""
    lone = SingleEngine(limits)
    link = lone.attached()
    assert isinstance(link, Receiver)
    link.grant(credit)
    lone.collect()
    lone.end.clear_events()
    return lone


def test_messages_that_arrive_together_are_told_together() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    for number in range(50):
        sender.send(b"%d" % number, tag=b"tag-%d" % number, message_format=0x80013700)
    pair.exchange()
    event = pair.server.only_event(DeliveriesReceived)
    assert event.link is receiver
    assert [one.payload for one in event.deliveries] == [b"%d" % number for number in range(50)]
    assert [one.tag for one in event.deliveries] == [b"tag-%d" % number for number in range(50)]
    assert {one.message_format for one in event.deliveries} == {0x80013700}


def test_messages_of_two_links_are_told_in_the_order_of_their_coming() -> None:
    pair = EnginePair()
    session = pair.session()
    first, _ = pair.sender(session=session, name="1")
    second, _ = pair.sender(session=session, name="2")
    for link in (first, second, second, first):
        link.send(b"x")
    pair.exchange()
    told = [(event.link.name, len(event.deliveries)) for event in pair.server.events_of(DeliveriesReceived)]
    assert told == [("1", 1), ("2", 2), ("1", 1)]


@pytest.mark.parametrize("size", [0, 1, 470, 480, 490, 500, 512, 1024, 100_000])
def test_a_message_larger_than_a_frame_goes_in_several(size: int) -> None:
    pair = EnginePair(server=Limits(max_frame_size=512))
    sender, _ = pair.sender()
    payload = bytes(number % 251 for number in range(size))
    sender.send(payload)
    sent = pair.client.connection.data_to_send()
    at = 0
    while at < len(sent):  # no frame is larger than the peer takes
        frame_size = int.from_bytes(sent[at : at + 4], "big")
        assert frame_size <= 512
        at += frame_size
    pair.server.events += pair.server.connection.receive_data(sent, now=0.0)
    (delivery,) = pair.server.only_event(DeliveriesReceived).deliveries
    assert delivery.payload == payload


def test_a_large_message_passes_a_small_window() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512, incoming_window=2))
    sender, _ = pair.sender()
    sender.send(bytes(20_000))
    sender.send(b"next")
    pair.exchange()
    assert [len(one.payload) for event in pair.server.events_of(DeliveriesReceived) for one in event.deliveries] == [
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


def test_continuation_frames_need_no_id_and_no_tag() -> None:
    lone = listening()
    lone.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"t", more=True), payload=b"one ")
    lone.send(Transfer(handle=0, more=True), payload=b"two ")
    lone.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"t"), payload=b"three")
    (delivery,) = lone.end.only_event(DeliveriesReceived).deliveries
    assert (delivery.delivery_id, delivery.payload) == (5, b"one two three")


def test_settled_said_by_any_frame_holds_for_the_message() -> None:
    lone = listening()
    lone.send(Transfer(handle=0, delivery_id=5, delivery_tag=b"t", more=True), payload=b"one")
    lone.send(Transfer(handle=0, settled=True), payload=b"two")
    (delivery,) = lone.end.only_event(DeliveriesReceived).deliveries
    assert delivery.settled


def test_frames_of_two_links_may_mingle() -> None:
    lone = listening()
    second = lone.attached(handle=1, name="second")
    second.grant(10)  # type: ignore[attr-defined]
    lone.end.clear_events()
    lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True), payload=b"a1")
    lone.send(Transfer(handle=1, delivery_id=1, delivery_tag=b"b", more=True), payload=b"b1")
    lone.send(Transfer(handle=0), payload=b"a2")
    lone.send(Transfer(handle=1), payload=b"b2")
    told = [one.payload for event in lone.end.events_of(DeliveriesReceived) for one in event.deliveries]
    assert told == [b"a1a2", b"b1b2"]


# --- aborted ----------------------------------------------------------------------------------------------------------


def test_an_aborted_message_never_happened() -> None:
    lone = listening(credit=10)
    (session,) = lone.connection.sessions.values()
    lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True), payload=b"half")
    lone.send(Transfer(handle=0, delivery_id=0, aborted=True))
    lone.send(Transfer(handle=0, delivery_id=1, delivery_tag=b"b"), payload=b"whole")
    assert [one.payload for one in lone.end.only_event(DeliveriesReceived).deliveries] == [b"whole"]
    assert list(session.unsettled_deliveries.incoming) == [1]
    assert session.links["link", Role.RECEIVER].credit == 8


def test_a_message_that_waits_for_the_window_can_be_taken_back() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512, incoming_window=2))
    sender, _ = pair.sender()
    delivery = sender.send(bytes(5000))
    assert sender.abort(delivery)
    sender.send(b"next")
    pair.exchange()
    assert [one.payload for one in pair.server.only_event(DeliveriesReceived).deliveries] == [b"next"]
    assert sender.unsettled_count == 1


def test_a_message_taken_back_half_sent_is_aborted_before_the_next_one() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512, incoming_window=1))
    sender, receiver = pair.sender(credit=10)
    large = sender.send(bytes(2000))
    sender.send(b"next")
    assert sender.abort(large)
    pair.exchange()
    assert [one.payload for one in pair.server.only_event(DeliveriesReceived).deliveries] == [b"next"]
    assert not pair.server.events_of(SessionEnded)
    assert receiver.credit == 8


def test_messages_lost_in_the_queue_with_their_link_leave_no_gap_in_the_ids() -> None:
    pair = EnginePair(server=Limits(incoming_window=1))
    session = pair.session()
    first, _ = pair.sender(session=session, name="1")
    second, _ = pair.sender(session=session, name="2")
    lost = [first.send(b"%d" % number) for number in range(4)]
    first.detach()
    second.send(b"other")
    pair.exchange()
    ids = [one.delivery_id for event in pair.server.events_of(DeliveriesReceived) for one in event.deliveries]
    assert ids == [0, 1]
    assert pair.client.only_event(LinkDetached).lost == lost
    assert not any(one.settled for one in lost)


def test_messages_lost_with_their_session_are_handed_back_in_order() -> None:
    pair = EnginePair(server=Limits(incoming_window=2))
    sender, _ = pair.sender()
    lost = [sender.send(b"%d" % number) for number in range(5)]
    sender.session.end()
    pair.exchange()
    assert pair.client.only_event(LinkDetached).lost == lost
    assert [one.delivery_id for one in lost] == [0, 1, None, None, None]


def test_only_the_first_frame_of_a_message_says_which_it_is() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512))
    sender, _ = pair.sender()
    sender.send(bytes(1200))
    frames = [one for _, one, _ in split_frames(pair.client.connection.data_to_send()) if isinstance(one, Transfer)]
    assert [(one.delivery_id, one.delivery_tag is None) for one in frames] == [(0, False), (None, True), (None, True)]


@pytest.mark.parametrize("wrong", [{"tag": bytes(33)}, {"message_format": -1}, {"message_format": 2**32}])
def test_what_cannot_be_sent_is_refused_before_anything_is_counted(wrong: dict[str, Any]) -> None:
    pair = EnginePair()
    sender, _ = pair.sender(credit=5)
    with pytest.raises(LocalError):
        sender.send(b"x", **wrong)
    assert (sender.credit, sender.unsettled_count, pair.client.connection.data_to_send()) == (5, 0, b"")


@pytest.mark.parametrize("enforced", [True, False])
def test_a_message_on_a_link_that_was_not_accepted_yet_is_not_taken(*, enforced: bool) -> None:
    lone = SingleEngine(Limits(enforce_credit=enforced)).begun()
    attach = Attach(name="in", handle=0, role=Role.SENDER, initial_delivery_count=0, target=Target())
    events = lone.send(attach, Transfer(handle=0, delivery_id=0, delivery_tag=b"t"))
    assert [type(event) for event in events] == [AttachRequested]
    assert lone.condition(Detach) == errors.TRANSFER_LIMIT_EXCEEDED


def test_what_is_queued_is_known() -> None:
    pair = EnginePair(server=Limits(max_frame_size=512, incoming_window=1))
    sender, _ = pair.sender()
    pair.client.connection.data_to_send()
    sender.send(bytes(2000))
    assert 2000 <= pair.client.connection.queued_bytes < 2200


def test_a_message_that_has_left_cannot_be_taken_back() -> None:
    pair = EnginePair()
    sender, _ = pair.sender()
    delivery = sender.send(b"gone")
    assert not sender.abort(delivery)
    pair.exchange()
    assert len(pair.server.events_of(DeliveriesReceived)) == 1


# --- too large --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1001, 60_000, 500_000])
def test_a_message_that_is_too_large_is_rejected_and_the_link_goes_on(size: int) -> None:
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
    assert [len(one.payload) for one in pair.server.only_event(DeliveriesReceived).deliveries] == [1000]
    assert receiver.credit == 8


def test_a_settled_message_that_is_too_large_costs_the_link() -> None:
    pair = EnginePair(server=Limits(max_message_size=1000))
    sender, _ = pair.sender()
    sender.send(bytes(1001), settled=True)
    pair.exchange()
    detached = pair.client.only_event(LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == errors.MESSAGE_SIZE_EXCEEDED
    assert not pair.client.events_of(SessionEnded)


def test_only_so_much_of_unfinished_messages_is_kept_on_a_connection() -> None:
    lone = listening(Limits(max_assembling_bytes=10_000))
    for handle in range(1, 4):
        lone.attached(handle=handle, name=str(handle)).grant(1)  # type: ignore[attr-defined]
    for number in range(3):
        lone.send(Transfer(handle=number, delivery_id=number, delivery_tag=b"t", more=True), payload=bytes(4000))
    assert lone.condition(Close) == errors.RESOURCE_LIMIT_EXCEEDED
    assert len(lone.end.events_of(ConnectionClosed)) == 1


def test_what_was_kept_of_unfinished_messages_is_given_back() -> None:
    lone = listening(Limits(max_assembling_bytes=10_000, max_message_size=7000))
    for number in range(20):
        lone.send(
            Transfer(handle=0, delivery_id=number, delivery_tag=b"t", more=True, settled=True), payload=bytes(4000)
        )
        ending = Transfer(handle=0, aborted=True) if number % 2 else Transfer(handle=0, settled=True)
        lone.send(ending, payload=b"" if number % 2 else bytes(1000))
    assert not lone.end.events_of(ConnectionClosed)
    lone.send(Transfer(handle=0, delivery_id=99, delivery_tag=b"t", more=True), payload=bytes(6000))
    lone.send(Detach(handle=0, closed=True))
    link = lone.attached(handle=0, name="again")
    link.grant(1)  # type: ignore[attr-defined]
    lone.send(Transfer(handle=0, delivery_id=100, delivery_tag=b"t", more=True), payload=bytes(6000))
    assert not lone.end.events_of(ConnectionClosed)


# --- frames that make no sense ----------------------------------------------------------------------------------------


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
def test_a_delivery_that_does_not_say_who_it_is_ends_the_session(transfer: Composite) -> None:
    lone = listening()
    lone.send(transfer, payload=b"x")
    assert lone.condition(End) == errors.INVALID_FIELD
    assert not lone.end.events_of(ConnectionClosed)


def test_a_delivery_inside_another_ends_the_session() -> None:
    lone = listening()
    lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), payload=b"x")
    lone.send(Transfer(handle=0, delivery_id=1, delivery_tag=b"u"), payload=b"x")
    assert lone.condition(End) == errors.INVALID_FIELD


def test_a_message_on_a_link_on_which_we_send_ends_the_session() -> None:
    lone = SingleEngine()
    lone.attached(role=Role.RECEIVER)
    lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"))
    assert lone.condition(End) == errors.UNATTACHED_HANDLE


def test_a_transfer_may_be_described_in_any_legal_way() -> None:
    lone = listening()
    usual = Transfer(handle=0, delivery_id=0, delivery_tag=b"a").encode()
    for number, descriptor in enumerate(
        (b"\x53\x14", b"\x80" + (0x14).to_bytes(8, "big"), b"\xa3\x12amqp:transfer:list")
    ):
        fields = Transfer(handle=0, delivery_id=number, delivery_tag=b"a").encode()[len(usual[:3]) :]
        lone.feed_bytes(frame(0, b"\x00" + descriptor + fields + b"payload"))
    assert [one.payload for event in lone.end.events_of(DeliveriesReceived) for one in event.deliveries] == [
        b"payload"
    ] * 3


def test_other_frames_may_be_described_in_any_legal_way() -> None:
    lone = SingleEngine().opened()
    begin = Begin(next_outgoing_id=0, incoming_window=5, outgoing_window=5).encode()
    lone.feed_bytes(frame(0, b"\x00\xa3\x0famqp:begin:list" + begin[3:]))
    assert len(lone.connection.sessions) == 1
    flow = Flow(incoming_window=5, next_outgoing_id=0, outgoing_window=5, echo=True).encode()
    lone.feed_bytes(frame(0, b"\x00\x80" + bytes(7) + b"\x13" + flow[3:]))
    assert lone.last(Flow).handle is None
    disposition = Disposition(role=True, first=0, settled=True, state=ACCEPTED).encode()
    lone.feed_bytes(frame(0, b"\x00\x80" + bytes(7) + b"\x15" + disposition[3:]))
    assert not lone.end.events_of(ConnectionClosed)


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
def test_a_frame_that_cannot_be_read_closes_the_connection(body: bytes) -> None:
    lone = SingleEngine().begun()
    lone.feed_bytes(frame(0, body))
    assert lone.condition(Close) == errors.DECODE_ERROR
    assert not lone.end.only_event(ConnectionClosed).by_peer
