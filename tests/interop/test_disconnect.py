"""Lost connections: if a peer vanishes in the middle of a message, the other end reports it once and frees all."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.interop.proton_peers import ProtonClient, ProtonEchoClient, ProtonEvent, run
from tests.interop.twinbus_peers import SETTINGS, TIMEOUT_S, EchoServer, RecordingHandler, body_of, connected, serving
from twinbus.amqp.errors import CONNECTION_FORCED, RESOURCE_LIMIT_EXCEEDED
from twinbus.amqp.events import ConnectionClosed, DeliveriesReceived, LinkDetached, SessionEnded
from twinbus.amqp.terminus import Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from proton import Connection
    from proton.reactor import Container

SCRIPT = Path(__file__).with_name("vanishing_peer.py")


@asynccontextmanager
async def vanishing_peer(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def assert_half_message_arrived(handler: RecordingHandler) -> None:
    links = [link for session in handler.peer.connection.sessions.values() for link in session.links.values()]
    assert [link.delivery_count for link in links if link.context == "half"] == [1]


def assert_all_ended_once(handler: RecordingHandler, links: int) -> None:
    ended = [event.link for event in handler.events_of(LinkDetached)]
    assert len(ended) == len(set(ended)) == links
    assert len(handler.events_of(SessionEnded)) == 1
    assert len(handler.events_of(ConnectionClosed)) == 1
    assert isinstance(handler.events[-1], ConnectionClosed)
    connection = handler.peer.connection
    assert connection.link_count == 0
    assert connection.unanswered_bytes == 0


def bodies(handler: RecordingHandler) -> list[str]:
    return [
        body_of(delivery.payload) for event in handler.events_of(DeliveriesReceived) for delivery in event.deliveries
    ]


async def test_our_server_survives_a_proton_client_killed_in_the_middle_of_a_message() -> None:
    async with serving(EchoServer) as server:
        async with vanishing_peer("client", str(server.port)) as client:
            handler = await server.accepted()
            await handler.wait_for_event(DeliveriesReceived)
            assert_half_message_arrived(handler)
            client.kill()
            closed = await handler.wait_for_event(ConnectionClosed)
        await handler.wait_until_closed()
        assert server.listener.peers == set()
        survivor = ProtonEchoClient(server.port, ["still there"])
        await run(survivor)
    assert bodies(handler) == ["whole"]
    assert_all_ended_once(handler, links=3)
    assert closed.error is not None
    assert closed.error.condition == CONNECTION_FORCED
    assert not closed.by_peer
    assert survivor.received == ["still there"]


async def test_our_server_closes_the_connection_of_a_silent_proton_client() -> None:
    async with serving(EchoServer, settings=replace(SETTINGS, idle_timeout_ms=200)) as server:
        async with vanishing_peer("client", str(server.port)) as client:
            handler = await server.accepted()
            await handler.wait_for_event(DeliveriesReceived)
            client.send_signal(signal.SIGSTOP)
            closed = await handler.wait_for_event(ConnectionClosed)
        await handler.wait_until_closed()
        assert server.listener.peers == set()
    assert_all_ended_once(handler, links=3)
    assert closed.error is not None
    assert closed.error.condition == RESOURCE_LIMIT_EXCEEDED


async def test_our_client_reports_a_proton_server_killed_in_the_middle_of_a_message() -> None:
    client = RecordingHandler()
    async with vanishing_peer("server") as server:
        assert server.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            port = int(await server.stdout.readline())
        async with connected(client, port):
            session = client.peer.connection.begin_session()
            for address in ("half", "whole"):
                receiver = session.attach_receiver(address, source=Source(address=address))
                receiver.context = address
                receiver.grant(1)
            await client.wait_for_event(DeliveriesReceived)
            assert_half_message_arrived(client)
            server.kill()
            await client.wait_for_event(ConnectionClosed)
    assert bodies(client) == ["whole"]
    assert_all_ended_once(client, links=2)
    closed = client.events_of(ConnectionClosed)[0]
    assert closed.error is not None
    assert closed.error.condition == CONNECTION_FORCED


class WaitingClient(ProtonClient):
    """Waits for a message that never arrives."""

    was_disconnected = False

    def open_links(self, container: Container, connection: Connection) -> None:
        container.create_receiver(connection, "q").flow(1)

    def on_disconnected(self, _event: ProtonEvent) -> None:
        self.was_disconnected = True


async def test_a_proton_client_detects_that_our_server_dropped_the_socket() -> None:
    async with serving(EchoServer) as server:
        client = WaitingClient(server.port)
        ended = asyncio.ensure_future(run(client))
        handler = await server.accepted()
        assert isinstance(handler, EchoServer)
        await handler.wait_until(lambda: handler.senders and handler.senders["q"].credit)
        handler.peer.transport.abort()
        await ended
        await handler.wait_for_event(ConnectionClosed)
    assert client.was_disconnected
    assert_all_ended_once(handler, links=1)
