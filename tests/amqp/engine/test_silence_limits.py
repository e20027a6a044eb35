"""An agreed limit of silence: who speaks when, who gives up when, and what an answer proves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import EnginePair
from twinbus.amqp.events import ConnectionClosed
from twinbus.amqp.frames import HEARTBEAT
from twinbus.amqp.silence_limit import RECHECK_S

if TYPE_CHECKING:
    from twinbus.amqp.connection import Connection

LIMIT_S = 6.0


def agreed(limit_s: float = LIMIT_S) -> EnginePair:
    pair = EnginePair()
    for end in (pair.client, pair.server):
        end.connection.set_silence_limit(limit_s)
    return pair


def ticks_until(connection: Connection, now: float, until: float) -> tuple[float, list[object]]:
    """Tick when the engine wants to be, without hearing anything; when it gave up, or the end, and what it told."""
    while now < until:
        now += connection.tick_in_s(now)
        events = connection.tick(now)
        connection.data_to_send()
        if events:
            return now, list(events)
    return now, []


@pytest.mark.parametrize("end", ["client", "server"])
def test_either_end_gives_up_soon_after_the_limit_and_not_before(end: str) -> None:
    connection = getattr(agreed(), end).connection
    gave_up_s, events = ticks_until(connection, 0.0, 100.0)
    assert LIMIT_S <= gave_up_s <= LIMIT_S + RECHECK_S + 0.1
    (closed,) = [event for event in events if isinstance(event, ConnectionClosed)]
    assert closed.error is not None
    assert closed.error.condition == "amqp:connection:forced"
    assert closed.error.description == f"nothing was received for {gave_up_s:.1f} s (agreed limit: 6 s)"
    assert connection.is_finished


def test_a_peer_that_keeps_its_promise_is_never_given_up() -> None:
    pair = agreed()
    due_s = {end: end.connection.tick_in_s(0.0) for end in (pair.client, pair.server)}
    while pair.now < 3_600:
        end = min(due_s, key=due_s.__getitem__)
        pair.now = due_s[end]
        assert end.connection.tick(pair.now) == []
        pair.exchange()
        due_s[end] = pair.now + end.connection.tick_in_s(pair.now)
    assert pair.client.connection.silence_limit.confirmed_s > pair.now - LIMIT_S / 2


def test_the_server_answers_each_empty_frame_by_one_and_sends_no_others() -> None:
    pair = agreed()
    server = pair.server.connection
    server.receive_data(HEARTBEAT * 3, now=1.0)
    assert server.data_to_send() == HEARTBEAT * 3
    for now in (2.0, 4.0, 6.0):
        server.tick(now)
        assert server.data_to_send() == b""


def test_without_an_agreement_an_empty_frame_is_not_answered() -> None:
    pair = EnginePair()
    pair.server.connection.receive_data(HEARTBEAT, now=1.0)
    assert pair.server.connection.data_to_send() == b""
    pair.server.connection.set_silence_limit(LIMIT_S)
    pair.server.connection.set_silence_limit(0.0)
    pair.server.connection.receive_data(HEARTBEAT, now=1.0)
    assert pair.server.connection.data_to_send() == b""
    assert ticks_until(pair.server.connection, 1.0, 200.0)[1] == [], "the limit of ordinary connections holds again"


def test_an_answer_proves_that_the_server_heard_the_client_when_it_asked_not_when_the_answer_came() -> None:
    pair = agreed()
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


def test_an_answer_to_a_frame_of_an_earlier_agreement_proves_nothing_of_later_frames() -> None:
    pair = agreed()
    client = pair.client.connection
    client.tick(2.0)
    client.set_silence_limit(0.0)
    client.set_silence_limit(LIMIT_S)
    client.tick(4.0)
    client.receive_data(HEARTBEAT, now=4.1)
    assert client.silence_limit.confirmed_s == 2.0


def test_any_frame_counts_as_a_sign_of_life() -> None:
    pair = agreed()
    for now in range(4, 40, 4):
        pair.now = float(now)
        pair.sender(name=f"link {now}")
        assert pair.server.connection.tick(pair.now) == []


def test_what_came_while_the_loop_was_busy_is_read_before_a_peer_is_called_silent() -> None:
    pair = agreed()
    assert pair.server.connection.tick(30.0) == []
    assert pair.server.connection.tick_in_s(30.0) == pytest.approx(RECHECK_S)
    pair.server.connection.receive_data(HEARTBEAT, now=30.0)
    assert pair.server.connection.tick(30.0 + RECHECK_S) == []
    assert ticks_until(pair.server.connection, 30.5, 35.9)[1] == []


def test_a_client_that_finds_the_server_silent_asks_for_a_sign_before_it_gives_up() -> None:
    pair = agreed()
    assert pair.client.connection.tick(30.0) == []
    pair.now = 30.1
    pair.exchange()
    assert pair.client.connection.tick(30.5) == []
    assert pair.client.connection.silence_limit.confirmed_s == 30.0


def test_output_that_the_peer_takes_is_a_sign_of_life_while_nothing_is_read_from_it() -> None:
    connection = agreed().server.connection
    connection.silence_limit.note_progress(5.0)
    gave_up_s, _ = ticks_until(connection, 5.0, 100.0)
    assert 5.0 + LIMIT_S <= gave_up_s <= 5.0 + LIMIT_S + RECHECK_S + 0.1
