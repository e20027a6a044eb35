"""Closing of senders, receivers and clients releases their messages and sessions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage

from tests.sdk.bus import body_of, receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess


def test_a_closed_sender_or_receiver_cannot_be_used_and_others_continue(bus: Bus, queue: str) -> None:
    sender, receiver = bus.sender(queue), bus.receiver(queue)
    sender.send_messages(ServiceBusMessage("1"))
    receive(receiver, 1)
    sender.close()
    receiver.close()
    with pytest.raises(ValueError, match="already been shutdown"):
        sender.send_messages(ServiceBusMessage("2"))
    with pytest.raises(ValueError, match="already been shutdown"):
        receiver.receive_messages(max_wait_time=1)
    bus.sender(queue).send_messages(ServiceBusMessage("3"))
    assert body_of(receive(bus.receiver(queue), 1)[0]) == b"3"


def test_closing_a_client_releases_the_sessions_of_its_receivers(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    client = bus.client()
    sender, holder = bus.sender(queue, client=client), bus.receiver(queue, client=client, session_id="s")
    sender.send_messages(ServiceBusMessage("1", session_id="s"))
    receive(holder, 1)
    bus._driver.run(client.close)  # noqa: SLF001  # closes a client of either kind
    with pytest.raises(ValueError, match="already been shutdown"):
        sender.send_messages(ServiceBusMessage("2", session_id="s"))
    [again] = receive(bus.receiver(queue, client=bus.client(), session_id="s"), 1)
    assert (body_of(again), again.delivery_count) == (b"1", 0)
