"""If a real network loses responses, copies are marked, and errors say that the message may have been stored."""

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
LATENCY_S = 1.0
COUNT = 40


async def wait_until_stored(server: ServerProcess, count: int) -> None:
    """Wait until the server has the messages; their responses are still in flight."""
    async with asyncio.timeout(2 * LATENCY_S):
        while (await asyncio.to_thread(server.message_counts, QUEUE))[0] < count:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.01)


async def stored(server: ServerProcess, count: int, texts: set[str]) -> list[tuple[str, object]]:
    """All copies of some messages, in the order of their arrival, each with its mark."""
    copies = [(message.text, message.properties.get(DUPLICATE_MARK)) for message in await receive_all(server, count)]
    return [copy for copy in copies if copy[0] in texts]


async def test_q03_q04_sends_without_a_response_are_repeated_with_a_mark_and_uncertain_on_close(
    tmp_path: Path,
) -> None:
    texts = [str(number) for number in range(COUNT)]
    async with (
        run_server_pair(tmp_path) as (primary, secondary),
        Relay(primary.host, primary.amqp_port) as relay,
        paired_application(primary, secondary, port=relay.port, failover_interval=60) as app,
    ):
        await app.send("before")
        relay.delay(LATENCY_S)
        sends = [asyncio.ensure_future(app.send(text)) for text in texts]
        await wait_until_stored(primary, COUNT + 1)
        relay.reset()
        await relay.restore()
        await asyncio.gather(*sends)
        copies = await stored(primary, 2 * COUNT + 1, set(texts))
        assert sorted(copies, key=lambda copy: (int(copy[0]), bool(copy[1]))) == [
            (text, mark) for text in texts for mark in (None, True)
        ]
        relay.delay(LATENCY_S)
        sends = [asyncio.ensure_future(app.send(text)) for text in texts]
        await wait_until_stored(primary, COUNT)
        await app.pairing.close()
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert len(await stored(primary, COUNT, set(texts))) == COUNT
        assert all(isinstance(error, ServiceBusError) and error.may_have_happened for error in errors)
        with pytest.raises(ServiceBusError) as certain:
            await app.queue.send(BrokeredMessage("after"))
        assert not certain.value.may_have_happened
