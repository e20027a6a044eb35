"""Responses that a real network loses: the copies are marked, and the errors say that the message may be there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.relay import Relay
from tests.support.server_pair import QUEUE, paired_application, receive_all, run_server_pair
from twinbus.client import BrokeredMessage
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

DUPLICATE_MARK = "x-ms-possible-duplicate"
WAY_S = 1.0
COUNT = 40


async def until_stored(server: ServerProcess, count: int) -> None:
    """The server has the messages; their responses are still on their way."""
    async with asyncio.timeout(2 * WAY_S):
        while (await asyncio.to_thread(server.message_counts, QUEUE))[0] < count:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.01)


async def stored(server: ServerProcess, count: int, texts: set[str]) -> list[tuple[str, object]]:
    """All copies of some messages, in the order of their arrival, each with its mark."""
    found = [(message.text, message.properties.get(DUPLICATE_MARK)) for message in await receive_all(server, count)]
    return [one for one in found if one[0] in texts]


async def test_q03_q04_sends_whose_responses_are_lost_are_repeated_with_a_mark_and_uncertain_when_closed(
    tmp_path: Path,
) -> None:
    texts = [str(number) for number in range(COUNT)]
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        Relay(primary.host, primary.amqp_port) as relay,
        paired_application(primary, secondary, port=relay.port, failover_interval=60) as app,
    ):
        await app.send("before")
        relay.delay(WAY_S)
        sends = [asyncio.ensure_future(app.send(text)) for text in texts]
        await until_stored(primary, COUNT + 1)
        relay.reset()
        await relay.restore()
        await asyncio.gather(*sends)
        found = await stored(primary, 2 * COUNT + 1, set(texts))
        assert sorted(found, key=lambda one: (int(one[0]), bool(one[1]))) == [
            (text, mark) for text in texts for mark in (None, True)
        ]
        relay.delay(WAY_S)
        sends = [asyncio.ensure_future(app.send(text)) for text in texts]
        await until_stored(primary, COUNT)
        await app.pairing.close()
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert len(await stored(primary, COUNT, set(texts))) == COUNT
        assert all(isinstance(error, ServiceBusError) and error.may_have_happened for error in errors)
        with pytest.raises(ServiceBusError) as sure:
            await app.queue.send(BrokeredMessage("after"))
        assert not sure.value.may_have_happened
