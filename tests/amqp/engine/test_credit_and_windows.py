"""Who may send how much: link credit, drain, echo, and the session's windows."""

from __future__ import annotations

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine, split_frames
from twinbus.amqp import errors
from twinbus.amqp.errors import LocalError
from twinbus.amqp.events import AttachRequested, CreditGranted, DeliveriesReceived, Drained, LinkDetached, SessionEnded
from twinbus.amqp.frames import frame
from twinbus.amqp.performatives import Attach, Begin, Detach, End, Flow, Transfer
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


def test_credit_is_what_the_receiver_says_and_each_message_uses_one() -> None:
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


def test_credit_granted_while_messages_were_on_their_way_is_reckoned_from_what_the_receiver_had_seen() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=10)
    for _ in range(4):
        sender.send(b"x")
    receiver.grant(10)  # crosses the four messages
    pair.client.connection.receive_data(pair.server.connection.data_to_send(), now=0.0)
    assert sender.credit == 6
    pair.exchange()
    assert sender.credit == receiver.credit == 6


def test_a_sender_that_ignores_credit_loses_its_link_only() -> None:
    lone = SingleEngine()
    link = lone.attached()
    events = lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=b"x")
    assert lone.condition(Detach) == errors.TRANSFER_LIMIT_EXCEEDED
    assert not any(isinstance(event, DeliveriesReceived | SessionEnded) for event in events)
    lone.send(Transfer(handle=0, delivery_id=1, delivery_tag=b"t"), payload=b"x")  # still on its way: dropped
    lone.send(Detach(handle=0, closed=True))
    assert lone.end.only_event(LinkDetached).link is link


def test_a_sender_that_ignores_credit_is_heard_where_that_is_allowed() -> None:
    lone = SingleEngine(Limits(enforce_credit=False))
    link = lone.attached()
    lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=b"x")
    assert len(lone.end.only_event(DeliveriesReceived).deliveries) == 1
    assert link.credit == 0


def test_a_kept_window_is_refilled_as_the_program_answers_and_not_before() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=0)
    receiver.keep_credit(10)
    pair.exchange()
    for _ in range(10):
        sender.send(b"x")
    pair.exchange()
    assert sender.sendable == 0  # ten are unanswered
    deliveries = [one for event in pair.server.events_of(DeliveriesReceived) for one in event.deliveries]
    receiver.settle(deliveries[:4])
    pair.exchange()
    assert sender.sendable == 0  # less than half: no flow for a few
    receiver.settle(deliveries[4:5])
    pair.exchange()
    assert sender.sendable == 5


def test_messages_that_came_settled_count_until_the_program_has_dealt_with_them_too() -> None:
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
    assert [type(one) for _, one, _ in sent] == [Flow]  # more credit, and no word on what was settled
    assert pair.server.connection.unanswered_bytes == 0


def test_a_smaller_grant_does_not_punish_what_was_on_its_way() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender(credit=5)
    for _ in range(3):
        sender.send(b"x")
    receiver.grant(0)
    pair.exchange()
    assert len(received(pair)) == 3
    assert sender.sendable == 0
    assert not pair.client.events_of(LinkDetached)


def test_a_flow_from_before_our_begin_and_attach_counts_from_their_beginning() -> None:
    lone = SingleEngine().opened()
    lone.send(Begin(next_outgoing_id=0, incoming_window=3, outgoing_window=9))
    link = lone.attached(role=True)
    assert isinstance(link, Sender)
    early = Flow(incoming_window=3, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=2)
    lone.send(early)
    link.send(b"one")
    lone.send(early)  # still from a peer that has seen neither our begin nor our attach
    assert (link.credit, link.session.send_queue.window) == (1, 2)


def test_a_flow_for_a_link_the_peer_has_not_attached_has_no_delivery_count() -> None:
    pair = EnginePair()
    receiver = pair.session().attach_receiver("in", source=Source(address="queue"))
    receiver.grant(10)
    flows = [one for _, one, _ in split_frames(pair.client.connection.data_to_send()) if isinstance(one, Flow)]
    assert [(flow.delivery_count, flow.link_credit) for flow in flows] == [(None, 10)]


# --- drain and echo ---------------------------------------------------------------------------------------------------


def test_a_drain_brings_what_there_is_and_the_rest_of_the_credit_back() -> None:
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


def test_a_drain_answered_by_messages_alone_is_over_when_the_credit_is() -> None:
    pair = EnginePair()
    receiver, sender = pair.receiver(credit=2)
    receiver.drain()
    pair.exchange()
    sender.send(b"1")
    sender.send(b"2")
    sender.drained()
    pair.exchange()
    assert len(pair.client.events_of(Drained)) == 1


def test_a_drain_reply_on_the_wire_is_what_clients_wait_for() -> None:
    lone = SingleEngine()
    link = lone.attached(role=True)
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0)
    flow.delivery_count, flow.link_credit, flow.drain = 0, 5, True
    lone.send(flow)
    link.drained()  # type: ignore[attr-defined]
    lone.collect()
    reply = lone.last(Flow)
    assert (reply.handle, reply.delivery_count, reply.link_credit, reply.drain) == (link.handle, 5, 0, True)


def test_a_drain_is_over_when_messages_have_used_up_the_credit_also_without_a_word() -> None:
    pair = EnginePair()
    receiver, sender = pair.receiver(credit=2)
    assert receiver.drain()
    pair.exchange()
    sender.send(b"1")
    sender.send(b"2")
    pair.exchange()
    assert [type(event) for event in pair.client.events[-2:]] == [DeliveriesReceived, Drained]
    assert not receiver.drain()  # there is nothing to drain


