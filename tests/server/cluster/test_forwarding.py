"""Messages are forwarded between entities whose fragments two broker processes have, over sockets."""

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
async def test_r119_r120_messages_are_forwarded_from_to_and_between_partitioned_entities_to_their_keys_fragments(
    two_workers: MultiProcessServer, source: str, destination: str
) -> None:
    end = two_workers.create_queue(EnablePartitioning=destination)
    flag = f"<EnablePartitioning>{source}</EnablePartitioning>"
    entry, topic, forward = f"from-{end}", f"topic-of-{end}", f"<ForwardTo>{end}</ForwardTo>"
    for path, kind, content in (
        (entry, "QueueDescription", flag + forward),
        (topic, "TopicDescription", flag),
        (f"{topic}/subscriptions/all", "SubscriptionDescription", forward),
    ):
        described = QUEUE_ENTRY.format(content).replace("QueueDescription", kind)
        two_workers.request_any(None, "PUT", path, described, expected=201)
    async with connect_client(two_workers) as factory:
        for path in (entry, topic):
            sender = factory.create_message_sender(path)
            for message in one_per_fragment():
                await sender.send(message)
        found = await receive(factory.create_queue_client(end), 2 * FRAGMENTS)
        places = sorted((int(message.text), fragment_of_message(message)) for message in found)
        lies = [(number, number if destination == "true" else 0) for number in range(FRAGMENTS)]
        assert places == sorted([*lies, *lies])
