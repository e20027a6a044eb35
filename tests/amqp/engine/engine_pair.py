"""Test harnesses of the AMQP engine: a client and server connected in memory, and a server fed with single frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from twinbus.amqp.codec.frames import AMQP_HEADER, HEADER_SIZE, frame, read_performative
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Open
from twinbus.amqp.codec.performatives import End as EndFrame
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import AttachRequested, Event, SaslInitReceived
from twinbus.amqp.link import Link
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.session import Session

EventT = TypeVar("EventT", bound=Event)


class EngineEnd:
    """An engine and all events that it has reported."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []

    def events_of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    def only_event(self, kind: type[EventT]) -> EventT:
        (event,) = self.events_of(kind)
        return event

    def clear_events(self) -> None:
        self.events.clear()


class EnginePair:
    """A client and a server with an open connection; `exchange` carries the bytes between them."""

    def __init__(
        self,
        client: Limits | None = None,
        server: Limits | None = None,
        answer_attach: Callable[[Link], None] | None = None,
    ) -> None:
        self.now = 0.0
        client_settings = Settings(container_id="client", hostname="contoso", limits=client or Limits())
        server_settings = Settings(container_id="server", limits=server or Limits())
        self.client = EngineEnd(Connection.client(client_settings, Credentials.anonymous(), now=0.0))
        self.server = EngineEnd(Connection.server(server_settings, now=0.0))
        self.answer_attach = answer_attach or Link.accept
        self.exchange()

    def exchange(self) -> None:
        """Carry bytes in both directions until neither end sends; the server answers SASL and attach."""
        while True:
            upwards = self.client.connection.data_to_send()
            self._feed(self.server, upwards)
            downwards = self.server.connection.data_to_send()
            self._feed(self.client, downwards)
            if not upwards and not downwards:
                return

    def _feed(self, end: EngineEnd, data: bytes) -> None:
        new_events = end.connection.receive_data(data, now=self.now) if data else []
        while new_events or end.connection.has_held_input:
            end.events += new_events
            for event in new_events:
                if isinstance(event, SaslInitReceived):
                    end.connection.send_sasl_outcome()
                elif isinstance(event, AttachRequested):
                    self.answer_attach(event.link)
            new_events = end.connection.receive_data(b"", now=self.now) if end.connection.has_held_input else []

    def session(self) -> Session:
        session = self.client.connection.begin_session()
        self.exchange()
        return session

    def sender(
        self, credit: int = 100, *, session: Session | None = None, name: str = "out"
    ) -> tuple[Sender, Receiver]:
        """Attach a link from client to server; return its two ends."""
        sender = (session or self.session()).attach_sender(name, target=Target(address="queue"))
        self.exchange()
        receiver = self.server_link(sender)
        assert isinstance(receiver, Receiver)
        if credit:
            receiver.grant(credit)
            self.exchange()
        return sender, receiver

    def receiver(self, credit: int = 0, *, session: Session | None = None, name: str = "in") -> tuple[Receiver, Sender]:
        """Attach a link from server to client; return its two ends."""
        receiver = (session or self.session()).attach_receiver(name, source=Source(address="queue"))
        self.exchange()
        sender = self.server_link(receiver)
        assert isinstance(sender, Sender)
        if credit:
            receiver.grant(credit)
            self.exchange()
        return receiver, sender

    def server_link(self, link: Link) -> Link:
        """Return the server's end of a client's link."""
        remote_channel = link.session.remote_channel
        assert remote_channel is not None
        return self.server.connection.sessions[remote_channel].links[link.name, not link.role]


class SingleEngine:
    """A server without SASL that is fed with frames built by the test."""

    def __init__(self, limits: Limits | None = None, settings: Settings | None = None) -> None:
        self.settings = settings or Settings(container_id="server", limits=limits or Limits())
        self.end = EngineEnd(Connection.server(self.settings, now=0.0, require_sasl=False))
        self.connection = self.end.connection
        self.sent: list[tuple[int, Composite, bytes]] = []

    def feed_bytes(self, data: bytes) -> list[Event]:
        """Feed bytes; `sent` collects the frames that the engine sends in return."""
        new_events = self.connection.receive_data(data, now=0.0)
        self.end.events += new_events
        self.collect()
        return new_events

    def collect(self) -> list[tuple[int, Composite, bytes]]:
        """Return the frames sent since the last call: channel, performative, payload."""
        new_frames = split_frames(self.connection.data_to_send())
        self.sent += new_frames
        return new_frames

    def send(self, *performatives: Composite, channel: int = 0, payload: bytes = b"") -> list[Event]:
        return self.feed_bytes(
            b"".join(frame(channel, performative.encode() + payload) for performative in performatives)
        )

    def opened(self) -> SingleEngine:
        if self.connection.remote_open is None:
            self.feed_bytes(AMQP_HEADER)
            self.send(Open(container_id="client"))
        return self

    def begun(self) -> SingleEngine:
        self.opened()
        self.send(Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000))
        return self

    def attached(self, *, role: bool = Role.SENDER, handle: int = 0, name: str = "link") -> Link:
        """Attach a link whose peer has `role`, and accept it."""
        if not self.connection.sessions:
            self.begun()
        self.send(
            Attach(name=name, handle=handle, role=role, initial_delivery_count=0, source=Source(), target=Target())
        )
        link = self.end.events_of(AttachRequested)[-1].link
        link.accept()
        self.collect()
        return link

    def condition(self, kind: type[Detach | EndFrame | Close]) -> str:
        """Return the error condition of the last detach, end or close that the engine sent."""
        error = self.last(kind).error
        assert error is not None
        return error.condition

    def last(self, kind: type[CompositeT]) -> CompositeT:
        """Return the last performative of type `kind` that the engine sent."""
        performatives = [performative for _, performative, _ in self.sent if isinstance(performative, kind)]
        assert performatives, f"no {kind.__name__} in {self.sent}"
        return performatives[-1]


if TYPE_CHECKING:
    CompositeT = TypeVar("CompositeT", bound=Composite)


def split_frames(data: bytes) -> list[tuple[int, Composite, bytes]]:
    """Return the frames in `data`, without protocol headers and heartbeats."""
    frames = []
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += HEADER_SIZE
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        channel = int.from_bytes(data[at + 6 : at + 8], "big")
        if size > HEADER_SIZE:
            performative, payload_start = read_performative(data, at + HEADER_SIZE, at + size, Limits())
            frames.append((channel, performative, data[payload_start : at + size]))
        at += size
    return frames
