"""Incremental reads: a large read is processed in pieces, in order, and the connection holds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp.codec.frames import HEARTBEAT, frame
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Flow, Open, Transfer
from twinbus.amqp.connection import DELIVERY_FRAME_WORK, OTHER_FRAME_WORK
from twinbus.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    CreditGranted,
    DeliveriesReceived,
    LinkDetached,
)
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.settings import Settings
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from twinbus.amqp.events import Event


def attach(handle: int, *, role: bool = Role.SENDER) -> bytes:
    return frame(
        0,
        Attach(
            name=f"link {handle}", handle=handle, role=role, initial_delivery_count=0, source=Source(), target=Target()
        ).encode(),
    )


def detach(handle: int) -> bytes:
    return frame(0, Detach(handle=handle, closed=True).encode())


def read_in_pieces(engine: SingleEngine, data: bytes, work: int) -> list[list[Event]]:
    """Return the events of each piece of one read."""
    pieces = [engine.connection.receive_data(data, now=0.0, work=work)]
    while engine.connection.has_held_input:
        pieces.append(engine.connection.receive_data(b"", now=0.0, work=work))
    return pieces


def test_the_work_limit_bounds_the_number_of_frames_in_a_piece() -> None:
    engine = SingleEngine().begun()
    data = b"".join(attach(handle) + detach(handle) for handle in range(50))
    pieces = read_in_pieces(engine, data, 10 * OTHER_FRAME_WORK)
    assert len(pieces) == 10
    assert [len([event for event in events if isinstance(event, AttachRequested)]) for events in pieces] == [5] * 10
    names = [event.link.name for events in pieces for event in events if isinstance(event, LinkDetached)]
    assert names == [f"link {handle}" for handle in range(50)]


def test_without_a_work_limit_a_read_is_one_piece() -> None:
    engine = SingleEngine().begun()
    events = engine.connection.receive_data(b"".join(map(attach, range(500))), now=0.0)
    assert len(events) == 500
    assert not engine.connection.has_held_input


def test_transfers_in_one_piece_are_reported_in_one_event() -> None:
    engine = SingleEngine()
    link = engine.attached()
    assert isinstance(link, Receiver)
    link.grant(1_000)
    data = b"".join(
        frame(0, Transfer(handle=0, delivery_id=number, delivery_tag=b"t").encode() + b"x") for number in range(100)
    )
    pieces = read_in_pieces(engine, data, 60 * DELIVERY_FRAME_WORK)
    assert [
        [len(event.deliveries) for event in events if isinstance(event, DeliveriesReceived)] for events in pieces
    ] == [
        [60],
        [40],
    ]


@pytest.mark.parametrize("size", [1, 7, 100, 1_000])
def test_input_that_arrives_while_input_is_held_is_read_after_it(size: int) -> None:
    engine = SingleEngine().begun()
    data = b"".join(attach(handle) for handle in range(40))
    events = []
    for at in range(0, len(data), size):
        events += engine.connection.receive_data(data[at : at + size], now=0.0, work=OTHER_FRAME_WORK)
    while engine.connection.has_held_input:
        events += engine.connection.receive_data(b"", now=0.0, work=OTHER_FRAME_WORK)
    assert [event.link.name for event in events if isinstance(event, AttachRequested)] == [
        f"link {n}" for n in range(40)
    ]


def test_with_a_work_limit_of_zero_input_is_only_held() -> None:
    engine = SingleEngine().begun()
    assert engine.connection.receive_data(attach(0), now=0.0, work=0) == []
    assert engine.connection.receive_data(attach(1), now=0.0, work=0) == []
    assert engine.connection.has_held_input
    assert len(engine.connection.receive_data(b"", now=0.0)) == 2


def test_a_partial_frame_after_held_input_waits_for_the_rest() -> None:
    engine = SingleEngine().begun()
    data = attach(0) + attach(1) + attach(2)
    pieces = read_in_pieces(engine, data[:-10], OTHER_FRAME_WORK)
    assert len([event for events in pieces for event in events]) == 2
    assert not engine.connection.has_held_input
    (last_event,) = engine.connection.receive_data(data[-10:], now=0.0, work=OTHER_FRAME_WORK)
    assert isinstance(last_event, AttachRequested)


def test_heartbeats_and_timeouts_continue_while_input_is_held() -> None:
    settings = Settings(container_id="s", idle_timeout_ms=60_000)
    engine = SingleEngine(settings=settings)
    engine.connection.receive_data(b"AMQP\x00\x01\x00\x00", now=0.0)
    opened = frame(0, Open(container_id="c", idle_time_out=30_000).encode())
    engine.connection.receive_data(opened + HEARTBEAT * 10, now=0.0, work=OTHER_FRAME_WORK + 1)
    assert engine.connection.has_held_input
    engine.connection.data_to_send()
    engine.connection.tick(10.0)
    engine.connection.tick(20.0)
    assert engine.connection.data_to_send() == HEARTBEAT
    engine.connection.tick(121.0)
    assert engine.connection.is_finished


def test_held_input_is_dropped_when_the_socket_is_lost() -> None:
    engine = SingleEngine().begun()
    engine.connection.receive_data(attach(0) + attach(1), now=0.0, work=OTHER_FRAME_WORK)
    (detached, _ended, closed) = engine.connection.receive_eof()
    assert isinstance(detached, LinkDetached)
    assert isinstance(closed, ConnectionClosed)
    assert not engine.connection.has_held_input
    assert engine.connection.receive_data(b"", now=0.0) == []


def test_a_close_after_held_input_is_read_even_after_our_own_close() -> None:
    engine = SingleEngine().begun()
    data = attach(0) + attach(1) + frame(0, Close().encode())
    engine.connection.receive_data(data, now=0.0, work=OTHER_FRAME_WORK)
    engine.connection.close()
    all_events = [event for events in read_in_pieces(engine, b"", OTHER_FRAME_WORK) for event in events]
    assert not [request for request in all_events if isinstance(request, AttachRequested)]
    assert isinstance(all_events[-1], ConnectionClosed)
    assert engine.connection.is_finished


def test_a_window_that_opens_several_times_in_one_piece_is_reported_once() -> None:
    engine = SingleEngine()
    for handle in range(3):
        engine.attached(role=Role.RECEIVER, handle=handle, name=f"out {handle}")
    flows = b""
    for handle in range(3):
        flows += frame(0, Flow(incoming_window=0, next_outgoing_id=0, outgoing_window=1, handle=handle).encode())
    for credit in range(20):
        for window in (0, 100):
            flow = Flow(next_incoming_id=0, incoming_window=window, next_outgoing_id=0, outgoing_window=1)
            flows += frame(0, flow.encode())
        credited = Flow(
            next_incoming_id=0, incoming_window=100, next_outgoing_id=0, outgoing_window=1, handle=0, link_credit=credit
        )
        flows += frame(0, credited.encode())
    pieces = read_in_pieces(engine, flows, OTHER_FRAME_WORK)
    by_window = [event for event in pieces[-1] if isinstance(event, CreditGranted)]
    assert len(by_window) <= 2  # one for the last flow's credit, one for the window
    assert len([event for events in pieces[:-1] for event in events if isinstance(event, CreditGranted)]) <= 3 + 20


def test_frames_of_two_sessions_keep_their_channel_across_pieces() -> None:
    engine = SingleEngine().begun()
    engine.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=1)
    data = b"".join(
        frame(
            channel,
            Attach(name=f"{channel}", handle=0, role=Role.SENDER, initial_delivery_count=0, target=Target()).encode(),
        )
        for channel in (0, 1)
    )
    all_events = [event for events in read_in_pieces(engine, data, 1) for event in events]
    assert [event.link.session.channel for event in all_events if isinstance(event, AttachRequested)] == [0, 1]
