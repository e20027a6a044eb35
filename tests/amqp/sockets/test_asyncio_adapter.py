"""The asyncio adapter on real sockets: writes, events to handlers, failures of handlers, limits and back-pressure."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import uvloop

from twinbus.amqp import aio, errors
from twinbus.amqp.aio import Peer, connect, listen
from twinbus.amqp.codec.frames import AMQP_HEADER, frame
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Flow, Open
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    Event,
    LinkDetached,
    SaslInitReceived,
    SendsUpdated,
    SessionEnded,
)
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.amqp.listener import Listener
    from twinbus.amqp.sender import Sender

SERVER = Settings(container_id="server", limits=Limits(max_message_size=10_000_000))
ENDLESS_CREDIT = Flow(
    next_incoming_id=0, incoming_window=2**31, next_outgoing_id=0, outgoing_window=1, handle=0, link_credit=1_000_000
)
CLIENT = Settings(container_id="client", limits=Limits(max_message_size=10_000_000))


class Recorder:
    """A handler that records its events, and lets a test wait for them."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.events: list[Event] = []
        self.writable_again = 0
        self.news = asyncio.Event()

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self.handle_event(event)
        self.news.set()

    def handle_event(self, event: Event) -> None:
        if isinstance(event, SaslInitReceived):
            self.peer.connection.send_sasl_outcome()
        elif isinstance(event, AttachRequested):
            event.link.accept()
            if isinstance(event.link, Receiver):
                event.link.keep_credit(100)

    def on_writable(self) -> None:
        self.writable_again += 1
        self.news.set()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self.news.clear()
                await self.news.wait()

    async def wait_for_events(self, kind: type[Event], count: int = 1) -> list[Event]:
        await self.wait_until(lambda: len([event for event in self.events if isinstance(event, kind)]) >= count)
        return [event for event in self.events if isinstance(event, kind)]


class ListenerFixture:
    """A listener that records its handlers, and creates clients."""

    def __init__(self, make_handler: type[Recorder] = Recorder, settings: Settings = SERVER) -> None:
        self.make_handler = make_handler
        self.settings = settings
        self.handlers: list[Recorder] = []
        self.arrivals: asyncio.Queue[Recorder] = asyncio.Queue()
        self.listener: Listener

    async def start(self, max_connections: int = 100) -> ListenerFixture:
        def make(peer: Peer) -> Recorder:
            self.handlers.append(self.make_handler(peer))
            self.arrivals.put_nowait(self.handlers[-1])
            return self.handlers[-1]

        self.listener = await listen(
            make,
            lambda now: Connection.server(self.settings, now=now, require_sasl=False),
            max_connections=max_connections,
        )
        return self

    async def client(self) -> Recorder:
        return await connect(
            Recorder,
            lambda now: Connection.client(CLIENT, Credentials.anonymous(), now=now),
            host="127.0.0.1",
            port=self.listener.port,
        )


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    uvloop.run(bounded())


async def sender_of(client: Recorder, name: str = "out") -> Sender:
    await client.wait_for_events(ConnectionOpened)
    session = client.peer.connection.begin_session()
    sender = session.attach_sender(name, target=Target(address="queue"))
    await client.wait_for_events(CreditGranted)
    return sender


def test_a_client_and_a_server_exchange_a_message_over_a_socket() -> None:
    async def test() -> None:
        fixture = await ListenerFixture().start()
        client = await fixture.client()
        await client.wait_for_events(ConnectionOpened)
        sender = await sender_of(client)
        sender.send(b"hello")
        (server,) = fixture.handlers
        (event,) = await server.wait_for_events(DeliveriesReceived)
        assert isinstance(event, DeliveriesReceived)
        assert event.deliveries[0].payload == b"hello"
        event.link.settle(event.deliveries)
        await client.wait_for_events(SendsUpdated)
        await fixture.listener.close()
        (closed,) = await client.wait_for_events(ConnectionClosed)
        assert isinstance(closed, ConnectionClosed)
        assert closed.error is not None
        assert closed.error.condition == errors.CONNECTION_FORCED
        await asyncio.wait_for(client.peer.lost, 10)
        assert fixture.listener.peers == set()

    run(test)


