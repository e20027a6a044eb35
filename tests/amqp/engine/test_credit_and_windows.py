"""Flow control: link credit, drain, echo, and session windows."""

from __future__ import annotations

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine, split_frames
from twinbus.amqp import errors
from twinbus.amqp.codec.frames import frame
from twinbus.amqp.codec.performatives import Attach, Begin, Detach, End, Flow, Transfer
from twinbus.amqp.errors import LocalError
from twinbus.amqp.events import AttachRequested, CreditGranted, DeliveriesReceived, Drained, LinkDetached, SessionEnded
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits
from twinbus.amqp.terminus import Source, Target


def received(pair: EnginePair) -> list[bytes]:
    return [delivery.payload for event in pair.server.events_of(DeliveriesReceived) for delivery in event.deliveries]


# --- credit -----------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_without_credit() -> None:
    pair = EnginePair()
    sender, _ = pair.sender(credit=0)
    assert sender.sendable == 0
    with pytest.raises(LocalError, match="no credit"):
        sender.send(b"x")


def test_each_message_uses_one_credit_of_the_receivers_grant() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=3)
    assert pair.client.events_of(CreditGranted)[-1].link is sender
    for number in range(3):
        sender.send(b"%d" % number)
    assert sender.sendable == 0
    pair.exchange()
    assert received(pair) == [b"0", b"1", b"2"]
    assert receiver.credit == 0
    receiver.grant(2)
    pair.exchange()
    assert sender.sendable == 2


def test_credit_granted_while_messages_are_in_flight_counts_from_the_receivers_delivery_count() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=10)
    for _ in range(4):
        sender.send(b"x")
    receiver.grant(10)  # crosses the four messages
    pair.client.connection.receive_data(pair.server.connection.data_to_send(), now=0.0)
    assert sender.credit == 6
    pair.exchange()
    assert sender.credit == receiver.credit == 6


def test_a_sender_that_ignores_credit_loses_only_its_link() -> None:
    engine = SingleEngine()
    link = engine.attached()
    events = engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=b"x")
    assert engine.condition(Detach) == errors.TRANSFER_LIMIT_EXCEEDED
    assert not any(isinstance(event, DeliveriesReceived | SessionEnded) for event in events)
    engine.send(Transfer(handle=0, delivery_id=1, delivery_tag=b"t"), payload=b"x")  # was on its way: dropped
    engine.send(Detach(handle=0, closed=True))
    assert engine.end.only_event(LinkDetached).link is link


def test_a_sender_may_ignore_credit_if_credit_is_not_enforced() -> None:
    engine = SingleEngine(Limits(enforce_credit=False))
    link = engine.attached()
    engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=b"x")
    assert len(engine.end.only_event(DeliveriesReceived).deliveries) == 1
    assert link.credit == 0


def test_kept_credit_is_replenished_only_as_deliveries_are_settled() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=0)
    receiver.keep_credit(10)
    pair.exchange()
    for _ in range(10):
        sender.send(b"x")
    pair.exchange()
    assert sender.sendable == 0  # ten deliveries are unanswered
    deliveries = [delivery for event in pair.server.events_of(DeliveriesReceived) for delivery in event.deliveries]
    receiver.settle(deliveries[:4])
    pair.exchange()
    assert sender.sendable == 0  # less than half of the window: no flow yet
    receiver.settle(deliveries[4:5])
    pair.exchange()
    assert sender.sendable == 5


def test_presettled_messages_use_kept_credit_until_the_program_settles_them() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=0)
    receiver.keep_credit(10)
    pair.exchange()
    for _ in range(10):
        sender.send(b"x", settled=True)
    pair.exchange()
    assert (sender.sendable, receiver.unanswered_count) == (0, 10)
    assert pair.server.connection.unanswered_bytes > 10
    receiver.settle(pair.server.only_event(DeliveriesReceived).deliveries)
    sent = split_frames(pair.server.connection.data_to_send())
    assert [type(performative) for _, performative, _ in sent] == [
        Flow
    ]  # more credit, and no disposition for settled messages
    assert pair.server.connection.unanswered_bytes == 0


def test_a_smaller_grant_does_not_detach_for_messages_already_in_flight() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=5)
    for _ in range(3):
        sender.send(b"x")
    receiver.grant(0)
    pair.exchange()
    assert len(received(pair)) == 3
    assert sender.sendable == 0
    assert not pair.client.events_of(LinkDetached)


def test_a_flow_sent_before_the_peer_saw_our_begin_and_attach_counts_from_the_initial_ids() -> None:
    engine = SingleEngine().opened()
    engine.send(Begin(next_outgoing_id=0, incoming_window=3, outgoing_window=9))
    link = engine.attached(role=True)
    assert isinstance(link, Sender)
    early = Flow(incoming_window=3, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=2)
    engine.send(early)
    link.send(b"one")
    engine.send(early)  # still from a peer that has seen neither our begin nor our attach
    assert (link.credit, link.session.send_queue.window) == (1, 2)


