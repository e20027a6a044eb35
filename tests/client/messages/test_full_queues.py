"""A queue that is full refuses messages, goes on handing them out, and takes new ones then."""

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
    """In this process, where a queue can be made smaller than anybody may ask for."""
    with run_server_in_process(tmp_path) as server:
        yield Bus(server)


async def test_a_full_queue_takes_no_more_until_something_is_completed(bus: Bus) -> None:
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
