"""Full queues refuse messages, deliver the stored ones, and then accept new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import Bus, receive_one
from tests.support.in_process_server import run_server_in_process
from twinbus.client import BrokeredMessage
from twinbus.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 250_000


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    """Return a bus with an in-process server, where a test can set a size below the allowed minimum."""
    with run_server_in_process(tmp_path) as server:
        yield Bus(server)


async def test_a_full_queue_refuses_sends_until_a_message_is_completed(bus: Bus) -> None:
    queue = bus.create_queue()
    server = bus.server
    object.__setattr__(server.namespace.find(queue.path).description, "max_size_mb", 1)  # type: ignore[attr-defined]
    for _ in range(4):
        await queue.send(BrokeredMessage(bytes(SIZE)))
    for send in (queue.send(BrokeredMessage(bytes(SIZE))), queue.send_batch([BrokeredMessage(bytes(SIZE))])):
        with pytest.raises(QuotaExceeded, match="maximum entity size"):
            await send
    await queue.complete(await receive_one(queue))
    await queue.send(BrokeredMessage(bytes(SIZE)))
    assert bus.message_counts(queue) == (4, 0)