def test_a_flow_for_a_link_the_peer_has_not_attached_has_no_delivery_count() -> None:
    pair = EnginePair()
    receiver = pair.session().attach_receiver("in", source=Source(address="queue"))
    receiver.grant(10)
    flows = [
        performative
        for _, performative, _ in split_frames(pair.client.connection.data_to_send())
        if isinstance(performative, Flow)
    ]
    assert [(flow.delivery_count, flow.link_credit) for flow in flows] == [(None, 10)]


# --- drain and echo ---------------------------------------------------------------------------------------------------


def test_a_drain_delivers_available_messages_and_consumes_the_remaining_credit() -> None:
    pair = EnginePair()
    receiver, sender = pair.receiver(credit=10)
    receiver.drain()
    pair.exchange()
    assert sender.drain_requested
    sender.send(b"all there is")
    sender.drained()
    pair.exchange()
    assert pair.client.only_event(Drained).link is receiver
    assert (receiver.credit, sender.credit) == (0, 0)
    assert receiver.delivery_count == sender.delivery_count == 10
    receiver.grant(1)
    pair.exchange()
    assert sender.sendable == 1
    assert not sender.drain_requested


def test_a_drain_that_uses_all_credit_for_messages_is_reported_once() -> None:
    pair = EnginePair()
    receiver, sender = pair.receiver(credit=2)
    receiver.drain()
    pair.exchange()
    sender.send(b"1")
    sender.send(b"2")
    sender.drained()
    pair.exchange()
    assert len(pair.client.events_of(Drained)) == 1


def test_a_drain_reply_has_zero_credit_and_the_advanced_delivery_count() -> None:
    engine = SingleEngine()
    link = engine.attached(role=True)
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0)
    flow.delivery_count, flow.link_credit, flow.drain = 0, 5, True
    engine.send(flow)
    link.drained()  # type: ignore[attr-defined]
    engine.collect()
    reply = engine.last(Flow)
    assert (reply.handle, reply.delivery_count, reply.link_credit, reply.drain) == (link.handle, 5, 0, True)


def test_a_drain_ends_when_messages_use_up_the_credit_even_without_a_flow() -> None:
    pair = EnginePair()
    receiver, sender = pair.receiver(credit=2)
    assert receiver.drain()
    pair.exchange()
    sender.send(b"1")
    sender.send(b"2")
    pair.exchange()
    assert [type(event) for event in pair.client.events[-2:]] == [DeliveriesReceived, Drained]
    assert not receiver.drain()  # no credit left to drain


def test_a_drain_ends_when_a_rejected_or_aborted_message_uses_the_last_credit() -> None:
    for last in (Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), None):
        engine = SingleEngine(Limits(max_message_size=10))
        link = engine.attached()
        assert isinstance(link, Receiver)
        link.grant(1, drain=True)
        if last is None:
            engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=bytes(11))
        else:
            engine.send(last, payload=b"half")
            assert not engine.end.events_of(Drained)  # the message is still arriving
            engine.send(Transfer(handle=0, aborted=True))
        assert len(engine.end.events_of(Drained)) == 1
        assert not link.is_draining


def test_a_drain_completes_after_messages_waiting_for_the_window() -> None:
    pair = EnginePair(client=Limits(incoming_window=1))
    receiver, sender = pair.receiver(credit=10)
    for number in range(4):
        sender.send(b"%d" % number)
    receiver.drain()
    sender.drained()
    pair.exchange()
    payloads = [
        delivery.payload for event in pair.client.events_of(DeliveriesReceived) for delivery in event.deliveries
    ]
    assert payloads == [b"0", b"1", b"2", b"3"]
    assert len(pair.client.events_of(Drained)) == 1
    assert not pair.client.events_of(LinkDetached)


def test_settlement_and_echo_do_not_cancel_a_drain() -> None:
    pair = EnginePair()
    receiver, sender = pair.receiver()
    receiver.keep_credit(4)
    pair.exchange()
    for _ in range(3):
        sender.send(b"x")
    pair.exchange()
    receiver.drain()
    receiver.settle(pair.client.only_event(DeliveriesReceived).deliveries)
    sender.send_flow(echo=True)
    pair.exchange()
    assert sender.drain_requested
    sender.drained()
    pair.exchange()
    assert len(pair.client.events_of(Drained)) == 1


def test_an_echo_on_a_link_that_is_not_accepted_yet_is_answered_after_the_attach() -> None:
    engine = SingleEngine().begun()
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, echo=True)
    engine.send(Attach(name="in", handle=0, role=True, source=Source(), target=Target()), flow)
    engine.end.only_event(AttachRequested).link.accept()
    assert [type(performative) for _, performative, _ in engine.collect()] == [Attach, Flow]


