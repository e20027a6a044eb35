"""Fragments of a partitioned queue over several processes: each in its store, each served by that store's broker."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.multi_process_server import connected_worker, run_multi_process_server, stores_of
from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    receive_all,
    send_all,
)
from twinbus.client import NO_RETRY, BrokeredMessage, MessagingFactory
from twinbus.model.errors import FragmentUnavailable

if TYPE_CHECKING:
    from pathlib import Path


async def test_r093_sixteen_fragments_lie_in_sixteen_stores_and_are_served_by_sixteen_brokers(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--stores=16", "--worker-timeout=20", workers=16) as server:
        assert stores_of(server) == {number: {number} for number in range(FRAGMENTS)}
        queue = server.create_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, one_per_fragment())
            found = await receive_all(client)
            assert {message.text: fragment_of_message(message) for message in found} == {
                f"{number}": number for number in range(FRAGMENTS)
            }


async def test_r094_what_one_connection_sends_and_receives_is_stored_and_served_by_all_brokers(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        queue = server.create_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, numbered_messages(4 * FRAGMENTS))
            counts = Counter(fragment_of_message(message) for message in await client.peek_batch(4 * FRAGMENTS))
            assert counts == dict.fromkeys(range(FRAGMENTS), 4)
            assert len(await receive_all(client)) == 4 * FRAGMENTS


async def test_r095_r100_r101_without_one_broker_its_keys_are_refused_and_all_else_goes_on(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--worker-timeout=3", workers=2) as server:
        queue = server.create_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, one_per_fragment())
            gone = 1 - connected_worker(server)  # the one that this client is not connected to
            pid = server.signal_worker(gone, signal.SIGSTOP)
            server.signal_worker(gone, signal.SIGKILL)
            with pytest.raises(FragmentUnavailable):
                await client.send(BrokeredMessage("late", partition_key=key_for_fragment(gone)))
            await send_all(client, numbered_messages(FRAGMENTS))
            await client.send(BrokeredMessage("kept", partition_key=key_for_fragment(1 - gone)))
            server.wait_for_replacement(gone, pid)
            server.wait_until_healthy()
            texts = Counter(message.text for message in await receive_all(client))
            assert texts >= Counter({f"{number}": 2 for number in range(FRAGMENTS)} | {"kept": 1}), "nothing is lost"


async def test_who_opens_and_closes_links_while_one_broker_is_stopped_is_answered_by_the_others(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--worker-timeout=60", workers=2) as server:
        queue = server.create_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await client.send(BrokeredMessage("first"))
            holder = connected_worker(server)
            server.signal_worker(1 - holder, signal.SIGSTOP)

            async def come_and_go() -> None:
                while True:
                    async with factory.create_message_receiver(queue) as receiver:
                        await receiver.receive(timeout=0.05)

            coming = asyncio.ensure_future(come_and_go())
            for _ in range(30):
                await asyncio.wait_for(client.send(BrokeredMessage("kept", partition_key=key_for_fragment(holder))), 2)
                await asyncio.sleep(0.02)
            coming.cancel()
            await asyncio.wait([coming])
            server.signal_worker(1 - holder, signal.SIGCONT)