class CountingTransport:
    """A transport that records each write."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.written: list[bytes] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.transport.write(data)


def test_frames_queued_in_one_loop_turn_are_sent_in_one_write() -> None:
    async def test() -> None:
        fixture = await ListenerFixture().start()
        client = await fixture.client()
        sender = await sender_of(client)
        counting = CountingTransport(client.peer.transport)
        client.peer.transport = cast("asyncio.Transport", counting)
        for _ in range(50):
            sender.send(b"x")
        await fixture.handlers[0].wait_for_events(DeliveriesReceived)
        assert len(counting.written) == 1
        await fixture.listener.close()

    run(test)


def test_a_failing_handler_closes_only_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Recorder):
        def handle_event(self, event: Event) -> None:
            super().handle_event(event)
            if isinstance(event, AttachRequested) and event.link.name == "bad":
                raise RuntimeError("a bug")

    async def test() -> None:
        fixture = await ListenerFixture(Faulty).start()
        good, bad = await fixture.client(), await fixture.client()
        sender = await sender_of(good)
        await bad.wait_for_events(ConnectionOpened)
        bad.peer.connection.begin_session().attach_sender("bad", target=Target(address="queue"))
        (closed,) = await bad.wait_for_events(ConnectionClosed)
        assert isinstance(closed, ConnectionClosed)
        assert closed.error is not None
        assert closed.error.condition == errors.INTERNAL_ERROR
        assert "a bug" not in (closed.error.description or "")
        sender.send(b"x")
        await fixture.handlers[0].wait_for_events(DeliveriesReceived)
        await fixture.listener.close()

    with caplog.at_level(logging.ERROR):
        run(test)
    assert "a bug" in caplog.text


def test_a_link_attached_and_closed_in_one_read_reports_detach_end_and_close() -> None:
    async def test() -> None:
        fixture = await ListenerFixture().start()
        with socket.create_connection(("127.0.0.1", fixture.listener.port)) as client_socket:
            client_socket.sendall(
                AMQP_HEADER
                + frame(0, Open(container_id="hasty").encode())
                + frame(0, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9).encode())
                + frame(0, Attach(name="in", handle=0, role=False, initial_delivery_count=0).encode())
                + frame(0, Close().encode())
            )
            server = await fixture.arrivals.get()
            (closed,) = await server.wait_for_events(ConnectionClosed)
            assert isinstance(closed, ConnectionClosed)
            assert closed.error is None  # the peer closed, without an error
            kinds = [type(event) for event in server.events]
            assert kinds[-3:] == [LinkDetached, SessionEnded, ConnectionClosed]
        await fixture.listener.close()

    run(test)


def test_a_failed_handler_gets_every_end_event_and_no_other_event() -> None:
    class Faulty(Recorder):
        def handle_event(self, event: Event) -> None:
            super().handle_event(event)
            if isinstance(event, AttachRequested | LinkDetached):
                raise RuntimeError("a bug, and again")  # noqa: TRY004

    async def test() -> None:
        fixture = await ListenerFixture(Faulty).start()
        client = await fixture.client()
        await client.wait_for_events(ConnectionOpened)
        session = client.peer.connection.begin_session()
        for name in ("1", "2", "3"):
            session.attach_sender(name, target=Target(address="queue"))
        (server,) = fixture.handlers
        await server.wait_for_events(ConnectionClosed)
        kinds = [type(event) for event in server.events]
        assert kinds.count(AttachRequested) == 1
        assert kinds[-5:] == [LinkDetached, LinkDetached, LinkDetached, SessionEnded, ConnectionClosed]
        await fixture.listener.close()

    run(test)


def test_a_handler_whose_constructor_fails_closes_only_its_socket() -> None:
    class FailingHandler(Recorder):
        def __init__(self, peer: Peer) -> None:
            super().__init__(peer)
            raise RuntimeError("a bug")

    async def test() -> None:
        fixture = await ListenerFixture(FailingHandler).start()
        client = await fixture.client()
        await client.wait_for_events(ConnectionClosed)
        assert fixture.listener.peers == set()
        with pytest.raises(errors.LocalError, match="handler"):
            await connect(
                FailingHandler,
                lambda now: Connection.client(CLIENT, Credentials.anonymous(), now=now),
                host="127.0.0.1",
                port=fixture.listener.port,
            )
        await fixture.listener.close()

    run(test)


def test_an_unanswered_close_drops_the_socket_after_the_handshake_timeout() -> None:
    async def test() -> None:
        settings = Settings(container_id="server", handshake_timeout_ms=100, idle_timeout_ms=600_000)
        fixture = await ListenerFixture(settings=settings).start()
        with socket.create_connection(("127.0.0.1", fixture.listener.port)) as client_socket:
            client_socket.sendall(AMQP_HEADER + frame(0, Open(container_id="mute").encode()))
            server = await fixture.arrivals.get()
            await server.wait_for_events(ConnectionOpened)
            server.peer.close()
            await asyncio.wait_for(server.peer.lost, 10)
        await fixture.listener.close()

    run(test)


def test_a_socket_accepted_after_the_listener_was_closed_is_dropped() -> None:
    async def test() -> None:
        fixture = await ListenerFixture().start()
        admit = fixture.listener.admit
        await fixture.listener.close()
        late = Peer(Recorder, Connection.server(SERVER, now=0.0), fixture.listener)
        assert not admit(late)
        assert fixture.listener.peers == set()

    run(test)


def test_a_connection_beyond_the_limit_is_dropped_and_the_others_continue() -> None:
    async def test() -> None:
        fixture = await ListenerFixture().start(max_connections=1)
        first = await fixture.client()
        await first.wait_for_events(ConnectionOpened)
        second = await fixture.client()
        await second.wait_for_events(ConnectionClosed)
        await sender_of(first)
        first.peer.close()
        await asyncio.wait_for(first.peer.lost, 10)
        await asyncio.wait_for(fixture.handlers[0].peer.lost, 10)
        third = await fixture.client()
        await third.wait_for_events(ConnectionOpened)
        await fixture.listener.close()

    run(test)


def test_a_late_sasl_outcome_releases_the_input_held_back() -> None:
    class Slow(Recorder):
        def handle_event(self, event: Event) -> None:
            if not isinstance(event, SaslInitReceived):
                super().handle_event(event)

    async def test() -> None:
        fixture = await ListenerFixture(Slow).start()
        client = await fixture.client()
        server = await fixture.arrivals.get()
        await server.wait_for_events(SaslInitReceived)
        server.peer.connection.send_sasl_outcome()
        await client.wait_for_events(ConnectionOpened)
        await fixture.listener.close()

    run(test)


def test_a_peer_that_does_not_answer_a_close_is_dropped_after_the_grace_period() -> None:
    async def test() -> None:
        fixture = await ListenerFixture().start()
        with socket.create_connection(("127.0.0.1", fixture.listener.port)) as client_socket:
            client_socket.sendall(AMQP_HEADER + frame(0, Open(container_id="mute").encode()))
            server = await fixture.arrivals.get()
            await server.wait_for_events(ConnectionOpened)
            await fixture.listener.close(grace_s=0.1)
            await asyncio.wait_for(server.peer.lost, 10)
            assert fixture.listener.peers == set()

    run(test)


def test_a_lost_socket_is_reported_once() -> None:
    async def test() -> None:
        fixture = await ListenerFixture().start()
        client = await fixture.client()
        await sender_of(client)
        client.peer.transport.abort()
        (server,) = fixture.handlers
        await server.wait_for_events(ConnectionClosed)
        await asyncio.wait_for(server.peer.lost, 10)
        assert [type(event) for event in server.events].count(ConnectionClosed) == 1
        assert [type(event) for event in server.events].count(LinkDetached) == 1
        await fixture.listener.close()

    run(test)


def test_a_silent_peer_is_closed_by_a_timer() -> None:
    async def test() -> None:
        fixture = await ListenerFixture(settings=Settings(container_id="server", idle_timeout_ms=200)).start()
        with socket.create_connection(("127.0.0.1", fixture.listener.port)) as client_socket:
            client_socket.sendall(AMQP_HEADER + frame(0, Open(container_id="silent").encode()))
            (closed,) = await (await fixture.arrivals.get()).wait_for_events(ConnectionClosed)
            assert isinstance(closed, ConnectionClosed)
            assert closed.error is not None
            assert closed.error.condition == errors.RESOURCE_LIMIT_EXCEEDED
        await fixture.listener.close(grace_s=0.1)

    run(test)


# --- back-pressure ----------------------------------------------------------------------------------------------------


def test_a_server_stops_reading_from_a_peer_with_too_many_unanswered_bytes() -> None:
    limits = Limits(max_message_size=10_000_000, max_unanswered_bytes=1_000_000)

    async def test() -> None:
        fixture = await ListenerFixture(settings=Settings(container_id="server", limits=limits)).start()
        client = await fixture.client()
        sender = await sender_of(client)
        for _ in range(100):
            sender.send(bytes(200_000))
        (server,) = fixture.handlers
        await server.wait_until(lambda: server.peer.connection.unanswered_bytes > 1_000_000)
        for _ in range(200):  # give the server time to read more
            await asyncio.sleep(0)
        assert server.peer.connection.unanswered_bytes < 3_000_000
        while (
            len(
                [
                    delivery
                    for event in server.events
                    if isinstance(event, DeliveriesReceived)
                    for delivery in event.deliveries
                ]
            )
            < 100
        ):
            for event in server.events:
                if isinstance(event, DeliveriesReceived):
                    event.link.settle(event.deliveries)
            server.news.clear()
            async with asyncio.timeout(10):
                await server.news.wait()
        await fixture.listener.close()

    run(test)


def test_a_peer_that_does_not_read_takes_bounded_memory() -> None:
    class EndlessSender(Recorder):
        """A handler that sends without end, as long as credit and socket allow."""

        sent = 0

        def handle_event(self, event: Event) -> None:
            super().handle_event(event)
            if isinstance(event, CreditGranted):
                self.pump(event.link)

        def pump(self, link: Sender) -> None:
            while self.peer.is_writable and link.sendable:
                link.send(bytes(100_000), settled=True)
                self.sent += 1
                self.peer.flush()

    async def test() -> None:
        fixture = await ListenerFixture(EndlessSender).start()
        with socket.create_connection(("127.0.0.1", fixture.listener.port)) as client_socket:
            client_socket.sendall(
                AMQP_HEADER
                + frame(0, Open(container_id="deaf").encode())
                + frame(0, Begin(next_outgoing_id=0, incoming_window=2**31, outgoing_window=1).encode())
                + frame(0, Attach(name="in", handle=0, role=True, source=Source(), target=Target()).encode())
                + frame(0, ENDLESS_CREDIT.encode())
            )
            handler = await fixture.arrivals.get()
            assert isinstance(handler, EndlessSender)
            await handler.wait_for_events(CreditGranted)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not handler.peer.is_writable
            assert 0 < handler.sent * 100_000 < 30_000_000  # the socket buffers plus one high-water mark
        await asyncio.wait_for(handler.peer.lost, 20)
        await fixture.listener.close()

    run(test)


def test_the_adapter_has_fewer_than_300_lines() -> None:
    assert len(Path(aio.__file__).read_text().splitlines()) < 300
