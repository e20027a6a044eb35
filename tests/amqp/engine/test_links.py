"""Links: attach, refusal, detach, link stealing, limits, and links of ended sessions and closed connections."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import EnginePair, SingleEngine
from twinbus.amqp import errors
from twinbus.amqp.codec.frames import AMQP_HEADER
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, End, Error, Flow, Open, Transfer
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
from twinbus.amqp.message import Message, build, value
from twinbus.amqp.outcomes import Declare, Declared, Discharge
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Coordinator, Source, Target

if TYPE_CHECKING:
    from twinbus.amqp.link import Link

NO_SUCH_QUEUE = Error(condition=errors.NOT_FOUND, description="no such queue")


def refuse(link: Link) -> None:
    link.refuse(NO_SUCH_QUEUE)


def test_an_accepted_link_is_confirmed_with_the_properties_of_the_answer() -> None:
    pair = EnginePair(answer_attach=lambda link: link.accept(properties={"x": "y"}, max_message_size=1234))
    sender = pair.session().attach_sender("out", target=Target(address="queue"), properties={"a": 1})
    pair.exchange()
    assert pair.server.only_event(AttachRequested).attach.properties == {"a": 1}
    confirmed = pair.client.only_event(AttachConfirmed)
    assert confirmed.link is sender
    assert (confirmed.attach.properties, confirmed.attach.max_message_size) == ({"x": "y"}, 1234)
    assert confirmed.attach.target == Target(address="queue")
    assert sender.is_attached


def test_importing_the_connection_registers_source_and_target() -> None:
    program = (
        "import twinbus.amqp.connection; from twinbus.amqp.codec import composite as c; print(0x28 in c._BY_DESCRIPTOR)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"True\n"


def test_a_refused_link_gets_an_empty_attach_and_a_detach_with_the_error_in_one_write() -> None:
    engine = SingleEngine().begun()
    engine.send(Attach(name="in", handle=3, role=Role.RECEIVER, source=Source(address="q"), target=Target()))
    engine.end.only_event(AttachRequested).link.refuse(NO_SUCH_QUEUE)
    (_, attach, _), (_, detach, _) = engine.collect()
    assert isinstance(attach, Attach)
    assert (attach.name, attach.source, attach.target, attach.initial_delivery_count) == ("in", None, None, 0)
    assert isinstance(detach, Detach)
    assert (detach.handle, detach.closed, detach.error) == (attach.handle, True, NO_SUCH_QUEUE)
    engine.send(Detach(handle=3, closed=True))
    assert len(engine.end.events_of(LinkDetached)) == 1
    assert engine.connection.link_count == 0


def test_a_client_gets_the_error_of_a_refused_link() -> None:
    pair = EnginePair(answer_attach=refuse)
    sender = pair.session().attach_sender("out", target=Target(address="queue"))
    pair.exchange()
    assert pair.client.only_event(AttachConfirmed).attach.target is None
    assert pair.client.only_event(LinkDetached).error == NO_SUCH_QUEUE
    assert not sender.is_attached
    for end in (pair.client, pair.server):
        assert (end.connection.link_count, len(end.events_of(LinkDetached))) == (0, 1)


def test_a_sender_and_a_receiver_may_have_the_same_name() -> None:
    pair = EnginePair()
    session = pair.session()
    session.attach_sender("both", target=Target(address="queue"))
    session.attach_receiver("both", source=Source(address="queue"))
    pair.exchange()
    assert len(pair.client.events_of(AttachConfirmed)) == 2
    with pytest.raises(LocalError, match="both"):
        session.attach_sender("both", target=Target(address="queue"))


def test_links_attached_before_the_begin_is_answered_are_confirmed() -> None:
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


def test_credit_granted_before_the_attach_is_answered_counts_after_acceptance() -> None:
    engine = SingleEngine().begun()
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=5)
    engine.send(Attach(name="in", handle=0, role=Role.RECEIVER, source=Source(), target=Target()), flow)
    link = engine.end.only_event(AttachRequested).link
    assert isinstance(link, Sender)
    assert link.sendable == 0
    link.accept()
    assert link.sendable == 5


def test_a_link_detached_before_it_was_answered_gets_an_attach_and_a_detach() -> None:
    engine = SingleEngine().begun()
    attach = Attach(name="in", handle=0, role=Role.RECEIVER, source=Source(), target=Target())
    engine.sent.clear()
    engine.send(attach, Detach(handle=0, closed=True))
    assert [type(sent) for _, sent, _ in engine.sent] == [Attach, Detach]
    assert len(engine.end.events_of(LinkDetached)) == 1
    link = engine.end.only_event(
        AttachRequested
    ).link  # the program handles the event only now; its calls have no effect
    link.accept()
    link.refuse(NO_SUCH_QUEUE)
    link.detach()
    assert engine.connection.data_to_send() == b""


def test_a_detach_is_answered_with_the_same_closed_flag() -> None:
    for closed in (True, False):
        engine = SingleEngine()
        engine.attached()
        engine.send(Detach(handle=0, closed=closed))
        assert engine.last(Detach).closed is closed


def test_crossing_detaches_are_reported_once_at_each_end() -> None:
    pair = EnginePair()
    sender, receiver = pair.sender()
    sender.detach()
    receiver.detach()
    pair.exchange()
    for end in (pair.client, pair.server):
        assert len(end.events_of(LinkDetached)) == 1
        assert end.connection.link_count == 0
        assert not end.events_of(SessionEnded)


def test_an_attach_with_the_same_name_steals_the_older_link() -> None:
    engine = SingleEngine()
    older = engine.attached(handle=0)
    newer = engine.attached(handle=1)
    assert engine.condition(Detach) == errors.LINK_STOLEN
    assert engine.end.only_event(LinkDetached).link is older
    engine.send(Detach(handle=0, closed=True))
    assert newer.is_attached
    assert len(engine.end.events_of(LinkDetached)) == 1
    assert engine.connection.link_count == 1
    engine.send(Detach(handle=1, closed=True))
    assert engine.connection.link_count == 0


def test_handles_are_reused() -> None:
    pair = EnginePair()
    session = pair.session()
    for _ in range(100):
        link = session.attach_sender("out", target=Target(address="queue"))
        assert link.handle == 0
        pair.exchange()
        link.detach()
        pair.exchange()


def test_a_link_beyond_the_limit_is_refused_and_the_others_continue() -> None:
    pair = EnginePair(server=Limits(max_links=2))
    session = pair.session()
    links = [session.attach_sender(str(number), target=Target(address="q")) for number in range(3)]
    pair.exchange()
    assert [link.is_attached for link in links] == [True, True, False]
    detached = pair.client.only_event(LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == errors.RESOURCE_LIMIT_EXCEEDED
    assert len(pair.server.events_of(AttachRequested)) == 2
    assert not pair.server.events_of(LinkDetached)  # the program was not notified of it
    links[0].detach()
    pair.exchange()
    session.attach_sender("again", target=Target(address="q"))
    pair.exchange()
    assert len(pair.server.events_of(AttachRequested)) == 3


def test_attaching_beyond_our_own_link_limit_raises() -> None:
    pair = EnginePair(client=Limits(max_links=1))
    session = pair.session()
    session.attach_sender("1", target=Target(address="q"))
    with pytest.raises(LocalError, match="1 links"):
        session.attach_sender("2", target=Target(address="q"))


def test_a_handle_above_handle_max_closes_the_connection() -> None:
    engine = SingleEngine(Limits(max_handle=7)).begun()
    engine.send(Attach(name="in", handle=8, role=Role.RECEIVER))
    assert engine.condition(Close) == errors.FRAMING_ERROR


def test_ending_a_session_detaches_its_links() -> None:
    pair = EnginePair()
    session = pair.session()
    pair.sender(session=session, name="1")
    pair.receiver(session=session, name="2")
    session.end(NO_SUCH_QUEUE)
    pair.exchange()
    for end in (pair.client, pair.server):
        assert [type(event) for event in end.events[-3:]] == [LinkDetached, LinkDetached, SessionEnded]
        assert end.connection.link_count == 0
        assert end.connection.sessions == {}
    assert pair.server.only_event(SessionEnded).error == NO_SUCH_QUEUE


def test_after_our_end_the_session_sends_and_reports_nothing() -> None:
    engine = SingleEngine()
    link = engine.attached()
    assert isinstance(link, Receiver)
    link.grant(5)
    link.session.end()
    engine.collect()
    engine.end.clear_events()
    assert engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t")) == []
    link.grant(5)
    assert engine.connection.data_to_send() == b""
    engine.send(End())
    assert [type(event) for event in engine.end.events] == [LinkDetached, SessionEnded]


def test_after_our_close_the_connection_sends_and_reports_nothing() -> None:
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
    engine = SingleEngine()
    engine.attached()
    engine.send(End())
    engine.sent.clear()
    engine.send(Detach(handle=0, closed=False), Detach(handle=1, closed=False))  # as the Azure SDK for Python does
    assert engine.sent == []
    assert not engine.end.events_of(ConnectionClosed)
    engine.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert len(engine.end.events_of(SessionBegun)) == 2


def test_an_invalid_settle_mode_ends_the_session() -> None:
    engine = SingleEngine().begun()
    engine.send(Attach(name="in", handle=0, role=Role.RECEIVER, snd_settle_mode=77))
    assert engine.condition(End) == errors.INVALID_FIELD


def test_a_link_has_the_settle_modes_of_the_peers_attach() -> None:
    pair = EnginePair(
        answer_attach=lambda link: link.attach(Attach(name="in", handle=0, role=Role.SENDER, rcv_settle_mode=0))
    )
    receiver = pair.session().attach_receiver("in", source=Source(address="q"), rcv_settle_mode=1)
    pair.exchange()
    assert receiver.rcv_settle_mode == 0


def test_an_error_description_too_long_for_the_peers_frames_is_omitted() -> None:
    engine = SingleEngine()
    engine.feed_bytes(AMQP_HEADER)
    engine.send(Open(container_id="client", max_frame_size=512))
    engine.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    engine.send(Attach(name="in", handle=0, role=Role.RECEIVER))
    engine.end.only_event(AttachRequested).link.refuse(Error(condition=errors.NOT_FOUND, description="d" * 600))
    engine.collect()
    assert engine.last(Detach).error == Error(condition=errors.NOT_FOUND)


def test_a_session_that_could_not_begin_is_not_registered() -> None:
    connection = Connection.server(Settings(container_id="server"), now=0.0)
    with pytest.raises(LocalError):
        connection.begin_session()
    assert connection.sessions == {}


def test_ending_a_session_does_not_affect_links_of_another() -> None:
    pair = EnginePair()
    first, second = pair.session(), pair.session()
    pair.sender(session=first, name="same")
    pair.sender(session=second, name="same")
    first.end()
    pair.exchange()
    assert [link.is_attached for link in second.links.values()] == [True]
    assert pair.client.connection.link_count == 1


def test_detaching_a_link_drops_its_unsettled_messages() -> None:
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


def test_a_transaction_is_declared_and_discharged_over_a_coordinator_link() -> None:
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
