"""Regression tests for faults of the engine that the fuzzer found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz.connection_target import HELD_BASE, check_counters, memory_held_by
from tests.fuzz.synthetic_conversations import (
    OPENING_FRAMES,
    RECEIVER,
    SENDER,
    SERVER_OPENING_FRAMES,
    attach,
    begin,
    credit,
    disposition,
    encode_conversation,
    flow,
    open_,
    transfer,
)
from twinbus.amqp import errors
from twinbus.amqp.codec.frames import AMQP_HEADER, frame
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import FrameTooLarge
from twinbus.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    CreditGranted,
    DeliveriesReceived,
    Event,
    LinkDetached,
    SaslInitReceived,
    SessionEnded,
)
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Rejected, TransactionalState
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import SaslCode, SaslInit
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target

LARGE = Error(condition=errors.NOT_FOUND, description="d" * 600)


class Server:
    """A server that accepts every link."""

    def __init__(self, *steps: Any, properties: dict[str, object] | None = None, **limits: Any) -> None:  # noqa: ANN401
        settings = Settings(container_id="ours", properties=properties, limits=Limits(**limits))
        self.connection = Connection.server(settings, now=0.0, require_sasl=False)
        self.events: list[Event] = []
        self.receive_bytes(AMQP_HEADER)
        self.send_frames(*steps)

    def send_frames(self, *steps: Any) -> list[Event]:  # noqa: ANN401
        """Feed more frames of the peer; return the events."""
        return self.receive_bytes(encode_conversation(*steps).removeprefix(AMQP_HEADER))

    def receive_bytes(self, data: bytes) -> list[Event]:
        events = self.connection.receive_data(data, now=0.0)
        for event in events:
            if isinstance(event, AttachRequested):
                event.link.accept()
        self.events += events
        self.connection.data_to_send()
        check_counters(self.connection, 10**9)
        return events

    def sender(self) -> Sender:
        (link,) = [link for link in self.links() if isinstance(link, Sender)]
        return link

    def receiver(self) -> Receiver:
        (link,) = [link for link in self.links() if isinstance(link, Receiver)]
        return link

    def links(self) -> list[object]:
        return [link for session in self.connection.sessions.values() for link in session.links.values()]

    def condition(self, kind: type[ConnectionClosed | SessionEnded | LinkDetached]) -> str:
        """Return the error condition of the first event of this type."""
        event = next(event for event in self.events if isinstance(event, kind))
        assert event.error is not None
        return event.error.condition


def test_input_after_refused_credentials_is_not_held() -> None:
    connection = Connection.server(Settings(container_id="ours"), now=0.0)
    init = SaslInit(mechanism="PLAIN", initial_response=b"\0user\0password")
    (event,) = connection.receive_data(encode_conversation(*OPENING_FRAMES, sasl=(init,)), now=0.0)
    assert isinstance(event, SaslInitReceived)
    connection.send_sasl_outcome(SaslCode.AUTH)
    assert not connection.has_held_input


def test_an_open_too_large_for_the_peers_frames_closes_the_connection() -> None:
    server = Server(open_(max_frame_size=512), properties={"about": "x" * 600})
    assert server.condition(ConnectionClosed) == errors.FRAME_SIZE_TOO_SMALL
    assert server.connection.is_finished


def test_a_state_too_large_for_the_peers_frames_is_refused_before_anything_is_sent() -> None:
    server = Server(open_(max_frame_size=512), begin(), attach("r", 0, RECEIVER), credit(0, 5))
    sender = server.sender()
    with pytest.raises(FrameTooLarge):
        sender.send(b"hello", state=TransactionalState(txn_id=b"t" * 500))
    assert (sender.sendable, sender.unsettled_count, server.connection.data_to_send()) == (5, 0, b"")


def test_an_outcome_too_large_for_the_peers_frames_is_refused_before_anything_is_settled() -> None:
    server = Server(open_(max_frame_size=512), begin(), attach("s", 0, SENDER))
    server.receiver().grant(5)
    (received,) = server.send_frames(transfer(0, 0))
    assert isinstance(received, DeliveriesReceived)
    with pytest.raises(FrameTooLarge):
        received.link.settle(received.deliveries, Rejected(error=LARGE))
    assert server.receiver().unsettled_count == 1
    received.link.settle(received.deliveries, RELEASED)
    assert server.receiver().unsettled_count == 0


def test_an_end_or_close_too_large_for_the_peers_frames_is_refused_and_can_be_repeated() -> None:
    server = Server(open_(max_frame_size=512), begin(), attach("s", 0, SENDER))
    (session,) = server.connection.sessions.values()
    for step in (session.end, server.connection.close):
        with pytest.raises(FrameTooLarge):
            step(error=LARGE)
    assert server.connection.data_to_send() == b""
    session.end()
    server.connection.close()


def test_an_attach_whose_answer_does_not_fit_the_peers_frames_is_refused() -> None:
    server = Server(open_(max_frame_size=512), begin(), attach("r", 0, RECEIVER, source=Source(address="a" * 430)))
    (request,) = [event for event in server.events if isinstance(event, AttachRequested)]
    assert not request.link.is_attached
    assert server.links() == []
    assert not server.connection.is_closing
    server.send_frames(attach("n" * 450, 1, RECEIVER))
    assert server.condition(ConnectionClosed) == errors.FRAME_SIZE_TOO_SMALL


def test_string_keys_accepted_in_a_filter_are_echoed() -> None:
    source = Source(address="queue", filter={"straße": "x"})
    server = Server(*OPENING_FRAMES, attach("r", 0, RECEIVER, source=source))
    assert server.sender().is_attached


def test_refused_links_are_limited_too() -> None:
    server = Server(*OPENING_FRAMES, max_links=5)
    server.send_frames(*(attach(f"s{handle}", handle, SENDER) for handle in range(10)))
    assert not server.connection.is_closing
    server.send_frames(attach("one more", 10, SENDER))
    assert server.condition(ConnectionClosed) == errors.RESOURCE_LIMIT_EXCEEDED
    assert server.connection.link_count == 0


def test_an_attach_without_a_free_handle_for_its_answer_ends_the_session() -> None:
    server = Server(open_(), begin(handle_max=1))
    for handle in range(3):
        server.send_frames(attach(f"s{handle}", handle, SENDER))
    assert server.condition(SessionEnded) == errors.RESOURCE_LIMIT_EXCEEDED
    assert not server.connection.is_closing
    assert server.connection.link_count == 0


def test_a_begin_without_a_free_channel_for_its_answer_closes_the_connection() -> None:
    server = Server(open_(channel_max=0), begin(), (1, begin()))
    assert server.condition(ConnectionClosed) == errors.RESOURCE_LIMIT_EXCEEDED


def test_a_link_whose_attach_could_not_be_sent_is_not_counted() -> None:
    connection = Connection.client(Settings(container_id="ours"), None, now=0.0)
    session = connection.begin_session()
    connection.receive_data(encode_conversation(open_(max_frame_size=512), SERVER_OPENING_FRAMES[1]), now=0.0)
    with pytest.raises(FrameTooLarge):
        session.attach_sender("s", target=Target(address="a" * 600))
    assert connection.link_count == 0
    assert session.attach_sender("s", target=Target(address="a")).handle == 0


def test_a_window_that_opens_several_times_in_one_read_is_reported_once_for_each_link() -> None:
    links = [(attach(f"r{handle}", handle, RECEIVER), credit(handle, 5)) for handle in range(20)]
    server = Server(*OPENING_FRAMES, *(step for steps in links for step in steps))
    events = server.send_frames(*[flow(incoming_window=0), flow(incoming_window=5)] * 50)
    assert [type(event) for event in events] == [CreditGranted] * 20


def test_a_peer_that_repeats_unsettled_dispositions_loses_its_session() -> None:
    server = Server(
        open_(), begin(incoming_window=1000), attach("r", 0, RECEIVER), credit(0, 500, incoming_window=1000)
    )
    for _ in range(500):
        server.sender().send(b"hello")
    reported = server.send_frames(
        *[disposition(RECEIVER, 0, 2**31 - 2, settled=False, state=state) for state in [ACCEPTED] * 100]
    )
    assert server.condition(SessionEnded) == errors.RESOURCE_LIMIT_EXCEEDED
    assert sum(len(getattr(event, "deliveries", [])) for event in reported) < 20 * 500


def test_a_transfer_on_a_stolen_link_does_not_end_a_drain() -> None:
    server = Server(*OPENING_FRAMES, attach("s", 0, SENDER))
    server.receiver().grant(0, drain=True)
    server.send_frames(attach("s", 1, SENDER))  # steals the first link, whose end is reported
    assert server.send_frames(transfer(0, 0)) == []


def test_zero_width_array_elements_do_not_exhaust_memory() -> None:
    server = Server(*OPENING_FRAMES)
    body = attach("s", 0, SENDER).encode()
    assert body[3] == 0xC0
    bomb = b"\xc1\x0e\x02\xa3\x01k\xf0\x00\x00\x00\x05\x00\x00\xea\x60\x45"  # sixty thousand empty lists
    server.receive_bytes(frame(0, body[:3] + bytes((0xC0, len(body) - 6 + len(bomb), 14)) + body[6:-1] + bomb))
    assert server.condition(ConnectionClosed) == errors.RESOURCE_LIMIT_EXCEEDED
    assert memory_held_by(server.connection) < HELD_BASE
