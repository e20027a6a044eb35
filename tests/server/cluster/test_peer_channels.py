"""Messages between processes arrive whole and in order, including those sent before the connection is made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.server_process import TIMEOUT_S
from twinbus.broker.ports.peer_protocol import Done, PeekedMessages, StoreHealth
from twinbus.server.cluster.message_channel import REPLY_DECODER, REQUEST_DECODER, MessageChannel

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.broker.ports.peer_protocol import Reply

HEALTHY = StoreHealth({1: (None, None)})


async def deliver(folder: Path, *replies: Reply) -> list[Reply]:
    """Send replies before the connection is made, and return the replies that the other end receives."""
    loop, is_complete = asyncio.get_running_loop(), asyncio.Event()
    received: list[Reply] = []
    ends: list[MessageChannel] = []

    def accept() -> MessageChannel:
        ends.append(MessageChannel(REQUEST_DECODER, lambda _number, _request: None, lambda: None))
        for reply in replies:
            ends[0].send(0, reply)
        return ends[0]

    def receive(_number: int, reply: Reply) -> None:
        received.append(reply)
        if len(received) == len(replies):
            is_complete.set()

    server = await loop.create_unix_server(accept, str(folder / "a"))
    _, channel = await loop.create_unix_connection(
        lambda: MessageChannel(REPLY_DECODER, receive, lambda: None), str(folder / "a")
    )
    await asyncio.wait_for(is_complete.wait(), TIMEOUT_S)
    channel.close()
    ends[0].close()
    server.close()
    return received


async def test_a_message_sent_before_the_connection_is_made_arrives(tmp_path: Path) -> None:
    assert await deliver(tmp_path, HEALTHY) == [HEALTHY]


async def test_large_messages_arrive_whole_and_in_order(tmp_path: Path) -> None:
    large = PeekedMessages([bytes([number]) * 1_000_000 for number in range(20)], 5)
    assert await deliver(tmp_path, HEALTHY, large, Done(), large, HEALTHY) == [HEALTHY, large, Done(), large, HEALTHY]
