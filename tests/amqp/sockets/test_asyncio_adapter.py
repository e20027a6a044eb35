"""The engine on real sockets, both roles ours: what the adapter owes its handlers."""

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
from twinbus.amqp.frames import AMQP_HEADER, frame
from twinbus.amqp.performatives import Attach, Begin, Close, Flow, Open
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
    """A handler that keeps what it is told, and wakes whoever waits for it."""

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
        await self.wait_until(lambda: len([one for one in self.events if isinstance(one, kind)]) >= count)
        return [one for one in self.events if isinstance(one, kind)]


class ListenerFixture:
    """A listener whose handlers are kept, and clients of it."""

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


def test_both_roles_talk_over_a_socket() -> None:
    async def test() -> None:
        place = await ListenerFixture().start()
        client = await place.client()
        await client.wait_for_events(ConnectionOpened)
        sender = await sender_of(client)
        sender.send(b"hello")
        (server,) = place.handlers
        (event,) = await server.wait_for_events(DeliveriesReceived)
        assert isinstance(event, DeliveriesReceived)
        assert event.deliveries[0].payload == b"hello"
        event.link.settle(event.deliveries)
        await client.wait_for_events(SendsUpdated)
        await place.listener.close()
        (closed,) = await client.wait_for_events(ConnectionClosed)
        assert isinstance(closed, ConnectionClosed)
        assert closed.error is not None
        assert closed.error.condition == errors.CONNECTION_FORCED
        await asyncio.wait_for(client.peer.lost, 10)
        assert place.listener.peers == set()

    run(test)


