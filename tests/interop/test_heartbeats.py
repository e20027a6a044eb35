"""A quiet connection stays open, because each end sends empty frames as often as the other asks for."""

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
"""We give up after 0.8 s."""
PROTON_GIVES_UP_AFTER_S = 0.8
QUIET_S = 2.0


class Quiet(ProtonEchoClient):
    """Says nothing for a while, then talks."""

    def open_links(self, container: Container, connection: Connection) -> None:
        self.sender = container.create_sender(connection, self.address)
        container.create_receiver(connection, self.address)
        container.schedule(QUIET_S, self)

    def on_sendable(self, event: ProtonEvent) -> None:
        """Not yet."""

    def on_timer_task(self, _event: ProtonEvent) -> None:
        self.sender.send(Message(body=self.bodies[0]))


async def test_a_quiet_proton_client_and_our_server_keep_each_other_alive() -> None:
    async with serving(EchoServer, settings=OUR_SETTINGS) as server:
        quiet = Quiet(server.port, ["awake"], heartbeat=PROTON_GIVES_UP_AFTER_S)
        await run(quiet)
        program = await server.accepted()
    assert quiet.failures == []
    assert quiet.received == ["awake"]
    assert [closed.error for closed in program.events_of(ConnectionClosed)] == [None]


class Demanding(ProtonEchoServer):
    """Wants to hear from its client often."""

    def on_connection_bound(self, event: ProtonEvent) -> None:
        super().on_connection_bound(event)
        event.transport.idle_timeout = PROTON_GIVES_UP_AFTER_S


async def test_our_quiet_client_and_a_proton_server_keep_each_other_alive() -> None:
    demanding = Demanding()
    async with running(demanding) as port, connected(EchoClient(["awake"]), port, settings=OUR_SETTINGS) as talker:
        await asyncio.sleep(QUIET_S)  # time passing is what this is about
        talker.start()
        await talker.wait_until(lambda: talker.received)
    assert demanding.failures == []
    assert talker.received == ["awake"]
