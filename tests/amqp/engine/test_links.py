"""Attaching and detaching: accepted, refused, stolen, crossed, and gone with what carried them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine
from twinbus.amqp import errors
from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import LocalError
from twinbus.amqp.events import (
    AttachConfirmed,
    AttachRequested,
    ConnectionClosed,
    DeliveriesReceived,
    LinkDetached,
    SessionBegun,
    SessionEnded,
)
from twinbus.amqp.frames import AMQP_HEADER
from twinbus.amqp.message import Message, build, value
from twinbus.amqp.outcomes import Declare, Declared, Discharge
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, End, Error, Flow, Open, Transfer
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Coordinator, Source, Target

if TYPE_CHECKING:
    from twinbus.amqp.link import Link

NO = Error(condition=errors.NOT_FOUND, description="no such queue")


def refuse(link: Link) -> None:
    link.refuse(NO)


def test_an_accepted_link_is_confirmed_with_what_was_agreed() -> None:
    pair = EnginePair(answer_attach=lambda link: link.accept(properties={"x": "y"}, max_message_size=1234))
    sender = pair.session().attach_sender("out", target=Target(address="queue"), properties={"a": 1})
    pair.exchange()
    assert pair.server.only_event(AttachRequested).attach.properties == {"a": 1}
    confirmed = pair.client.only_event(AttachConfirmed)
    assert confirmed.link is sender
    assert (confirmed.attach.properties, confirmed.attach.max_message_size) == ({"x": "y"}, 1234)
    assert confirmed.attach.target == Target(address="queue")
    assert sender.is_attached


def test_source_and_target_are_read_as_such_whatever_else_is_imported() -> None:
    program = "from twinbus.amqp import connection, composite; print(0x28 in composite._BY_DESCRIPTOR)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"True\n"


def test_a_refused_link_gets_an_empty_attach_and_a_reason_in_one_write() -> None:
    lone = SingleEngine().begun()
    lone.send(Attach(name="in", handle=3, role=Role.RECEIVER, source=Source(address="q"), target=Target()))
    lone.end.only_event(AttachRequested).link.refuse(NO)
    (_, attach, _), (_, detach, _) = lone.collect()
    assert isinstance(attach, Attach)
    assert (attach.name, attach.source, attach.target, attach.initial_delivery_count) == ("in", None, None, 0)
    assert isinstance(detach, Detach)
    assert (detach.handle, detach.closed, detach.error) == (attach.handle, True, NO)
    lone.send(Detach(handle=3, closed=True))
    assert len(lone.end.events_of(LinkDetached)) == 1
    assert lone.connection.link_count == 0


def test_a_client_hears_why_its_link_was_refused() -> None:
    pair = EnginePair(answer_attach=refuse)
    sender = pair.session().attach_sender("out", target=Target(address="queue"))
    pair.exchange()
    assert pair.client.only_event(AttachConfirmed).attach.target is None
    assert pair.client.only_event(LinkDetached).error == NO
    assert not sender.is_attached
    for end in (pair.client, pair.server):
        assert (end.connection.link_count, len(end.events_of(LinkDetached))) == (0, 1)


def test_one_name_may_be_used_for_both_directions() -> None:
    pair = EnginePair()
    session = pair.session()
    session.attach_sender("both", target=Target(address="queue"))
    session.attach_receiver("both", source=Source(address="queue"))
    pair.exchange()
    assert len(pair.client.events_of(AttachConfirmed)) == 2
    with pytest.raises(LocalError, match="both"):
        session.attach_sender("both", target=Target(address="queue"))


def test_links_attached_before_the_session_is_answered_arrive() -> None:
    pair = EnginePair()
    session = pair.client.connection.begin_session()
    session.attach_sender("out", target=Target(address="queue"))
    receiver = session.attach_receiver("in", source=Source(address="queue"))
    receiver.grant(5)
    pair.exchange()
    assert len(pair.client.events_of(AttachConfirmed)) == 2
    server_end = pair.server_link(receiver)
    assert isinstance(server_end, Sender)
    assert server_end.sendable == 5


def test_credit_that_comes_with_the_attach_counts_once_it_is_accepted() -> None:
    lone = SingleEngine().begun()
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=5)
    lone.send(Attach(name="in", handle=0, role=Role.RECEIVER, source=Source(), target=Target()), flow)
    link = lone.end.only_event(AttachRequested).link
    assert isinstance(link, Sender)
    assert link.sendable == 0
    link.accept()
    assert link.sendable == 5


def test_a_link_detached_before_it_was_answered_is_answered_in_full() -> None:
    lone = SingleEngine().begun()
    attach = Attach(name="in", handle=0, role=Role.RECEIVER, source=Source(), target=Target())
    lone.sent.clear()
    lone.send(attach, Detach(handle=0, closed=True))
    assert [type(sent) for _, sent, _ in lone.sent] == [Attach, Detach]
    assert len(lone.end.events_of(LinkDetached)) == 1
    link = lone.end.only_event(AttachRequested).link  # the program hears of it only now, and need not care
    link.accept()
    link.refuse(NO)
    link.detach()
    assert lone.connection.data_to_send() == b""


def test_a_detach_is_answered_in_kind() -> None:
    for closed in (True, False):
        lone = SingleEngine()
        lone.attached()
        lone.send(Detach(handle=0, closed=closed))
        assert lone.last(Detach).closed is closed


def test_detaches_that_cross_are_told_once_at_each_end() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.detach()
    receiver.detach()
    pair.exchange()
    for end in (pair.client, pair.server):
        assert len(end.events_of(LinkDetached)) == 1
        assert end.connection.link_count == 0
        assert not end.events_of(SessionEnded)


def test_the_same_name_again_takes_the_place_of_the_older_link() -> None:
    lone = SingleEngine()
    older = lone.attached(handle=0)
    newer = lone.attached(handle=1)
    assert lone.condition(Detach) == errors.LINK_STOLEN
    assert lone.end.only_event(LinkDetached).link is older
    lone.send(Detach(handle=0, closed=True))
    assert newer.is_attached
    assert len(lone.end.events_of(LinkDetached)) == 1
    assert lone.connection.link_count == 1
    lone.send(Detach(handle=1, closed=True))
    assert lone.connection.link_count == 0


def test_handles_are_used_again() -> None:
    pair = EnginePair()
    session = pair.session()
    for _ in range(100):
        link = session.attach_sender("out", target=Target(address="queue"))
        assert link.handle == 0
        pair.exchange()
        link.detach()
        pair.exchange()


def test_one_link_too_many_is_refused_and_the_others_go_on() -> None:
    pair = EnginePair(server=Limits(max_links=2))
    session = pair.session()
    links = [session.attach_sender(str(number), target=Target(address="q")) for number in range(3)]
    pair.exchange()
    assert [link.is_attached for link in links] == [True, True, False]
    detached = pair.client.only_event(LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == errors.RESOURCE_LIMIT_EXCEEDED
    assert len(pair.server.events_of(AttachRequested)) == 2
    assert not pair.server.events_of(LinkDetached)  # the program never heard of it
    links[0].detach()
    pair.exchange()
    session.attach_sender("again", target=Target(address="q"))
    pair.exchange()
    assert len(pair.server.events_of(AttachRequested)) == 3


def test_our_own_limit_of_links_is_raised() -> None:
    pair = EnginePair(client=Limits(max_links=1))
    session = pair.session()
    session.attach_sender("1", target=Target(address="q"))
    with pytest.raises(LocalError, match="1 links"):
        session.attach_sender("2", target=Target(address="q"))


def test_a_handle_beyond_those_offered_closes_the_connection() -> None:
    lone = SingleEngine(Limits(max_handle=7)).begun()
    lone.send(Attach(name="in", handle=8, role=Role.RECEIVER))
    assert lone.condition(Close) == errors.FRAMING_ERROR


def test_a_session_that_ends_takes_its_links_along() -> None:
    pair = EnginePair()
    session = pair.session()
    pair.sender(session=session, name="1")
    pair.receiver(session=session, name="2")
    session.end(NO)
    pair.exchange()
    for end in (pair.client, pair.server):
        assert [type(event) for event in end.events[-3:]] == [LinkDetached, LinkDetached, SessionEnded]
        assert end.connection.link_count == 0
        assert end.connection.sessions == {}
    assert pair.server.only_event(SessionEnded).error == NO


def test_after_an_end_of_ours_nothing_of_the_session_is_heard_or_said() -> None:
    lone = SingleEngine()
    link = lone.attached()
    assert isinstance(link, Receiver)
    link.grant(5)
    link.session.end()
    lone.collect()
    lone.end.clear_events()
    assert lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t")) == []
    link.grant(5)
    assert lone.connection.data_to_send() == b""
    lone.send(End())
    assert [type(event) for event in lone.end.events] == [LinkDetached, SessionEnded]


def test_after_a_close_of_ours_nothing_is_heard_or_said() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.send(b"x")
    receiver.session.connection.close()
    pair.server.events += pair.server.connection.receive_data(pair.client.connection.data_to_send(), now=0.0)
    assert not pair.server.events_of(DeliveriesReceived)
    pair.server.connection.data_to_send()
    receiver.settle([])
    receiver.grant(1)
    assert pair.server.connection.data_to_send() == b""


def test_late_frames_on_an_ended_channel_are_dropped() -> None:
    lone = SingleEngine()
    lone.attached()
    lone.send(End())
    lone.sent.clear()
    lone.send(Detach(handle=0, closed=False), Detach(handle=1, closed=False))  # as the Azure SDK for Python does
    assert lone.sent == []
    assert not lone.end.events_of(ConnectionClosed)
    lone.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert len(lone.end.events_of(SessionBegun)) == 2


def test_settle_modes_that_there_are_not_end_the_session() -> None:
    lone = SingleEngine().begun()
    lone.send(Attach(name="in", handle=0, role=Role.RECEIVER, snd_settle_mode=77))
    assert lone.condition(End) == errors.INVALID_FIELD


def test_the_modes_of_a_link_are_those_the_peer_agreed_to() -> None:
    pair = EnginePair(
        answer_attach=lambda link: link.attach(Attach(name="in", handle=0, role=Role.SENDER, rcv_settle_mode=0))
    )
    receiver = pair.session().attach_receiver("in", source=Source(address="q"), rcv_settle_mode=1)
    pair.exchange()
    assert receiver.rcv_settle_mode == 0


def test_a_refusal_whose_reason_is_too_long_for_the_peer_is_one_without_it() -> None:
    lone = SingleEngine()
    lone.feed_bytes(AMQP_HEADER)
    lone.send(Open(container_id="client", max_frame_size=512))
    lone.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    lone.send(Attach(name="in", handle=0, role=Role.RECEIVER))
    lone.end.only_event(AttachRequested).link.refuse(Error(condition=errors.NOT_FOUND, description="d" * 600))
    lone.collect()
    assert lone.last(Detach).error == Error(condition=errors.NOT_FOUND)


def test_a_session_that_could_not_begin_is_not_there() -> None:
    connection = Connection.server(Settings(container_id="server"), now=0.0)
    with pytest.raises(LocalError):
        connection.begin_session()
    assert connection.sessions == {}


def test_sessions_are_apart() -> None:
    pair = EnginePair()
    first, second = pair.session(), pair.session()
    pair.sender(session=first, name="same")
    pair.sender(session=second, name="same")
    first.end()
    pair.exchange()
    assert [link.is_attached for link in second.links.values()] == [True]
    assert pair.client.connection.link_count == 1


def test_unsettled_messages_go_with_their_link() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    for _ in range(5):
        sender.send(b"x")
    pair.exchange()
    sender.detach()
    pair.exchange()
    assert receiver.session.unsettled_deliveries.incoming == {}
    assert sender.session.unsettled_deliveries.outgoing == {}
    assert pair.server.connection.unanswered_bytes == 0


def test_a_transaction_is_declared_and_discharged_over_its_coordinator() -> None:
    pair = EnginePair()
    control = pair.session().attach_sender("txn", target=Coordinator(capabilities=("amqp:local-transactions",)))
    pair.exchange()
    requested = pair.server.only_event(AttachRequested)
    assert requested.attach.target == Coordinator(capabilities=("amqp:local-transactions",))
    coordinator = requested.link
    assert isinstance(coordinator, Receiver)
    coordinator.grant(10)
    pair.exchange()
    declare = control.send(build(body=value(Declare())))
    pair.exchange()
    (delivery,) = pair.server.only_event(DeliveriesReceived).deliveries
    assert Message(delivery.payload).value == Declare()
    coordinator.settle([delivery], Declared(txn_id=b"7"))
    pair.exchange()
    assert declare.state == Declared(txn_id=b"7")
    pair.server.clear_events()
    control.send(build(body=value(Discharge(txn_id=b"7", fail=True))))
    pair.exchange()
    (delivery,) = pair.server.only_event(DeliveriesReceived).deliveries
    assert Message(delivery.payload).value == Discharge(txn_id=b"7", fail=True)
