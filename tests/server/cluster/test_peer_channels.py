"""Words between processes arrive whole, in order, and also those that are said before the other end is there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.server_process import TIMEOUT_S
from twinbus.broker.ports.peer_protocol import Done, PeekedMessages, StoreHealth
from twinbus.server.cluster.message_channel import REPLY_DECODER, REQUEST_DECODER, MessageChannel

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.broker.ports.peer_protocol import Reply

WELL = StoreHealth({1: (None, None)})


async def heard(folder: Path, *words: Reply) -> list[Reply]:
    """What comes of words that are said to one that just comes."""
    loop, is_all = asyncio.get_running_loop(), asyncio.Event()
    came: list[Reply] = []
    ends: list[MessageChannel] = []

    def admit() -> MessageChannel:
        ends.append(MessageChannel(REQUEST_DECODER, lambda _number, _word: None, lambda: None))
        for word in words:
            ends[0].send(0, word)
        return ends[0]

    def hear(_number: int, word: Reply) -> None:
        came.append(word)
        if len(came) == len(words):
            is_all.set()

    server = await loop.create_unix_server(admit, str(folder / "a"))
    _, channel = await loop.create_unix_connection(
        lambda: MessageChannel(REPLY_DECODER, hear, lambda: None), str(folder / "a")
    )
    await asyncio.wait_for(is_all.wait(), TIMEOUT_S)
    channel.close()
    ends[0].close()
    server.close()
    return came


async def test_what_is_said_before_the_connection_is_made_is_heard(tmp_path: Path) -> None:
    assert await heard(tmp_path, WELL) == [WELL]


async def test_a_long_word_comes_in_pieces_and_what_follows_it_behind(tmp_path: Path) -> None:
    long = PeekedMessages([bytes([number]) * 1_000_000 for number in range(20)], 5)
    assert await heard(tmp_path, WELL, long, Done(), long, WELL) == [WELL, long, Done(), long, WELL]
