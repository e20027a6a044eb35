"""Competing receivers of one queue: each message is delivered once, to one of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from tests.sdk.bus import body_of

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceiver

    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

COUNT = 300


@pytest.mark.parametrize("mode", list(ServiceBusReceiveMode))
def test_two_receivers_get_each_message_once(
    bus: Bus, server: ServerProcess, queue: str, mode: ServiceBusReceiveMode
) -> None:
    sender = bus.sender(queue)
    receivers = [bus.receiver(queue, receive_mode=mode, prefetch_count=prefetch) for prefetch in (0, 20)]
    sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(COUNT)])

    def receive_all(receiver: ServiceBusReceiver) -> list[bytes]:
        received = []
        while messages := receiver.receive_messages(max_message_count=10, max_wait_time=1):
            for message in messages:
                if mode is ServiceBusReceiveMode.PEEK_LOCK:
                    receiver.complete_message(message)
                received.append(body_of(message))
        return received

    with ThreadPoolExecutor(2) as workers:
        shares = list(workers.map(receive_all, receivers))
    assert sorted(shares[0] + shares[1]) == sorted(b"order %d" % number for number in range(COUNT))
    assert server.message_counts(queue) == (0, 0)
