"""A hundred thousand messages arrive, each once and in order, with either end in either hand."""

from __future__ import annotations

from tests.interop.proton_peers import ProtonEchoClient, ProtonEvent, ProtonServer, run, running
from tests.interop.twinbus_peers import EchoClient, EchoServer, connected, serving

COUNT = 100_000
TIME_LIMIT_S = 100.0
BODIES = [f"message {number}" for number in range(COUNT)]


class PatientTalker(ProtonEchoClient):
    time_limit_s = TIME_LIMIT_S


class Sink(ProtonServer):
    """Keeps what it is sent."""

    time_limit_s = TIME_LIMIT_S

    def __init__(self) -> None:
        super().__init__(prefetch=500)
        self.received: list[object] = []

    def on_message(self, event: ProtonEvent) -> None:
        self.received.append(event.message.body)


async def test_a_proton_client_gets_a_hundred_thousand_messages_back_from_our_server() -> None:
    async with serving(EchoServer) as server:
        talker = PatientTalker(server.port, BODIES)
        await run(talker)
    assert talker.failures == []
    assert talker.received == BODIES
    assert talker.accepted == COUNT


async def test_our_client_sends_a_hundred_thousand_messages_to_a_proton_server() -> None:
    sink = Sink()
    async with running(sink) as port, connected(EchoClient(BODIES), port) as talker:
        talker.start()
        await talker.wait_until(lambda: talker.accepted == COUNT, timeout_s=TIME_LIMIT_S)
    assert sink.failures == []
    assert sink.received == BODIES
