"""Messages in fragments of other processes are found, moved and resubmitted like those of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.multi_process_server import connect_client, run_multi_process_server
from tests.support.server_process import wait_until
from twinbus.client import BrokeredMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.multi_process_server import MultiProcessServer

PARTITIONED = {"EnablePartitioning": "true"}
MESSAGES = 64


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiProcessServer]:
    with run_multi_process_server(tmp_path_factory.mktemp("cluster"), "--stores=4") as server:
        yield server


async def test_all_fragments_are_searched_and_their_messages_move(cluster: MultiProcessServer) -> None:
    source, destination = cluster.create_queue(**PARTITIONED), cluster.create_queue(**PARTITIONED)
    async with connect_client(cluster) as factory:
        for number in range(MESSAGES):
            await factory.create_queue_client(source).send(
                BrokeredMessage(f"{number}", partition_key=f"key {number}", properties={"price": number})
            )
        inspector = factory.create_message_inspector(source)
        found = [int(message.text) async for message in inspector.search("price >= 32")]
        assert sorted(found) == list(range(32, MESSAGES))
        progress = await inspector.move(destination, filter="price < 16")
        assert (progress.done_count, progress.skipped_count) == (16, 0)
        wait_until(lambda: cluster.message_counts(destination) == (16, 0))
        moved = [int(message.text) async for message in factory.create_message_inspector(destination).search()]
        assert sorted(moved) == list(range(16))
        assert cluster.message_counts(source) == (MESSAGES - 16, 0)


async def test_plain_queues_of_each_process_are_searched_and_resubmitted(cluster: MultiProcessServer) -> None:
    """Of four queues, some are owned by the process that has the connection, and the others are not."""
    async with connect_client(cluster) as factory:
        for _ in range(4):
            queue = factory.create_queue_client(cluster.create_queue())
            await queue.send_batch(BrokeredMessage(f"{number}", properties={"price": number}) for number in range(4))
            for message in await queue.receive_batch(4):
                await queue.dead_letter(message)
            inspector = factory.create_message_inspector(f"{queue.path}/$DeadLetterQueue")
            assert [message.text async for message in inspector.search("price > 1")] == ["2", "3"]
            assert (await inspector.resubmit(filter="price > 1")).done_count == 2
            assert cluster.message_counts(queue.path) == (2, 2)
