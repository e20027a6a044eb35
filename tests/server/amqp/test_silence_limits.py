"""An exclusive receiver that agrees on a silence limit and exceeds it loses its claim."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import EPOCH, attach_exclusive_receiver, message_ids, order_ids, send_orders
from tests.support.raw_client import LinkRefused, connect_raw
from tests.support.server_process import TIMEOUT_S
from twinbus.amqp.events import AttachConfirmed, ConnectionClosed
from twinbus.amqp.types import UInt

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.receiver import Receiver

LIMIT = "twinbus:silence-limit"
IF_FREE = "twinbus:claim-if-free"
LOCKED = "amqp:resource-locked"
SHORTEST_MS = UInt(1_000)


async def claim_until_silent(client: RawClient, queue: str, epoch: int) -> Receiver:
    link = await client.attach_receiver(queue, properties={EPOCH: epoch, LIMIT: SHORTEST_MS})
    (answer,) = [event.attach for event in client.events_of(AttachConfirmed) if event.link is link]
    assert (answer.properties or {}).get(LIMIT) == SHORTEST_MS, "the server confirms the limit"
    return link


async def claim_when_free(client: RawClient, queue: str, epoch: int) -> float:
    """Retry until the claim is granted; return the seconds that it took."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with contextlib.suppress(LinkRefused):
                await attach_exclusive_receiver(client, queue, epoch)
                return loop.time() - start_s
            await asyncio.sleep(0.02)


async def test_q17_only_a_holder_that_exceeds_its_silence_limit_loses_its_claim(
    server: ServerProcess, queue: str
) -> None:
    other_queue = server.create_queue()
    async with (
        connect_raw(server) as former,
        connect_raw(server) as silent,
        connect_raw(server) as alive,
        connect_raw(server) as other,
    ):
        await former.detach(await claim_until_silent(former, queue, 6))
        link = await claim_until_silent(silent, queue, 7)
        await send_orders(other, queue, [1])
        assert message_ids(await silent.receive(link)) == order_ids(1)
        await claim_until_silent(alive, other_queue, 7)
        alive.peer.connection.set_silence_limit(1.0)
        alive.peer.flush()
        assert 0.5 < await claim_when_free(other, queue, 3) < 10
        assert await silent.close_condition() == "amqp:connection:forced"
        assert not alive.events_of(ConnectionClosed), "it stays within its limit"
        assert not former.events_of(ConnectionClosed), "its limit has ended with its link"
        with pytest.raises(LinkRefused, match=LOCKED):
            await attach_exclusive_receiver(other, other_queue, 3)


@pytest.mark.parametrize("limit", [UInt(999), UInt(60_001), 0, -1, "1000", 1000.0, True], ids=repr)
async def test_a_silence_limit_out_of_range_is_refused_and_claims_nothing(
    server: ServerProcess, queue: str, limit: object
) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await client.attach_receiver(queue, properties={EPOCH: 7, LIMIT: limit})
        assert "uint from 1000 to 60000 milliseconds" in caught.value.text
        await client.attach_receiver(queue)


async def test_a_receiver_without_an_epoch_gets_no_silence_limit(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_receiver(queue, properties={LIMIT: SHORTEST_MS})
        (answer,) = [event.attach for event in client.events_of(AttachConfirmed) if event.link is link]
        assert LIMIT not in (answer.properties or {})


async def test_q17_a_claim_if_free_never_displaces_a_holder(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        link = await attach_exclusive_receiver(holder, queue, 7)
        for epoch in (6, 7, 8):
            with pytest.raises(LinkRefused, match=LOCKED) as caught:
                await other.attach_receiver(queue, properties={EPOCH: epoch, IF_FREE: True})
            assert "is not free" in caught.value.text
        await holder.detach(link)
        await other.attach_receiver(queue, properties={EPOCH: 6, IF_FREE: True})
        await attach_exclusive_receiver(holder, queue, 7)
