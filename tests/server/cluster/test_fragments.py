"""Fragments of a partitioned queue in several processes: the broker that owns a store serves its fragments."""

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


async def test_r093_sixteen_brokers_serve_sixteen_fragments_from_sixteen_stores(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--stores=16", "--worker-timeout=20", workers=16) as server:
        assert stores_of(server) == {number: {number} for number in range(FRAGMENTS)}
        queue = server.create_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, one_per_fragment())
            received = await receive_all(client)
            assert {message.text: fragment_of_message(message) for message in received} == {
                f"{number}": number for number in range(FRAGMENTS)
            }


async def test_r094_messages_of_one_connection_are_stored_and_served_by_all_brokers(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        queue = server.create_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, numbered_messages(4 * FRAGMENTS))
            counts = Counter(fragment_of_message(message) for message in await client.peek_batch(4 * FRAGMENTS))
            assert counts == dict.fromkeys(range(FRAGMENTS), 4)
            assert len(await receive_all(client)) == 4 * FRAGMENTS


async def test_r095_r100_r101_only_the_keys_of_a_broker_that_is_down_are_refused(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--worker-timeout=3", workers=2) as server:
        queue = server.create_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await send_all(client, one_per_fragment())
            killed = 1 - connected_worker(server)  # the worker that this client is not connected to
            pid = server.signal_worker(killed, signal.SIGSTOP)
            server.signal_worker(killed, signal.SIGKILL)
            with pytest.raises(FragmentUnavailable):
                await client.send(BrokeredMessage("late", partition_key=key_for_fragment(killed)))
            await send_all(client, numbered_messages(FRAGMENTS))
            await client.send(BrokeredMessage("kept", partition_key=key_for_fragment(1 - killed)))
            server.wait_for_replacement(killed, pid)
            server.wait_until_healthy()
            texts = Counter(message.text for message in await receive_all(client))
            assert texts >= Counter({f"{number}": 2 for number in range(FRAGMENTS)} | {"kept": 1}), "nothing is lost"


async def test_sends_continue_while_links_open_and_close_and_one_broker_is_stopped(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, "--worker-timeout=60", workers=2) as server:
        queue = server.create_queue(EnablePartitioning="true")
        async with MessagingFactory.from_connection_string(server.connection_string, retry_policy=NO_RETRY) as factory:
            client = factory.create_queue_client(queue)
            await client.send(BrokeredMessage("first"))
            connected = connected_worker(server)
            server.signal_worker(1 - connected, signal.SIGSTOP)

            async def attach_and_detach() -> None:
                while True:
                    async with factory.create_message_receiver(queue) as receiver:
                        await receiver.receive(timeout=0.05)

            attaching = asyncio.ensure_future(attach_and_detach())
            for _ in range(30):
                await asyncio.wait_for(
                    client.send(BrokeredMessage("kept", partition_key=key_for_fragment(connected))), 2
                )
                await asyncio.sleep(0.02)
            attaching.cancel()
            await asyncio.wait([attaching])
            server.signal_worker(1 - connected, signal.SIGCONT)
