"""A hundred thousand messages go out and come back, each once and in order, with either end in either hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.interop.peers import Echo, Talker, connected, serving
from tests.interop.proton_peers import ProtonEcho, ProtonTalker, run, running

if TYPE_CHECKING:
    import pytest

COUNT = 100_000
TIME_LIMIT_S = 100.0
BODIES = [f"message {number}" for number in range(COUNT)]


async def test_a_proton_client_gets_a_hundred_thousand_messages_back_from_our_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProtonTalker, "time_limit_s", TIME_LIMIT_S)
    async with serving(Echo) as server:
        talker = ProtonTalker(server.port, BODIES)
        await run(talker)
    assert talker.failures == []
    assert talker.received == BODIES
    assert talker.accepted == COUNT


async def test_our_client_gets_a_hundred_thousand_messages_back_from_a_proton_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProtonEcho, "time_limit_s", TIME_LIMIT_S)
    echo = ProtonEcho()
    async with running(echo) as port, connected(Talker(BODIES), port) as talker:
        talker.talk()
        await talker.until(lambda: talker.accepted == len(talker.received) == COUNT, patience_s=TIME_LIMIT_S)
    assert echo.failures == []
    assert talker.received == BODIES