def test_an_echo_is_answered_for_a_link_and_for_a_session() -> None:
    engine = SingleEngine()
    link = engine.attached()
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)
    engine.send(flow)
    assert engine.last(Flow).handle is None
    flow.handle = 0
    engine.send(flow)
    assert engine.last(Flow).handle == link.handle
    assert not engine.last(Flow).echo  # an answer with echo would never end


def test_link_credit_in_a_senders_flow_is_ignored() -> None:
    engine = SingleEngine()
    link = engine.attached()
    assert isinstance(link, Receiver)
    link.grant(5)
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0)
    flow.delivery_count, flow.link_credit, flow.available = 0, 10_000, 7  # as pyamqp does
    assert engine.send(flow) == []
    assert (link.credit, link.available) == (5, 7)


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_transfers_wait_for_the_peers_window_and_are_sent_when_it_opens(window: int) -> None:
    pair = EnginePair(server=Limits(incoming_window=window))
    sender, _ = pair.sender(credit=100)
    assert sender.sendable == window  # credit allows a hundred
    for number in range(10):
        sender.send(b"%d" % number)
    assert sender.sendable == 0
    pair.exchange()  # the server widens its window as it reads
    assert received(pair) == [b"%d" % number for number in range(10)]
    assert sender.sendable >= 1


def test_a_window_that_opens_again_is_reported_as_granted_credit() -> None:
    engine = SingleEngine().opened()
    engine.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=9))
    link = engine.attached(role=True)
    flow = Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=9)
    engine.send(flow)
    link.send(b"one")  # type: ignore[attr-defined]
    assert link.sendable == 0  # type: ignore[attr-defined]
    events = engine.send(Flow(next_incoming_id=1, incoming_window=5, next_outgoing_id=0, outgoing_window=9))
    assert events == [CreditGranted(link=link)]  # type: ignore[arg-type]
    assert link.sendable == 5  # type: ignore[attr-defined]


def test_a_peer_that_exceeds_our_window_loses_its_session() -> None:
    engine = SingleEngine(Limits(incoming_window=4))
    link = engine.attached()
    link.grant(100)  # type: ignore[attr-defined]
    engine.collect()
    engine.end.clear_events()
    transfers = [
        frame(0, Transfer(handle=0, delivery_id=n, delivery_tag=b"%d" % n, settled=True).encode()) for n in range(5)
    ]
    engine.feed_bytes(b"".join(transfers))
    assert engine.condition(End) == errors.WINDOW_VIOLATION
    assert len(engine.end.only_event(DeliveriesReceived).deliveries) == 4
    assert len(engine.end.events_of(LinkDetached)) == len(engine.end.events_of(SessionEnded)) == 1


def test_a_peer_that_respects_our_flows_can_send_without_end() -> None:
    engine = SingleEngine(Limits(incoming_window=4))
    link = engine.attached()
    link.grant(1000)  # type: ignore[attr-defined]
    engine.collect()
    for number in range(100):
        engine.send(Transfer(handle=0, delivery_id=number, delivery_tag=b"t", settled=True))
    flows = [sent for _, sent, _ in engine.sent if isinstance(sent, Flow)]
    assert not engine.end.events_of(SessionEnded)
    assert flows[-1].next_incoming_id in (98, 99, 100)
    assert flows[-1].incoming_window == 4


def test_too_many_unsettled_messages_end_the_session() -> None:
    engine = SingleEngine(Limits(max_unsettled=3))
    link = engine.attached()
    link.grant(10)  # type: ignore[attr-defined]
    for number in range(4):
        engine.send(Transfer(handle=0, delivery_id=number, delivery_tag=b"t"))
    assert engine.condition(End) == errors.RESOURCE_LIMIT_EXCEEDED


def test_links_blocked_by_our_unsettled_limit_are_notified_when_it_allows_sends_again() -> None:
    pair = EnginePair(client=Limits(max_unsettled=2))
    session = pair.session()
    first, receiver = pair.sender(session=session, name="1")
    second, _ = pair.sender(session=session, name="2")
    for _ in range(2):
        first.send(b"x")
    pair.exchange()
    pair.client.clear_events()
    receiver.settle(pair.server.only_event(DeliveriesReceived).deliveries)
    pair.exchange()
    assert second in [event.link for event in pair.client.events_of(CreditGranted)]


def test_a_sender_stops_at_its_own_limit_of_unsettled_messages() -> None:
    pair = EnginePair(client=Limits(max_unsettled=3))
    sender, _ = pair.sender(credit=100)
    for _ in range(3):
        sender.send(b"x")
    assert (sender.sendable, sender.credit) == (0, 97)
