"""Large messages: 5 MB in frames of 64 KB in both directions, and rejection of a message over the limit."""

from __future__ import annotations

from tests.interop.proton_peers import FRAME_SIZE, ProtonEchoClient, ProtonEchoServer, ProtonEvent, run, running
from tests.interop.twinbus_peers import EchoClient, EchoServer, connected, serving
from twinbus.amqp.events import DeliveryRejected
from twinbus.amqp.settings import Settings

LARGE = "".join(f"{number:010d}" for number in range(500_000))
FRAMES = len(LARGE) // FRAME_SIZE + 1
OTHER_FRAMES = 20
"""Upper bound of frames that are not transfers: open, begin, attach and so on."""


class FrameCountingClient(ProtonEchoClient):
    """Counts the frames in each direction."""

    def on_transport_closed(self, event: ProtonEvent) -> None:
        super().on_transport_closed(event)
        self.frames_received = event.transport.frames_input
        self.frames_sent = event.transport.frames_output


class FrameCountingServer(ProtonEchoServer):
    """Counts the frames in each direction."""

    def on_transport_closed(self, event: ProtonEvent) -> None:
        super().on_transport_closed(event)
        self.frames_received = event.transport.frames_input
        self.frames_sent = event.transport.frames_output


async def test_a_proton_client_exchanges_five_megabytes_with_our_server() -> None:
    async with serving(EchoServer) as server:
        client = FrameCountingClient(server.port, [LARGE])
        await run(client)
    assert client.failures == []
    assert client.received == [LARGE]
    assert FRAMES <= client.frames_received <= FRAMES + OTHER_FRAMES
    assert FRAMES <= client.frames_sent <= FRAMES + OTHER_FRAMES


async def test_our_client_exchanges_five_megabytes_with_a_proton_server() -> None:
    server = FrameCountingServer()
    async with running(server) as port, connected(EchoClient([LARGE]), port) as client:
        client.start()
        await client.wait_until(lambda: client.received)
    assert server.failures == []
    assert client.received == [LARGE]
    assert FRAMES <= server.frames_received <= FRAMES + OTHER_FRAMES
    assert FRAMES <= server.frames_sent <= FRAMES + OTHER_FRAMES


class RejectionTolerantClient(ProtonEchoClient):
    """Continues after a rejection, and closes when two of its three messages are back."""

    def on_rejected(self, event: ProtonEvent) -> None:
        self.rejected = event.delivery.remote.condition.name

    def close_when_done(self, event: ProtonEvent) -> None:
        if self.accepted == len(self.received) == 2:
            event.connection.close()


async def test_our_server_rejects_a_message_over_its_limit_and_keeps_the_link() -> None:
    async with serving(EchoServer, settings=Settings(container_id="ours")) as server:
        client = RejectionTolerantClient(server.port, ["before", LARGE, "after"])
        await run(client)
        handler = await server.accepted()
    assert client.failures == []
    assert client.rejected == "amqp:link:message-size-exceeded"
    assert client.received == ["before", "after"]
    assert [rejected.size > len(LARGE) for rejected in handler.events_of(DeliveryRejected)] == [True]
