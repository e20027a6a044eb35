"""A hundred thousand messages arrive once each and in order, with twinbus as server and as client."""

from __future__ import annotations

from tests.interop.proton_peers import ProtonEchoClient, ProtonEvent, ProtonServer, run, running
from tests.interop.twinbus_peers import EchoClient, EchoServer, connected, serving

COUNT = 100_000
TIME_LIMIT_S = 100.0
BODIES = [f"message {number}" for number in range(COUNT)]


class PatientEchoClient(ProtonEchoClient):
    time_limit_s = TIME_LIMIT_S


class RecordingProtonServer(ProtonServer):
    """Records the bodies of received messages."""

    time_limit_s = TIME_LIMIT_S

    def __init__(self) -> None:
        super().__init__(prefetch=500)
        self.received: list[object] = []

    def on_message(self, event: ProtonEvent) -> None:
        self.received.append(event.message.body)


async def test_a_proton_client_exchanges_a_hundred_thousand_messages_with_our_server() -> None:
    async with serving(EchoServer) as server:
        client = PatientEchoClient(server.port, BODIES)
        await run(client)
    assert client.failures == []
    assert client.received == BODIES
    assert client.accepted == COUNT


async def test_our_client_sends_a_hundred_thousand_messages_to_a_proton_server() -> None:
    server = RecordingProtonServer()
    async with running(server) as port, connected(EchoClient(BODIES), port) as client:
        client.start()
        await client.wait_until(lambda: client.accepted == COUNT, timeout_s=TIME_LIMIT_S)
    assert server.failures == []
    assert server.received == BODIES
