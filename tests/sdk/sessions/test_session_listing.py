"""The sessions of a queue are listed: those that have messages or a state, or those whose state is recent."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.sdk.bus import receive

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess

SESSIONS = {"RequiresSession": "true"}


def test_sessions_with_messages_or_a_state_are_listed_and_no_others(every_bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    sender, done = every_bus.sender(queue), every_bus.receiver(queue, session_id="done")
    state, cleared = every_bus.receiver(queue, session_id="state"), every_bus.receiver(queue, session_id="cleared")
    sender.send_messages([ServiceBusMessage("x", session_id=session) for session in ("full", "done", "full", "state")])
    done.complete_message(receive(done, 1)[0])
    state.session.set_state("x")
    state.complete_message(receive(state, 1)[0])
    cleared.session.set_state("x")
    cleared.session.set_state(None)
    assert sorted(every_bus.list_sessions(queue)) == ["full", "state"]


def test_many_sessions_are_listed_page_by_page_each_once(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    names = [f"session {number}" for number in range(230)]
    bus.sender(queue).send_messages([ServiceBusMessage("x", session_id=name) for name in names for _ in range(2)])
    assert sorted(bus.list_sessions(queue)) == sorted(names)


def test_sessions_are_listed_by_when_their_state_was_set(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    sender, early, late = bus.sender(queue), bus.receiver(queue, session_id="1"), bus.receiver(queue, session_id="2")
    sender.send_messages(ServiceBusMessage("x", session_id="without"))
    early.session.set_state("x")
    late.session.set_state("x")
    now = dt.datetime.now(dt.UTC)
    while dt.datetime.now(dt.UTC) - now < dt.timedelta(milliseconds=2):
        pass  # times are told in milliseconds: in the same one, "after" would not hold
    late.session.set_state("y")
    assert bus.list_sessions(queue, state_updated_after=now) == ["2"]
    assert sorted(bus.list_sessions(queue, state_updated_after=now - dt.timedelta(minutes=1))) == ["1", "2"]


def test_a_queue_without_sessions_cannot_list_any(bus: Bus, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="has no sessions"):
        bus.list_sessions(queue)
