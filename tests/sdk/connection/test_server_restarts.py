"""Server restarts: open senders and receivers continue, and no message is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError

from tests.sdk.bus import AsyncDriver, Bus, SyncDriver, body_of, receive
from tests.support.server_process import run_server

if TYPE_CHECKING:
    from pathlib import Path

    from azure.servicebus import ServiceBusReceiver, ServiceBusSender

    from tests.support.server_process import ServerProcess

RETRIES: dict[str, Any] = {"retry_total": 5, "retry_backoff_factor": 0.1, "retry_mode": "fixed"}


class Clients:
    """A sender and a receiver, with a message that was received before the restart."""

    def __init__(self, bus: Bus, server: ServerProcess) -> None:
        self.queue = server.create_queue()
        client = bus.client(**RETRIES)
        self.sender: ServiceBusSender = bus.sender(self.queue, client=client)
        self.receiver: ServiceBusReceiver = bus.receiver(self.queue, client=client)
        self.sender.send_messages([ServiceBusMessage("locked"), ServiceBusMessage("waiting")])
        [self.locked] = receive(self.receiver, 1)
        assert body_of(self.locked) == b"locked"

    def continue_after_restart(self, server: ServerProcess) -> None:
        assert server.message_counts(self.queue) == (2, 0)
        self.sender.send_messages(ServiceBusMessage("later"))
        received = receive(self.receiver, 3)
        assert [body_of(message) for message in received] == [b"locked", b"waiting", b"later"]
        assert [message.delivery_count for message in received] == [0, 0, 0]
        assert [message.sequence_number for message in received] == [1, 2, 3]
        with pytest.raises(MessageLockLostError):
            self.receiver.complete_message(self.locked)
        for message in received:
            self.receiver.complete_message(message)
        assert server.message_counts(self.queue) == (0, 0)


def test_open_senders_and_receivers_continue_after_a_restart(tmp_path: Path, loop: AsyncDriver) -> None:
    """Test both clients at once: an idle SDK reads nothing, so the server's stop takes its whole grace period."""
    with run_server(tmp_path) as server:
        buses = [Bus(SyncDriver(), server, tls=False), Bus(loop, server, tls=True)]
        with ThreadPoolExecutor(2) as threads:
            clients = list(threads.map(lambda bus: Clients(bus, server), buses))
            server.stop()
            server.start()
            list(threads.map(lambda client: client.continue_after_restart(server), clients))
        for bus in buses:
            for closing in bus.close_in_background():
                closing.result(20)
