"""What the fuzzer, and reading the engine for it, has found so far: each stays found."""

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
from twinbus.amqp.frames import AMQP_HEADER, frame
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Rejected, TransactionalState
from twinbus.amqp.performatives import Error
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import SaslCode, SaslInit
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target

LARGE = Error(condition=errors.NOT_FOUND, description="d" * 600)


class Server:
    """Our server, whose program accepts every link."""

    def __init__(self, *steps: Any, properties: dict[str, object] | None = None, **limits: Any) -> None:  # noqa: ANN401
        settings = Settings(container_id="ours", properties=properties, limits=Limits(**limits))
        self.connection = Connection.server(settings, now=0.0, require_sasl=False)
        self.events: list[Event] = []
        self.receive_bytes(AMQP_HEADER)
        self.send_frames(*steps)

    def send_frames(self, *steps: Any) -> list[Event]:  # noqa: ANN401
        """The peer says some more; what that means."""
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
        """Why the first of this kind ended."""
        event = next(event for event in self.events if isinstance(event, kind))
        assert event.error is not None
        return event.error.condition


def test_who_talks_on_after_its_credentials_were_refused_is_not_read_for_ever() -> None:
    connection = Connection.server(Settings(container_id="ours"), now=0.0)
    init = SaslInit(mechanism="PLAIN", initial_response=b"\0user\0password")
    (event,) = connection.receive_data(encode_conversation(*OPENING_FRAMES, sasl=(init,)), now=0.0)
    assert isinstance(event, SaslInitReceived)
    connection.send_sasl_outcome(SaslCode.AUTH)
    assert not connection.has_held_input


def test_an_open_too_large_for_the_peers_frames_ends_the_connection() -> None:
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


def test_a_step_that_does_not_fit_the_peers_frames_is_not_taken() -> None:
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
    (asked,) = [event for event in server.events if isinstance(event, AttachRequested)]
    assert not asked.link.is_attached
    assert server.links() == []
    assert not server.connection.is_closing
    server.send_frames(attach("n" * 450, 1, RECEIVER))
    assert server.condition(ConnectionClosed) == errors.FRAME_SIZE_TOO_SMALL


def test_keys_that_were_forgiven_for_being_strings_are_echoed() -> None:
    source = Source(address="queue", filter={"straße": "x"})
    server = Server(*OPENING_FRAMES, attach("r", 0, RECEIVER, source=source))
    assert server.sender().is_attached


def test_links_that_are_refused_are_limited_too() -> None:
    server = Server(*OPENING_FRAMES, max_links=5)
    server.send_frames(*(attach(f"s{handle}", handle, SENDER) for handle in range(10)))
    assert not server.connection.is_closing
    server.send_frames(attach("one more", 10, SENDER))
    assert server.condition(ConnectionClosed) == errors.RESOURCE_LIMIT_EXCEEDED
    assert server.connection.link_count == 0


def test_an_attach_that_finds_no_handle_for_its_answer_ends_its_session() -> None:
    server = Server(open_(), begin(handle_max=1))
    for handle in range(3):
        server.send_frames(attach(f"s{handle}", handle, SENDER))
    assert server.condition(SessionEnded) == errors.RESOURCE_LIMIT_EXCEEDED
    assert not server.connection.is_closing
    assert server.connection.link_count == 0


def test_a_begin_that_finds_no_channel_for_its_answer_closes_the_connection() -> None:
    server = Server(open_(channel_max=0), begin(), (1, begin()))
    assert server.condition(ConnectionClosed) == errors.RESOURCE_LIMIT_EXCEEDED


def test_a_link_of_ours_that_could_not_be_asked_for_is_not_counted() -> None:
    connection = Connection.client(Settings(container_id="ours"), None, now=0.0)
    session = connection.begin_session()
    connection.receive_data(encode_conversation(open_(max_frame_size=512), SERVER_OPENING_FRAMES[1]), now=0.0)
    with pytest.raises(FrameTooLarge):
        session.attach_sender("s", target=Target(address="a" * 600))
    assert connection.link_count == 0
    assert session.attach_sender("s", target=Target(address="a")).handle == 0


def test_a_window_that_closes_and_opens_with_every_frame_is_told_once_for_a_read() -> None:
    links = [(attach(f"r{handle}", handle, RECEIVER), credit(handle, 5)) for handle in range(20)]
    server = Server(*OPENING_FRAMES, *(step for steps in links for step in steps))
    events = server.send_frames(*[flow(incoming_window=0), flow(incoming_window=5)] * 50)
    assert [type(event) for event in events] == [CreditGranted] * 20


def test_who_goes_on_about_deliveries_without_settling_them_loses_the_session() -> None:
    server = Server(
        open_(), begin(incoming_window=1000), attach("r", 0, RECEIVER), credit(0, 500, incoming_window=1000)
    )
    for _ in range(500):
        server.sender().send(b"hello")
    told = server.send_frames(
        *[disposition(RECEIVER, 0, 2**31 - 2, settled=False, state=state) for state in [ACCEPTED] * 100]
    )
    assert server.condition(SessionEnded) == errors.RESOURCE_LIMIT_EXCEEDED
    assert sum(len(getattr(event, "deliveries", [])) for event in told) < 20 * 500


def test_a_transfer_on_a_link_that_is_over_ends_no_drain() -> None:
    server = Server(*OPENING_FRAMES, attach("s", 0, SENDER))
    server.receiver().grant(0, drain=True)
    server.send_frames(attach("s", 1, SENDER))  # takes the place of the first, whose end is told
    assert server.send_frames(transfer(0, 0)) == []


def test_elements_without_bytes_do_not_fill_the_memory() -> None:
    server = Server(*OPENING_FRAMES)
    body = attach("s", 0, SENDER).encode()
    assert body[3] == 0xC0
    bomb = b"\xc1\x0e\x02\xa3\x01k\xf0\x00\x00\x00\x05\x00\x00\xea\x60\x45"  # sixty thousand empty lists
    server.receive_bytes(frame(0, body[:3] + bytes((0xC0, len(body) - 6 + len(bomb), 14)) + body[6:-1] + bomb))
    assert server.condition(ConnectionClosed) == errors.RESOURCE_LIMIT_EXCEEDED
    assert memory_held_by(server.connection) < HELD_BASE
