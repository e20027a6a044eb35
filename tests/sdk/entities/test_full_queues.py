"""Full queues: the SDK raises a quota error for sends; completing messages makes space again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusQuotaExceededError

from tests.sdk.bus import AsyncDriver, Bus, SyncDriver, receive
from tests.support.in_process_server import run_server_in_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.in_process_server import InProcessServer

MEGABYTE = 1_048_576
SIZE = 250_000


@pytest.fixture
def small_queues(tmp_path: Path) -> Iterator[InProcessServer]:
    with run_server_in_process(tmp_path) as server:
        yield server


def make_small_queue(server: InProcessServer) -> str:
    """Create a queue of 1 MB; the smallest size that the API allows, 1,024 MB, would take too long to fill."""
    queue = server.create_queue()
    object.__setattr__(server.namespace.find(queue).description, "max_size_mb", 1)
    return queue


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_full_queue_refuses_messages_until_one_is_completed(
    small_queues: InProcessServer, loop: AsyncDriver, kind: str
) -> None:
    queue = make_small_queue(small_queues)
    bus = Bus(loop if kind == "aio" else SyncDriver(), small_queues, tls=False)
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    for _ in range(MEGABYTE // SIZE):
        sender.send_messages(ServiceBusMessage(b"x" * SIZE))
    with pytest.raises(ServiceBusQuotaExceededError, match="maximum entity size"):
        sender.send_messages(ServiceBusMessage(b"x" * SIZE))
    with pytest.raises(ServiceBusQuotaExceededError, match="maximum entity size"):
        sender.send_messages([ServiceBusMessage(b"x" * SIZE)])
    assert small_queues.message_counts(queue) == (4, 0)
    receiver.complete_message(receive(receiver, 1)[0])
    sender.send_messages(ServiceBusMessage(b"x" * SIZE))
    assert small_queues.message_counts(queue) == (4, 0)
    for closing in bus.close_in_background():
        closing.result(20)
