"""Session listing: sessions with messages or a state, or with a state set after a given time."""

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


def test_many_sessions_are_listed_once_each_over_several_pages(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    names = [f"session {number}" for number in range(230)]
    bus.sender(queue).send_messages([ServiceBusMessage("x", session_id=name) for name in names for _ in range(2)])
    assert sorted(bus.list_sessions(queue)) == sorted(names)


def test_sessions_are_listed_by_the_time_of_their_last_state_change(bus: Bus, server: ServerProcess) -> None:
    queue = server.create_queue(**SESSIONS)
    sender, early, late = bus.sender(queue), bus.receiver(queue, session_id="1"), bus.receiver(queue, session_id="2")
    sender.send_messages(ServiceBusMessage("x", session_id="without"))
    early.session.set_state("x")
    late.session.set_state("x")
    now = dt.datetime.now(dt.UTC)
    while dt.datetime.now(dt.UTC) - now < dt.timedelta(milliseconds=2):
        pass  # times have millisecond precision: within one millisecond, "after" would be false
    late.session.set_state("y")
    assert bus.list_sessions(queue, state_updated_after=now) == ["2"]
    assert sorted(bus.list_sessions(queue, state_updated_after=now - dt.timedelta(minutes=1))) == ["1", "2"]


def test_listing_the_sessions_of_a_queue_without_sessions_is_refused(bus: Bus, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="has no sessions"):
        bus.list_sessions(queue)