class CountingTransport:
    """A transport that notes what is written."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.written: list[bytes] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.transport.write(data)


def test_what_is_queued_in_one_turn_goes_out_in_one_write() -> None:
    async def test() -> None:
        place = await ListenerFixture().start()
        client = await place.client()
        sender = await sender_of(client)
        counting = CountingTransport(client.peer.transport)
        client.peer.transport = cast("asyncio.Transport", counting)
        for _ in range(50):
            sender.send(b"x")
        await place.handlers[0].wait_for_events(DeliveriesReceived)
        assert len(counting.written) == 1
        await place.listener.close()

    run(test)


def test_a_handler_that_fails_costs_its_own_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Recorder):
        def handle_event(self, event: Event) -> None:
            super().handle_event(event)
            if isinstance(event, AttachRequested) and event.link.name == "bad":
                raise RuntimeError("a bug")

    async def test() -> None:
        place = await ListenerFixture(Faulty).start()
        good, bad = await place.client(), await place.client()
        sender = await sender_of(good)
        await bad.wait_for_events(ConnectionOpened)
        bad.peer.connection.begin_session().attach_sender("bad", target=Target(address="queue"))
        (closed,) = await bad.wait_for_events(ConnectionClosed)
        assert isinstance(closed, ConnectionClosed)
        assert closed.error is not None
        assert closed.error.condition == errors.INTERNAL_ERROR
        assert "a bug" not in (closed.error.description or "")
        sender.send(b"x")
        await place.handlers[0].wait_for_events(DeliveriesReceived)
        await place.listener.close()

    with caplog.at_level(logging.ERROR):
        run(test)
    assert "a bug" in caplog.text


def test_a_link_that_comes_and_goes_in_one_read_costs_nothing_and_every_end_is_told() -> None:
    async def test() -> None:
        place = await ListenerFixture().start()
        with socket.create_connection(("127.0.0.1", place.listener.port)) as hasty:
            hasty.sendall(
                AMQP_HEADER
                + frame(0, Open(container_id="hasty").encode())
                + frame(0, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9).encode())
                + frame(0, Attach(name="in", handle=0, role=False, initial_delivery_count=0).encode())
                + frame(0, Close().encode())
            )
            server = await place.arrivals.get()
            (closed,) = await server.wait_for_events(ConnectionClosed)
            assert isinstance(closed, ConnectionClosed)
            assert closed.error is None  # the peer's own wish, not a fault of ours
            kinds = [type(event) for event in server.events]
            assert kinds[-3:] == [LinkDetached, SessionEnded, ConnectionClosed]
        await place.listener.close()

    run(test)


def test_a_handler_that_has_failed_hears_of_ends_only_and_of_each() -> None:
    class Faulty(Recorder):
        def handle_event(self, event: Event) -> None:
            super().handle_event(event)
            if isinstance(event, AttachRequested | LinkDetached):
                raise RuntimeError("a bug, and again")  # noqa: TRY004

    async def test() -> None:
        place = await ListenerFixture(Faulty).start()
        client = await place.client()
        await client.wait_for_events(ConnectionOpened)
        session = client.peer.connection.begin_session()
        for name in ("1", "2", "3"):
            session.attach_sender(name, target=Target(address="queue"))
        (server,) = place.handlers
        await server.wait_for_events(ConnectionClosed)
        kinds = [type(event) for event in server.events]
        assert kinds.count(AttachRequested) == 1
        assert kinds[-5:] == [LinkDetached, LinkDetached, LinkDetached, SessionEnded, ConnectionClosed]
        await place.listener.close()

    run(test)


def test_a_handler_that_cannot_be_made_costs_the_socket_only() -> None:
    class Unborn(Recorder):
        def __init__(self, peer: Peer) -> None:
            super().__init__(peer)
            raise RuntimeError("a bug")

    async def test() -> None:
        place = await ListenerFixture(Unborn).start()
        client = await place.client()
        await client.wait_for_events(ConnectionClosed)
        assert place.listener.peers == set()
        with pytest.raises(errors.LocalError, match="handler"):
            await connect(
                Unborn,
                lambda now: Connection.client(CLIENT, Credentials.anonymous(), now=now),
                host="127.0.0.1",
                port=place.listener.port,
            )
        await place.listener.close()

    run(test)


def test_an_unanswered_close_is_given_up_in_the_time_that_was_set() -> None:
    async def test() -> None:
        settings = Settings(container_id="server", handshake_timeout_ms=100, idle_timeout_ms=600_000)
        place = await ListenerFixture(settings=settings).start()
        with socket.create_connection(("127.0.0.1", place.listener.port)) as mute:
            mute.sendall(AMQP_HEADER + frame(0, Open(container_id="mute").encode()))
            server = await place.arrivals.get()
            await server.wait_for_events(ConnectionOpened)
            server.peer.close()
            await asyncio.wait_for(server.peer.lost, 10)
        await place.listener.close()

    run(test)


def test_a_socket_that_is_there_only_after_the_listener_was_closed_is_dropped() -> None:
    async def test() -> None:
        place = await ListenerFixture().start()
        admitted = place.listener.admit
        await place.listener.close()
        late = Peer(Recorder, Connection.server(SERVER, now=0.0), place.listener)
        assert not admitted(late)
        assert place.listener.peers == set()

    run(test)


def test_one_connection_too_many_is_dropped_and_the_others_go_on() -> None:
    async def test() -> None:
        place = await ListenerFixture().start(max_connections=1)
        first = await place.client()
        await first.wait_for_events(ConnectionOpened)
        second = await place.client()
        await second.wait_for_events(ConnectionClosed)
        await sender_of(first)
        first.peer.close()
        await asyncio.wait_for(first.peer.lost, 10)
        await asyncio.wait_for(place.handlers[0].peer.lost, 10)
        third = await place.client()
        await third.wait_for_events(ConnectionOpened)
        await place.listener.close()

    run(test)


def test_an_answer_to_sasl_that_comes_later_lets_what_waited_be_read() -> None:
    class Slow(Recorder):
        def handle_event(self, event: Event) -> None:
            if not isinstance(event, SaslInitReceived):
                super().handle_event(event)

    async def test() -> None:
        place = await ListenerFixture(Slow).start()
        client = await place.client()
        server = await place.arrivals.get()
        await server.wait_for_events(SaslInitReceived)
        server.peer.connection.send_sasl_outcome()
        await client.wait_for_events(ConnectionOpened)
        await place.listener.close()

    run(test)


def test_a_peer_that_does_not_answer_a_close_is_dropped_after_the_grace() -> None:
    async def test() -> None:
        place = await ListenerFixture().start()
        with socket.create_connection(("127.0.0.1", place.listener.port)) as mute:
            mute.sendall(AMQP_HEADER + frame(0, Open(container_id="mute").encode()))
            server = await place.arrivals.get()
            await server.wait_for_events(ConnectionOpened)
            await place.listener.close(grace_s=0.1)
            await asyncio.wait_for(server.peer.lost, 10)
            assert place.listener.peers == set()

    run(test)


def test_a_vanished_socket_is_told_once() -> None:
    async def test() -> None:
        place = await ListenerFixture().start()
        client = await place.client()
        await sender_of(client)
        client.peer.transport.abort()
        (server,) = place.handlers
        await server.wait_for_events(ConnectionClosed)
        await asyncio.wait_for(server.peer.lost, 10)
        assert [type(event) for event in server.events].count(ConnectionClosed) == 1
        assert [type(event) for event in server.events].count(LinkDetached) == 1
        await place.listener.close()

    run(test)


def test_a_silent_peer_is_given_up_and_a_busy_loop_is_not_needed_for_it() -> None:
    async def test() -> None:
        place = await ListenerFixture(settings=Settings(container_id="server", idle_timeout_ms=200)).start()
        with socket.create_connection(("127.0.0.1", place.listener.port)) as silent:
            silent.sendall(AMQP_HEADER + frame(0, Open(container_id="silent").encode()))
            (closed,) = await (await place.arrivals.get()).wait_for_events(ConnectionClosed)
            assert isinstance(closed, ConnectionClosed)
            assert closed.error is not None
            assert closed.error.condition == errors.RESOURCE_LIMIT_EXCEEDED
        await place.listener.close(grace_s=0.1)

    run(test)


# --- back-pressure ----------------------------------------------------------------------------------------------------


def test_a_server_reads_no_more_from_a_peer_whose_messages_it_has_not_answered() -> None:
    limits = Limits(max_message_size=10_000_000, max_unanswered_bytes=1_000_000)

    async def test() -> None:
        place = await ListenerFixture(settings=Settings(container_id="server", limits=limits)).start()
        client = await place.client()
        sender = await sender_of(client)
        for _ in range(100):
            sender.send(bytes(200_000))
        (server,) = place.handlers
        await server.wait_until(lambda: server.peer.connection.unanswered_bytes > 1_000_000)
        for _ in range(200):  # give it every chance to read on
            await asyncio.sleep(0)
        assert server.peer.connection.unanswered_bytes < 3_000_000
        while (
            len([one for event in server.events if isinstance(event, DeliveriesReceived) for one in event.deliveries])
            < 100
        ):
            for event in server.events:
                if isinstance(event, DeliveriesReceived):
                    event.link.settle(event.deliveries)
            server.news.clear()
            async with asyncio.timeout(10):
                await server.news.wait()
        await place.listener.close()

    run(test)


def test_a_peer_that_does_not_read_stops_being_sent_to_and_costs_bounded_memory() -> None:
    class Fountain(Recorder):
        """Sends for ever, as long as credit and socket allow."""

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
        place = await ListenerFixture(Fountain).start()
        with socket.create_connection(("127.0.0.1", place.listener.port)) as deaf:
            deaf.sendall(
                AMQP_HEADER
                + frame(0, Open(container_id="deaf").encode())
                + frame(0, Begin(next_outgoing_id=0, incoming_window=2**31, outgoing_window=1).encode())
                + frame(0, Attach(name="in", handle=0, role=True, source=Source(), target=Target()).encode())
                + frame(0, ENDLESS_CREDIT.encode())
            )
            fountain = await place.arrivals.get()
            assert isinstance(fountain, Fountain)
            await fountain.wait_for_events(CreditGranted)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not fountain.peer.is_writable
            assert 0 < fountain.sent * 100_000 < 30_000_000  # what the sockets' buffers take, and one high water
        await asyncio.wait_for(fountain.peer.lost, 20)
        await place.listener.close()

    run(test)


def test_the_adapter_stays_small() -> None:
    assert len(Path(aio.__file__).read_text().splitlines()) < 300
