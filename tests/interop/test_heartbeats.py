"""Heartbeats: an idle connection stays open because each end sends empty frames within the other's idle timeout."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from proton import Message

from tests.interop.proton_peers import ProtonEchoClient, ProtonEchoServer, ProtonEvent, run, running
from tests.interop.twinbus_peers import SETTINGS, EchoClient, EchoServer, connected, serving
from twinbus.amqp.events import ConnectionClosed

if TYPE_CHECKING:
    from proton import Connection
    from proton.reactor import Container

OUR_SETTINGS = replace(SETTINGS, idle_timeout_ms=400)
"""Our end closes after 0.8 s without input."""
PROTON_GIVES_UP_AFTER_S = 0.8
QUIET_S = 2.0


class IdleClient(ProtonEchoClient):
    """Sends nothing for a while, then a message."""

    def open_links(self, container: Container, connection: Connection) -> None:
        self.sender = container.create_sender(connection, self.address)
        container.create_receiver(connection, self.address)
        container.schedule(QUIET_S, self)

    def on_sendable(self, event: ProtonEvent) -> None:
        """Do nothing: the timer sends the message."""

    def on_timer_task(self, _event: ProtonEvent) -> None:
        self.sender.send(Message(body=self.bodies[0]))


async def test_an_idle_connection_of_a_proton_client_to_our_server_stays_open() -> None:
    async with serving(EchoServer, settings=OUR_SETTINGS) as server:
        client = IdleClient(server.port, ["awake"], heartbeat=PROTON_GIVES_UP_AFTER_S)
        await run(client)
        handler = await server.accepted()
    assert client.failures == []
    assert client.received == ["awake"]
    assert [closed.error for closed in handler.events_of(ConnectionClosed)] == [None]


class ShortTimeoutServer(ProtonEchoServer):
    """Has a short idle timeout."""

    def on_connection_bound(self, event: ProtonEvent) -> None:
        super().on_connection_bound(event)
        event.transport.idle_timeout = PROTON_GIVES_UP_AFTER_S


async def test_an_idle_connection_of_our_client_to_a_proton_server_stays_open() -> None:
    server = ShortTimeoutServer()
    async with running(server) as port, connected(EchoClient(["awake"]), port, settings=OUR_SETTINGS) as client:
        await asyncio.sleep(QUIET_S)  # the test needs real time to pass
        client.start()
        await client.wait_until(lambda: client.received)
    assert server.failures == []
    assert client.received == ["awake"]
