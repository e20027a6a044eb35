"""Forwarding between entities whose fragments belong to two processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.multi_process_server import connect_client
from tests.support.partitioned_namespace import FRAGMENTS, fragment_of_message, one_per_fragment, receive
from tests.support.server_process import QUEUE_ENTRY

if TYPE_CHECKING:
    from tests.support.multi_process_server import MultiProcessServer

KINDS = [("true", "true"), ("true", "false"), ("false", "true")]


@pytest.mark.parametrize(("source", "destination"), KINDS)
async def test_r119_r120_forwarding_from_and_to_partitioned_entities_keeps_the_keys_fragment(
    two_workers: MultiProcessServer, source: str, destination: str
) -> None:
    target = two_workers.create_queue(EnablePartitioning=destination)
    flag = f"<EnablePartitioning>{source}</EnablePartitioning>"
    queue, topic, forward = f"from-{target}", f"topic-of-{target}", f"<ForwardTo>{target}</ForwardTo>"
    for path, kind, content in (
        (queue, "QueueDescription", flag + forward),
        (topic, "TopicDescription", flag),
        (f"{topic}/subscriptions/all", "SubscriptionDescription", forward),
    ):
        body = QUEUE_ENTRY.format(content).replace("QueueDescription", kind)
        two_workers.request_any(None, "PUT", path, body, expected=201)
    async with connect_client(two_workers) as factory:
        for path in (queue, topic):
            sender = factory.create_message_sender(path)
            for message in one_per_fragment():
                await sender.send(message)
        received = await receive(factory.create_queue_client(target), 2 * FRAGMENTS)
        fragments = sorted((int(message.text), fragment_of_message(message)) for message in received)
        expected = [(number, number if destination == "true" else 0) for number in range(FRAGMENTS)]
        assert fragments == sorted([*expected, *expected])