def test_a_drain_is_over_when_a_rejected_or_aborted_message_used_the_last_credit() -> None:
    for last in (Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), None):
        lone = SingleEngine(Limits(max_message_size=10))
        link = lone.attached()
        assert isinstance(link, Receiver)
        link.grant(1, drain=True)
        if last is None:
            lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload=bytes(11))
        else:
            lone.send(last, payload=b"half")
            assert not lone.end.events_of(Drained)  # the message is still arriving
            lone.send(Transfer(handle=0, aborted=True))
        assert len(lone.end.events_of(Drained)) == 1
        assert not link.is_draining


def test_a_drain_waits_for_messages_that_wait_for_the_window() -> None:
    pair = EnginePair(client=Limits(incoming_window=1))
    receiver, sender = pair.receiver(credit=10)
    for number in range(4):
        sender.send(b"%d" % number)
    receiver.drain()
    sender.drained()
    pair.exchange()
    payloads = [one.payload for event in pair.client.events_of(DeliveriesReceived) for one in event.deliveries]
    assert payloads == [b"0", b"1", b"2", b"3"]
    assert len(pair.client.events_of(Drained)) == 1
    assert not pair.client.events_of(LinkDetached)


def test_a_drain_goes_on_when_messages_are_answered_and_echoes_asked_for() -> None:
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


def test_an_echo_on_a_link_that_is_not_accepted_yet_is_answered_when_it_is() -> None:
    lone = SingleEngine().begun()
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, echo=True)
    lone.send(Attach(name="in", handle=0, role=True, source=Source(), target=Target()), flow)
    lone.end.only_event(AttachRequested).link.accept()
    assert [type(one) for _, one, _ in lone.collect()] == [Attach, Flow]


def test_an_echo_is_answered_for_a_link_and_for_a_session() -> None:
    lone = SingleEngine()
    link = lone.attached()
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)
    lone.send(flow)
    assert lone.last(Flow).handle is None
    flow.handle = 0
    lone.send(flow)
    assert lone.last(Flow).handle == link.handle
    assert not lone.last(Flow).echo  # an answer that asks again would never end


def test_what_a_sender_says_of_credit_means_nothing() -> None:
    lone = SingleEngine()
    link = lone.attached()
    assert isinstance(link, Receiver)
    link.grant(5)
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0)
    flow.delivery_count, flow.link_credit, flow.available = 0, 10_000, 7  # as pyamqp does
    assert lone.send(flow) == []
    assert (link.credit, link.available) == (5, 7)


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_frames_wait_for_the_peers_window_and_leave_when_it_opens(window: int) -> None:
    pair = EnginePair(server=Limits(incoming_window=window))
    sender, _ = pair.sender(credit=100)
    assert sender.sendable == window  # credit allows a hundred
    for number in range(10):
        sender.send(b"%d" % number)
    assert sender.sendable == 0
    pair.exchange()  # the server reopens its window as it reads
    assert received(pair) == [b"%d" % number for number in range(10)]
    assert sender.sendable >= 1


def test_waiting_for_a_window_the_program_is_told_when_it_opens() -> None:
    lone = SingleEngine().opened()
    lone.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=9))
    link = lone.attached(role=True)
    flow = Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=9)
    lone.send(flow)
    link.send(b"one")  # type: ignore[attr-defined]
    assert link.sendable == 0  # type: ignore[attr-defined]
    events = lone.send(Flow(next_incoming_id=1, incoming_window=5, next_outgoing_id=0, outgoing_window=9))
    assert events == [CreditGranted(link=link)]  # type: ignore[arg-type]
    assert link.sendable == 5  # type: ignore[attr-defined]


def test_a_peer_that_does_not_wait_for_our_window_loses_the_session() -> None:
    lone = SingleEngine(Limits(incoming_window=4))
    link = lone.attached()
    link.grant(100)  # type: ignore[attr-defined]
    lone.collect()
    lone.end.clear_events()
    transfers = [
        frame(0, Transfer(handle=0, delivery_id=n, delivery_tag=b"%d" % n, settled=True).encode()) for n in range(5)
    ]
    lone.feed_bytes(b"".join(transfers))
    assert lone.condition(End) == errors.WINDOW_VIOLATION
    assert len(lone.end.only_event(DeliveriesReceived).deliveries) == 4
    assert len(lone.end.events_of(LinkDetached)) == len(lone.end.events_of(SessionEnded)) == 1


def test_a_peer_that_reads_our_flows_may_send_for_ever() -> None:
    lone = SingleEngine(Limits(incoming_window=4))
    link = lone.attached()
    link.grant(1000)  # type: ignore[attr-defined]
    lone.collect()
    for number in range(100):
        lone.send(Transfer(handle=0, delivery_id=number, delivery_tag=b"t", settled=True))
    flows = [sent for _, sent, _ in lone.sent if isinstance(sent, Flow)]
    assert not lone.end.events_of(SessionEnded)
    assert flows[-1].next_incoming_id in (98, 99, 100)
    assert flows[-1].incoming_window == 4


def test_too_many_unsettled_messages_lose_the_session() -> None:
    lone = SingleEngine(Limits(max_unsettled=3))
    link = lone.attached()
    link.grant(10)  # type: ignore[attr-defined]
    for number in range(4):
        lone.send(Transfer(handle=0, delivery_id=number, delivery_tag=b"t"))
    assert lone.condition(End) == errors.RESOURCE_LIMIT_EXCEEDED


def test_links_that_wait_for_our_own_limit_are_told_when_there_is_room_again() -> None:
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


def test_as_a_sender_we_stop_at_our_own_limit_of_unsettled_messages() -> None:
    pair = EnginePair(client=Limits(max_unsettled=3))
    sender, _ = pair.sender(credit=100)
    for _ in range(3):
        sender.send(b"x")
    assert (sender.sendable, sender.credit) == (0, 97)
