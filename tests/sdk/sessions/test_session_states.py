"""Session states: set, read, cleared, and kept beyond the session's messages and receivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from tests.sdk.bus import receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SESSIONS = {"RequiresSession": "true"}
LIMIT = 262_144


def test_a_session_state_is_set_changed_and_cleared(every_bus: Bus, server: ServerProcess) -> None:
    session = every_bus.receiver(server.create_queue(**SESSIONS), session_id="s").session
    assert session.get_state() is None
    for state in (b"\x00\xff bytes", bytearray(b"more"), b""):
        session.set_state(state)
        assert session.get_state() == bytes(state)
    session.set_state("tüxt")
    assert session.get_state() == "tüxt".encode()
    session.set_state(None)
    assert session.get_state() is None


def test_a_session_state_outlives_its_messages_and_receivers_and_belongs_to_one_session(
    bus: Bus, server: ServerProcess
) -> None:
    queue = server.create_queue(**SESSIONS)
    bus.sender(queue).send_messages(ServiceBusMessage("x", session_id="s"))
    receiver, other = bus.receiver(queue, session_id="s"), bus.receiver(queue, session_id="t")
    receiver.complete_message(receive(receiver, 1)[0])
    receiver.session.set_state("half done")
    other.session.set_state("all done")
    receiver.close()
    again = bus.receiver(queue, session_id="s")
    assert again.session.get_state() == b"half done"
    assert other.session.get_state() == b"all done"


def test_a_session_state_may_be_as_large_as_a_message_and_no_larger(bus: Bus, server: ServerProcess) -> None:
    session = bus.receiver(server.create_queue(**SESSIONS), session_id="s").session
    session.set_state(b"x" * LIMIT)
    with pytest.raises(MessageSizeExceededError):
        session.set_state(b"y" * (LIMIT + 1))
    assert session.get_state() == b"x" * LIMIT
