"""Batches with several partition keys, whose fragments belong to two processes: every fragment is asked to reserve
space before any fragment stores a message.
"""

from __future__ import annotations

import asyncio
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.multi_process_server import connect_client, connected_worker
from tests.support.partitioned_namespace import key_for_fragment, one_per_fragment
from tests.support.server_process import QUEUE_ENTRY
from twinbus.client import BrokeredMessage
from twinbus.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from tests.support.multi_process_server import MultiProcessServer
    from twinbus.client import MessageSender

SUBSCRIPTIONS = 64
BODY = b"x" * 250_000
FLAG = "<EnablePartitioning>true</EnablePartitioning>"


async def test_q27_a_batch_is_not_stored_if_a_fragment_of_the_other_process_is_full(
    two_workers: MultiProcessServer,
) -> None:
    _make_topic(two_workers, "crowded")
    async with connect_client(two_workers) as factory:
        sender = factory.create_message_sender("crowded")
        await sender.send(BrokeredMessage("connects"))
        full = 1 - connected_worker(two_workers)  # a fragment of the process that the client is not connected to
        await _fill(sender, key_for_fragment(full))
        before = _count(two_workers, "crowded/subscriptions/0")
        with pytest.raises(QuotaExceeded, match=f"fragment {full}:"):
            await sender.send_batch(one_per_fragment())
        assert _count(two_workers, "crowded/subscriptions/0") == before
        await sender.send_batch(
            [message for message in one_per_fragment() if message.partition_key != key_for_fragment(full)]
        )
        assert _count(two_workers, "crowded/subscriptions/0") == before + 15


async def test_r113_sends_do_not_overtake_an_earlier_batch_that_waits_for_the_other_process(
    two_workers: MultiProcessServer,
) -> None:
    queue = two_workers.create_queue(EnablePartitioning="true")
    async with connect_client(two_workers) as factory:
        client = factory.create_queue_client(queue)
        await client.send(BrokeredMessage("connects"))
        connected = connected_worker(two_workers)
        local_key, remote_key = key_for_fragment(connected), key_for_fragment(1 - connected)
        two_workers.signal_worker(1 - connected, signal.SIGSTOP)
        try:
            batch = [BrokeredMessage("0", partition_key=key) for key in (local_key, remote_key)]
            sends = [asyncio.ensure_future(client.send_batch(batch))]
            for number in range(1, 4):
                await asyncio.sleep(0)  # start the sends in order, without waiting for their dispositions
                single = BrokeredMessage(f"{number}", partition_key=local_key)
                sends.append(asyncio.ensure_future(client.send(single)))
            other = BrokeredMessage("other", partition_key=key_for_fragment(connected + 2))
            await asyncio.wait_for(client.send(other), 10)  # no earlier send to its fragment is pending
            assert not any(send.done() for send in sends)
        finally:
            two_workers.signal_worker(1 - connected, signal.SIGCONT)
        await asyncio.gather(*sends)
        peeked = await client.peek_batch(100, from_sequence_number=0)
        assert [message.text for message in peeked if message.partition_key == local_key] == ["0", "1", "2", "3"]


def _make_topic(server: MultiProcessServer, topic: str) -> None:
    """Create a topic that is quickly full: a body is stored once, but counts once for each subscription."""
    server.request("PUT", topic, QUEUE_ENTRY.format(FLAG).replace("QueueDescription", "TopicDescription"), expected=201)
    for number in range(SUBSCRIPTIONS):
        server.create_entity(f"{topic}/subscriptions/{number}", "SubscriptionDescription")


async def _fill(sender: MessageSender, key: str) -> None:
    """Send messages until the fragment of `key` is full."""
    while True:
        sends = [sender.send(BrokeredMessage(BODY, partition_key=key)) for _ in range(16)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        assert all(isinstance(error, QuotaExceeded) for error in errors), errors
        if errors:
            return


def _count(server: MultiProcessServer, subscription: str) -> int:
    match = re.search(r"ActiveMessageCount>(\d+)<", server.request("GET", subscription, expected=200))
    assert match is not None
    return int(match[1])
