"""A batch of several keys whose fragments two broker processes have: all of them are asked before any stores."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.partitioned.bus import everywhere, key_of
from tests.served import ATOM
from tests.workers.crew import client_of, holder_of
from twinbus.client import BrokeredMessage
from twinbus.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from tests.workers.crew import Crew
    from twinbus.client import MessageSender

SUBSCRIPTIONS = 64
BODY = b"x" * 250_000
FLAG = "<EnablePartitioning>true</EnablePartitioning>"


async def test_q27_nothing_is_stored_of_a_batch_that_a_fragment_of_the_other_process_has_no_room_for(
    two_workers: Crew,
) -> None:
    _make_topic(two_workers, "crowded")
    async with client_of(two_workers) as factory:
        sender = factory.create_message_sender("crowded")
        await sender.send(BrokeredMessage("connects"))
        full = 1 - holder_of(two_workers)  # one of the fragments of the process that the client is not connected to
        await _fill(sender, key_of(full))
        before = _count(two_workers, "crowded/subscriptions/0")
        with pytest.raises(QuotaExceeded, match=f"fragment {full}:"):
            await sender.send_batch(everywhere())
        assert _count(two_workers, "crowded/subscriptions/0") == before
        await sender.send_batch([message for message in everywhere() if message.partition_key != key_of(full)])
        assert _count(two_workers, "crowded/subscriptions/0") == before + 15


async def test_r113_messages_that_follow_a_batch_on_a_link_do_not_overtake_it_while_the_other_process_is_asked(
    two_workers: Crew,
) -> None:
    queue = two_workers.make_queue(EnablePartitioning="true")
    async with client_of(two_workers) as factory:
        client = factory.create_queue_client(queue)
        await client.send(BrokeredMessage("connects"))
        holder = holder_of(two_workers)
        near, far = key_of(holder), key_of(1 - holder)
        two_workers.strike(1 - holder, signal.SIGSTOP)
        try:
            batch = [BrokeredMessage("0", partition_key=key) for key in (near, far)]
            sends = [asyncio.ensure_future(client.send_batch(batch))]
            for number in range(1, 4):
                await asyncio.sleep(0)  # one after the other, none answered yet
                message = BrokeredMessage(f"{number}", partition_key=near)
                sends.append(asyncio.ensure_future(client.send(message)))
            other = BrokeredMessage("other", partition_key=key_of(holder + 2))
            await asyncio.wait_for(client.send(other), 10)  # no message of its fragment waits
            assert not any(send.done() for send in sends)
        finally:
            two_workers.strike(1 - holder, signal.SIGCONT)
        await asyncio.gather(*sends)
        found = await client.peek_batch(100, from_sequence_number=0)
        assert [one.text for one in found if one.partition_key == near] == ["0", "1", "2", "3"]


def _make_topic(server: Crew, topic: str) -> None:
    """A body counts once for each subscription, and is on disk once: a gigabyte is soon full."""
    server.ask("PUT", topic, ATOM.format(FLAG).replace("QueueDescription", "TopicDescription"), expected=201)
    for number in range(SUBSCRIPTIONS):
        server.put(f"{topic}/subscriptions/{number}", "SubscriptionDescription")


async def _fill(sender: MessageSender, key: str) -> None:
    """Until the fragment of a key takes no more."""
    while True:
        sends = [sender.send(BrokeredMessage(BODY, partition_key=key)) for _ in range(16)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        assert all(isinstance(error, QuotaExceeded) for error in errors), errors
        if errors:
            return


def _count(server: Crew, subscription: str) -> int:
    found = re.search(r"ActiveMessageCount>(\d+)<", server.ask("GET", subscription, expected=200))
    assert found is not None
    return int(found[1])
