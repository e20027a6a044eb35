"""A message of 5 MB crosses in frames of 64 KB and arrives whole; one that is larger than allowed is rejected."""

from __future__ import annotations

from tests.interop.proton_peers import FRAME_SIZE, ProtonEchoClient, ProtonEchoServer, ProtonEvent, run, running
from tests.interop.twinbus_peers import EchoClient, EchoServer, connected, serving
from twinbus.amqp.events import DeliveryRejected
from twinbus.amqp.settings import Settings

LARGE = "".join(f"{number:010d}" for number in range(500_000))
FRAMES = len(LARGE) // FRAME_SIZE + 1
OTHER_FRAMES = 20
"""Open, begin, attach and the like."""


class Counting(ProtonEchoClient):
    """Notes how many frames went which way."""

    def on_transport_closed(self, event: ProtonEvent) -> None:
        super().on_transport_closed(event)
        self.frames_received = event.transport.frames_input
        self.frames_sent = event.transport.frames_output


class CountingEcho(ProtonEchoServer):
    """Notes how many frames went which way."""

    def on_transport_closed(self, event: ProtonEvent) -> None:
        super().on_transport_closed(event)
        self.frames_received = event.transport.frames_input
        self.frames_sent = event.transport.frames_output


async def test_a_proton_client_gets_five_megabytes_back_from_our_server() -> None:
    async with serving(EchoServer) as server:
        talker = Counting(server.port, [LARGE])
        await run(talker)
    assert talker.failures == []
    assert talker.received == [LARGE]
    assert FRAMES <= talker.frames_received <= FRAMES + OTHER_FRAMES
    assert FRAMES <= talker.frames_sent <= FRAMES + OTHER_FRAMES


async def test_our_client_gets_five_megabytes_back_from_a_proton_server() -> None:
    echo = CountingEcho()
    async with running(echo) as port, connected(EchoClient([LARGE]), port) as talker:
        talker.start()
        await talker.wait_until(lambda: talker.received)
    assert echo.failures == []
    assert talker.received == [LARGE]
    assert FRAMES <= echo.frames_received <= FRAMES + OTHER_FRAMES
    assert FRAMES <= echo.frames_sent <= FRAMES + OTHER_FRAMES


class Persistent(ProtonEchoClient):
    """Goes on after a rejection: two of its three messages come back."""

    def on_rejected(self, event: ProtonEvent) -> None:
        self.rejected = event.delivery.remote.condition.name

    def close_when_done(self, event: ProtonEvent) -> None:
        if self.accepted == len(self.received) == 2:
            event.connection.close()


async def test_our_server_rejects_a_message_over_its_limit_and_goes_on_with_the_link() -> None:
    async with serving(EchoServer, settings=Settings(container_id="ours")) as server:
        talker = Persistent(server.port, ["before", LARGE, "after"])
        await run(talker)
        program = await server.accepted()
    assert talker.failures == []
    assert talker.rejected == "amqp:link:message-size-exceeded"
    assert talker.received == ["before", "after"]
    assert [rejected.size > len(LARGE) for rejected in program.events_of(DeliveryRejected)] == [True]
