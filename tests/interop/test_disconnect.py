"""A peer that vanishes in the middle of a message leaves nothing behind: the other end hears of everything once."""

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
async def vanishing(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def assert_half_is_there(program: RecordingHandler) -> None:
    links = [link for session in program.peer.connection.sessions.values() for link in session.links.values()]
    assert [link.delivery_count for link in links if link.context == "half"] == [1]


def assert_all_ended_once(program: RecordingHandler, links: int) -> None:
    ended = [event.link for event in program.events_of(LinkDetached)]
    assert len(ended) == len(set(ended)) == links
    assert len(program.events_of(SessionEnded)) == 1
    assert len(program.events_of(ConnectionClosed)) == 1
    assert isinstance(program.events[-1], ConnectionClosed)
    connection = program.peer.connection
    assert connection.link_count == 0
    assert connection.unanswered_bytes == 0


def bodies(program: RecordingHandler) -> list[str]:
    return [body_of(one.payload) for event in program.events_of(DeliveriesReceived) for one in event.deliveries]


async def test_our_server_survives_a_proton_client_killed_in_the_middle_of_a_message() -> None:
    async with serving(EchoServer) as server:
        async with vanishing("client", str(server.port)) as client:
            program = await server.accepted()
            await program.wait_for_event(DeliveriesReceived)
            assert_half_is_there(program)
            client.kill()
            closed = await program.wait_for_event(ConnectionClosed)
        await program.wait_until_closed()
        assert server.listener.peers == set()
        survivor = ProtonEchoClient(server.port, ["still there"])
        await run(survivor)
    assert bodies(program) == ["whole"]
    assert_all_ended_once(program, links=3)
    assert closed.error is not None
    assert closed.error.condition == CONNECTION_FORCED
    assert not closed.by_peer
    assert survivor.received == ["still there"]


async def test_our_server_gives_up_on_a_proton_client_that_falls_silent() -> None:
    async with serving(EchoServer, settings=replace(SETTINGS, idle_timeout_ms=200)) as server:
        async with vanishing("client", str(server.port)) as client:
            program = await server.accepted()
            await program.wait_for_event(DeliveriesReceived)
            client.send_signal(signal.SIGSTOP)
            closed = await program.wait_for_event(ConnectionClosed)
        await program.wait_until_closed()
        assert server.listener.peers == set()
    assert_all_ended_once(program, links=3)
    assert closed.error is not None
    assert closed.error.condition == RESOURCE_LIMIT_EXCEEDED


async def test_our_client_hears_that_a_proton_server_was_killed_in_the_middle_of_a_message() -> None:
    client = RecordingHandler()
    async with vanishing("server") as server:
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
            assert_half_is_there(client)
            server.kill()
            await client.wait_for_event(ConnectionClosed)
    assert bodies(client) == ["whole"]
    assert_all_ended_once(client, links=2)
    closed = client.events_of(ConnectionClosed)[0]
    assert closed.error is not None
    assert closed.error.condition == CONNECTION_FORCED


class Abandoned(ProtonClient):
    """Waits for a message that never comes."""

    was_disconnected = False

    def open_links(self, container: Container, connection: Connection) -> None:
        container.create_receiver(connection, "q").flow(1)

    def on_disconnected(self, _event: ProtonEvent) -> None:
        self.was_disconnected = True


async def test_a_proton_client_hears_that_our_server_dropped_the_socket() -> None:
    async with serving(EchoServer) as server:
        client = Abandoned(server.port)
        ended = asyncio.ensure_future(run(client))
        program = await server.accepted()
        assert isinstance(program, EchoServer)
        await program.wait_until(lambda: program.senders and program.senders["q"].credit)
        program.peer.transport.abort()
        await ended
        await program.wait_for_event(ConnectionClosed)
    assert client.was_disconnected
    assert_all_ended_once(program, links=1)
