"""Fragments of a partitioned queue over several processes: each in its store, each served by that store's broker."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.partitioned.bus import FRAGMENTS, drain, everywhere, fragment_in, key_of, numbered, send_all
from tests.workers.crew import crew, holder_of, stores_of
from twinbus.client import NO_RETRY, BrokeredMessage, MessagingFactory
from twinbus.model.errors import FragmentUnavailable

if TYPE_CHECKING:
    from pathlib import Path


async def test_r093_sixteen_fragments_lie_in_sixteen_stores_and_are_served_by_sixteen_brokers(tmp_path: Path) -> None:
    with crew(tmp_path, "--stores=16", "--worker-timeout=20", workers=16) as server:
        assert stores_of(server) == {number: {number} for number in range(FRAGMENTS)}
        queue = server.make_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, everywhere())
            found = await drain(client)
            assert {message.text: fragment_in(message) for message in found} == {
                f"{number}": number for number in range(FRAGMENTS)
            }


async def test_r094_what_one_connection_sends_and_receives_is_stored_and_served_by_all_brokers(tmp_path: Path) -> None:
    with crew(tmp_path, workers=2) as server:
        queue = server.make_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, numbered(4 * FRAGMENTS))
            counts = Counter(fragment_in(message) for message in await client.peek_batch(4 * FRAGMENTS))
            assert counts == dict.fromkeys(range(FRAGMENTS), 4)
            assert len(await drain(client)) == 4 * FRAGMENTS


async def test_r095_r100_r101_without_one_broker_its_keys_are_refused_and_all_else_goes_on(tmp_path: Path) -> None:
    with crew(tmp_path, "--worker-timeout=3", workers=2) as server:
        queue = server.make_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, everywhere())
            gone = 1 - holder_of(server)  # the one that this client is not connected to
            pid = server.strike(gone, signal.SIGSTOP)
            server.strike(gone, signal.SIGKILL)
            with pytest.raises(FragmentUnavailable):
                await client.send(BrokeredMessage("late", partition_key=key_of(gone)))
            await send_all(client, numbered(FRAGMENTS))
            await client.send(BrokeredMessage("kept", partition_key=key_of(1 - gone)))
            server.wait_for_another(gone, pid)
            server.wait_until_well()
            texts = Counter(message.text for message in await drain(client))
            assert texts >= Counter({f"{number}": 2 for number in range(FRAGMENTS)} | {"kept": 1}), "nothing is lost"


async def test_who_opens_and_closes_links_while_one_broker_is_stopped_is_answered_by_the_others(tmp_path: Path) -> None:
    with crew(tmp_path, "--worker-timeout=60", workers=2) as server:
        queue = server.make_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await client.send(BrokeredMessage("first"))
            holder = holder_of(server)
            server.strike(1 - holder, signal.SIGSTOP)

            async def come_and_go() -> None:
                while True:
                    async with factory.create_message_receiver(queue) as receiver:
                        await receiver.receive(timeout=0.05)

            coming = asyncio.ensure_future(come_and_go())
            for _ in range(30):
                await asyncio.wait_for(client.send(BrokeredMessage("kept", partition_key=key_of(holder))), 2)
                await asyncio.sleep(0.02)
            coming.cancel()
            await asyncio.wait([coming])
            server.strike(1 - holder, signal.SIGCONT)
