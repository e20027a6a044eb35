"""Session states count towards the size of their queue; the SDK raises a quota error if a state does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusQuotaExceededError

from tests.sdk.bus import Bus, SyncDriver
from tests.support.in_process_server import run_server_in_process

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 250_000


def test_session_states_fill_a_queue_until_one_is_cleared(tmp_path: Path) -> None:
    with run_server_in_process(tmp_path) as server:
        bus = Bus(SyncDriver(), server, tls=False)
        queue = server.create_queue(RequiresSession="true")
        object.__setattr__(server.namespace.find(queue).description, "max_size_mb", 1)
        sender = bus.sender(queue)
        first, second = [bus.receiver(queue, session_id=name).session for name in "ab"]
        first.set_state(bytes(SIZE))
        for _ in range(3):
            sender.send_messages(ServiceBusMessage(bytes(SIZE), session_id="a"))
        with pytest.raises(ServiceBusQuotaExceededError, match=r"of 1,048,576.* clear session states"):
            second.set_state(bytes(SIZE))
        with pytest.raises(ServiceBusQuotaExceededError):
            sender.send_messages(ServiceBusMessage(bytes(SIZE), session_id="a"))
        first.set_state(None)
        second.set_state(bytes(SIZE))
        assert second.get_state() == bytes(SIZE)
        for closing in bus.close_in_background():
            closing.result(20)
