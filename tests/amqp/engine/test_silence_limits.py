"""Silence limits: heartbeats between both ends, when an end closes, and what an answered heartbeat confirms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import EnginePair
from twinbus.amqp.codec.frames import HEARTBEAT
from twinbus.amqp.events import ConnectionClosed
from twinbus.amqp.heartbeat import RECHECK_S

if TYPE_CHECKING:
    from twinbus.amqp.connection import Connection

LIMIT_S = 6.0


def pair_with_limit(limit_s: float = LIMIT_S) -> EnginePair:
    pair = EnginePair()
    for end in (pair.client, pair.server):
        end.connection.set_silence_limit(limit_s)
    return pair


def ticks_until(connection: Connection, now: float, until: float) -> tuple[float, list[object]]:
    """Tick when the engine asks for it, without input; return the time and the events of the first tick with events."""
    while now < until:
        now += connection.tick_in_s(now)
        events = connection.tick(now)
        connection.data_to_send()
        if events:
            return now, list(events)
    return now, []


@pytest.mark.parametrize("end", ["client", "server"])
def test_either_end_closes_soon_after_the_silence_limit_and_not_before(end: str) -> None:
    connection = getattr(pair_with_limit(), end).connection
    closed_s, events = ticks_until(connection, 0.0, 100.0)
    assert LIMIT_S <= closed_s <= LIMIT_S + RECHECK_S + 0.1
    (closed,) = [event for event in events if isinstance(event, ConnectionClosed)]
    assert closed.error is not None
    assert closed.error.condition == "amqp:connection:forced"
    assert closed.error.description == f"nothing was received for {closed_s:.1f} s (agreed limit: 6 s)"
    assert connection.is_finished


def test_a_peer_that_keeps_sending_heartbeats_is_never_closed() -> None:
    pair = pair_with_limit()
    due_s = {end: end.connection.tick_in_s(0.0) for end in (pair.client, pair.server)}
    while pair.now < 3_600:
        end = min(due_s, key=due_s.__getitem__)
        pair.now = due_s[end]
        assert end.connection.tick(pair.now) == []
        pair.exchange()
        due_s[end] = pair.now + end.connection.tick_in_s(pair.now)
    assert pair.client.connection.silence_limit.confirmed_s > pair.now - LIMIT_S / 2


def test_the_server_answers_each_heartbeat_with_one_and_sends_no_others() -> None:
    pair = pair_with_limit()
    server = pair.server.connection
    server.receive_data(HEARTBEAT * 3, now=1.0)
    assert server.data_to_send() == HEARTBEAT * 3
    for now in (2.0, 4.0, 6.0):
        server.tick(now)
        assert server.data_to_send() == b""


def test_without_a_silence_limit_a_heartbeat_is_not_answered() -> None:
    pair = EnginePair()
    pair.server.connection.receive_data(HEARTBEAT, now=1.0)
    assert pair.server.connection.data_to_send() == b""
    pair.server.connection.set_silence_limit(LIMIT_S)
    pair.server.connection.set_silence_limit(0.0)
    pair.server.connection.receive_data(HEARTBEAT, now=1.0)
    assert pair.server.connection.data_to_send() == b""
    assert ticks_until(pair.server.connection, 1.0, 200.0)[1] == [], "the limit of ordinary connections holds again"


def test_an_answered_heartbeat_confirms_the_time_it_was_sent_not_the_time_of_the_answer() -> None:
    pair = pair_with_limit()
    client = pair.client.connection
    client.tick(2.0)
    client.tick(4.0)
    assert client.data_to_send() == HEARTBEAT * 2
    assert client.silence_limit.confirmed_s == 0.0
    client.receive_data(HEARTBEAT, now=4.5)
    assert client.silence_limit.confirmed_s == 2.0
    client.receive_data(HEARTBEAT, now=5.5)
    assert client.silence_limit.confirmed_s == 4.0
    client.receive_data(HEARTBEAT, now=5.6)
    assert client.silence_limit.confirmed_s == 4.0, "nothing was asked that this could answer"


def test_an_answer_to_a_heartbeat_of_an_earlier_limit_does_not_confirm_later_heartbeats() -> None:
    pair = pair_with_limit()
    client = pair.client.connection
    client.tick(2.0)
    client.set_silence_limit(0.0)
    client.set_silence_limit(LIMIT_S)
    client.tick(4.0)
    client.receive_data(HEARTBEAT, now=4.1)
    assert client.silence_limit.confirmed_s == 2.0


def test_any_frame_resets_the_silence() -> None:
    pair = pair_with_limit()
    for now in range(4, 40, 4):
        pair.now = float(now)
        pair.sender(name=f"link {now}")
        assert pair.server.connection.tick(pair.now) == []


def test_input_that_arrived_while_the_loop_was_busy_is_read_before_a_peer_is_closed() -> None:
    pair = pair_with_limit()
    assert pair.server.connection.tick(30.0) == []
    assert pair.server.connection.tick_in_s(30.0) == pytest.approx(RECHECK_S)
    pair.server.connection.receive_data(HEARTBEAT, now=30.0)
    assert pair.server.connection.tick(30.0 + RECHECK_S) == []
    assert ticks_until(pair.server.connection, 30.5, 35.9)[1] == []


def test_a_client_sends_a_heartbeat_before_it_closes_for_silence() -> None:
    pair = pair_with_limit()
    assert pair.client.connection.tick(30.0) == []
    pair.now = 30.1
    pair.exchange()
    assert pair.client.connection.tick(30.5) == []
    assert pair.client.connection.silence_limit.confirmed_s == 30.0


def test_output_taken_by_the_peer_resets_the_silence() -> None:
    connection = pair_with_limit().server.connection
    connection.silence_limit.note_progress(5.0)
    closed_s, _ = ticks_until(connection, 5.0, 100.0)
    assert 5.0 + LIMIT_S <= closed_s <= 5.0 + LIMIT_S + RECHECK_S + 0.1
