"""Two engines that talk to each other in memory, and one engine that is fed hand-made frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import AttachRequested, Event, SaslInitReceived
from twinbus.amqp.frames import AMQP_HEADER, HEADER_SIZE, frame, read_performative
from twinbus.amqp.link import Link
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, Open
from twinbus.amqp.performatives import End as EndFrame
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.session import Session

EventT = TypeVar("EventT", bound=Event)


class EngineEnd:
    """One engine with all it has told so far."""

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
    """A client and a server, opened, with the bytes between them carried by `exchange`."""

    def __init__(
        self,
        client: Limits | None = None,
        server: Limits | None = None,
        answer_attach: Callable[[Link], None] | None = None,
    ) -> None:
        self.now = 0.0
        ours = Settings(container_id="client", hostname="contoso", limits=client or Limits())
        theirs = Settings(container_id="server", limits=server or Limits())
        self.client = EngineEnd(Connection.client(ours, Credentials.anonymous(), now=0.0))
        self.server = EngineEnd(Connection.server(theirs, now=0.0))
        self.answer_attach = answer_attach or Link.accept
        self.exchange()

    def exchange(self) -> None:
        """Carry bytes to and fro until both are silent; the server answers SASL and attach."""
        while True:
            upwards = self.client.connection.data_to_send()
            self._feed(self.server, upwards)
            downwards = self.server.connection.data_to_send()
            self._feed(self.client, downwards)
            if not upwards and not downwards:
                return

    def _feed(self, end: EngineEnd, data: bytes) -> None:
        fresh = end.connection.receive_data(data, now=self.now) if data else []
        while fresh or end.connection.has_held_input:
            end.events += fresh
            for event in fresh:
                if isinstance(event, SaslInitReceived):
                    end.connection.send_sasl_outcome()
                elif isinstance(event, AttachRequested):
                    self.answer_attach(event.link)
            fresh = end.connection.receive_data(b"", now=self.now) if end.connection.has_held_input else []

    def session(self) -> Session:
        session = self.client.connection.begin_session()
        self.exchange()
        return session

    def sender(
        self, credit: int = 100, *, session: Session | None = None, name: str = "out"
    ) -> tuple[Sender, Receiver]:
        """A link from client to server: its two ends."""
        sender = (session or self.session()).attach_sender(name, target=Target(address="queue"))
        self.exchange()
        receiver = self.server_link(sender)
        assert isinstance(receiver, Receiver)
        if credit:
            receiver.grant(credit)
            self.exchange()
        return sender, receiver

    def receiver(self, credit: int = 0, *, session: Session | None = None, name: str = "in") -> tuple[Receiver, Sender]:
        """A link from server to client: its two ends."""
        receiver = (session or self.session()).attach_receiver(name, source=Source(address="queue"))
        self.exchange()
        sender = self.server_link(receiver)
        assert isinstance(sender, Sender)
        if credit:
            receiver.grant(credit)
            self.exchange()
        return receiver, sender

    def server_link(self, link: Link) -> Link:
        """The other end of a client's link."""
        remote_channel = link.session.remote_channel
        assert remote_channel is not None
        return self.server.connection.sessions[remote_channel].links[link.name, not link.role]


class SingleEngine:
    """A server that is fed frames made by hand, past SASL."""

    def __init__(self, limits: Limits | None = None, settings: Settings | None = None) -> None:
        self.settings = settings or Settings(container_id="server", limits=limits or Limits())
        self.end = EngineEnd(Connection.server(self.settings, now=0.0, require_sasl=False))
        self.connection = self.end.connection
        self.sent: list[tuple[int, Composite, bytes]] = []

    def feed_bytes(self, data: bytes) -> list[Event]:
        """Feed bytes; what the engine sends in turn is kept in `sent`."""
        fresh = self.connection.receive_data(data, now=0.0)
        self.end.events += fresh
        self.collect()
        return fresh

    def collect(self) -> list[tuple[int, Composite, bytes]]:
        """What the engine has sent since the last time: channel, performative, payload."""
        fresh = split_frames(self.connection.data_to_send())
        self.sent += fresh
        return fresh

    def send(self, *performatives: Composite, channel: int = 0, payload: bytes = b"") -> list[Event]:
        return self.feed_bytes(b"".join(frame(channel, one.encode() + payload) for one in performatives))

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
        """A link whose peer has `role`, answered by us."""
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
        """Of the error in the last detach, end or close that the engine sent."""
        error = self.last(kind).error
        assert error is not None
        return error.condition

    def last(self, kind: type[CompositeT]) -> CompositeT:
        """The last performative of a kind that the engine sent."""
        found = [performative for _, performative, _ in self.sent if isinstance(performative, kind)]
        assert found, f"no {kind.__name__} in {self.sent}"
        return found[-1]


if TYPE_CHECKING:
    CompositeT = TypeVar("CompositeT", bound=Composite)


def split_frames(data: bytes) -> list[tuple[int, Composite, bytes]]:
    """The frames in bytes that the engine sent; protocol headers and heartbeats are passed over."""
    frames = []
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += HEADER_SIZE
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        channel = int.from_bytes(data[at + 6 : at + 8], "big")
        if size > HEADER_SIZE:
            performative, stopped = read_performative(data, at + HEADER_SIZE, at + size, Limits())
            frames.append((channel, performative, data[stopped : at + size]))
        at += size
    return frames
