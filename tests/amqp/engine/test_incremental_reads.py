"""A read with much in it is read in pieces, in its order; what is not read yet is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp.connection import DELIVERY_FRAME_WORK, OTHER_FRAME_WORK
from twinbus.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    CreditGranted,
    DeliveriesReceived,
    LinkDetached,
)
from twinbus.amqp.frames import HEARTBEAT, frame
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, Flow, Open, Transfer
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


def pieces(lone: SingleEngine, data: bytes, work: int) -> list[list[Event]]:
    """What each piece of one read tells."""
    told = [lone.connection.receive_data(data, now=0.0, work=work)]
    while lone.connection.has_held_input:
        told.append(lone.connection.receive_data(b"", now=0.0, work=work))
    return told


def test_a_piece_has_as_many_frames_as_its_work_allows() -> None:
    lone = SingleEngine().begun()
    data = b"".join(attach(handle) + detach(handle) for handle in range(50))
    told = pieces(lone, data, 10 * OTHER_FRAME_WORK)
    assert len(told) == 10
    assert [len([one for one in events if isinstance(one, AttachRequested)]) for events in told] == [5] * 10
    names = [one.link.name for events in told for one in events if isinstance(one, LinkDetached)]
    assert names == [f"link {handle}" for handle in range(50)]


def test_without_a_limit_on_its_work_a_read_is_one_piece() -> None:
    lone = SingleEngine().begun()
    events = lone.connection.receive_data(b"".join(map(attach, range(500))), now=0.0)
    assert len(events) == 500
    assert not lone.connection.has_held_input


def test_transfers_are_cheap_and_keep_together() -> None:
    lone = SingleEngine()
    link = lone.attached()
    assert isinstance(link, Receiver)
    link.grant(1_000)
    data = b"".join(
        frame(0, Transfer(handle=0, delivery_id=number, delivery_tag=b"t").encode() + b"x") for number in range(100)
    )
    told = pieces(lone, data, 60 * DELIVERY_FRAME_WORK)
    assert [[len(one.deliveries) for one in events if isinstance(one, DeliveriesReceived)] for events in told] == [
        [60],
        [40],
    ]


@pytest.mark.parametrize("size", [1, 7, 100, 1_000])
def test_what_comes_while_input_is_held_is_read_after_it(size: int) -> None:
    lone = SingleEngine().begun()
    data = b"".join(attach(handle) for handle in range(40))
    events = []
    for at in range(0, len(data), size):
        events += lone.connection.receive_data(data[at : at + size], now=0.0, work=OTHER_FRAME_WORK)
    while lone.connection.has_held_input:
        events += lone.connection.receive_data(b"", now=0.0, work=OTHER_FRAME_WORK)
    assert [one.link.name for one in events if isinstance(one, AttachRequested)] == [f"link {n}" for n in range(40)]


def test_with_no_work_at_all_input_is_only_held() -> None:
    lone = SingleEngine().begun()
    assert lone.connection.receive_data(attach(0), now=0.0, work=0) == []
    assert lone.connection.receive_data(attach(1), now=0.0, work=0) == []
    assert lone.connection.has_held_input
    assert len(lone.connection.receive_data(b"", now=0.0)) == 2


def test_half_a_frame_behind_held_input_waits_for_its_other_half() -> None:
    lone = SingleEngine().begun()
    data = attach(0) + attach(1) + attach(2)
    told = pieces(lone, data[:-10], OTHER_FRAME_WORK)
    assert len([one for events in told for one in events]) == 2
    assert not lone.connection.has_held_input
    (event,) = lone.connection.receive_data(data[-10:], now=0.0, work=OTHER_FRAME_WORK)
    assert isinstance(event, AttachRequested)


def test_heartbeats_and_time_outs_go_on_while_input_is_held() -> None:
    settings = Settings(container_id="s", idle_timeout_ms=60_000)
    lone = SingleEngine(settings=settings)
    lone.connection.receive_data(b"AMQP\x00\x01\x00\x00", now=0.0)
    opened = frame(0, Open(container_id="c", idle_time_out=30_000).encode())
    lone.connection.receive_data(opened + HEARTBEAT * 10, now=0.0, work=OTHER_FRAME_WORK + 1)
    assert lone.connection.has_held_input
    lone.connection.data_to_send()
    lone.connection.tick(10.0)
    lone.connection.tick(20.0)
    assert lone.connection.data_to_send() == HEARTBEAT
    lone.connection.tick(121.0)
    assert lone.connection.is_finished


def test_held_input_is_forgotten_when_the_socket_is_gone() -> None:
    lone = SingleEngine().begun()
    lone.connection.receive_data(attach(0) + attach(1), now=0.0, work=OTHER_FRAME_WORK)
    (detached, _ended, closed) = lone.connection.receive_eof()
    assert isinstance(detached, LinkDetached)
    assert isinstance(closed, ConnectionClosed)
    assert not lone.connection.has_held_input
    assert lone.connection.receive_data(b"", now=0.0) == []


def test_a_close_behind_held_input_is_found_after_our_own_close() -> None:
    lone = SingleEngine().begun()
    data = attach(0) + attach(1) + frame(0, Close().encode())
    lone.connection.receive_data(data, now=0.0, work=OTHER_FRAME_WORK)
    lone.connection.close()
    told = [event for events in pieces(lone, b"", OTHER_FRAME_WORK) for event in events]
    assert not [one for one in told if isinstance(one, AttachRequested)]
    assert isinstance(told[-1], ConnectionClosed)
    assert lone.connection.is_finished


def test_a_window_that_is_opened_with_every_other_frame_is_told_once() -> None:
    lone = SingleEngine()
    for handle in range(3):
        lone.attached(role=Role.RECEIVER, handle=handle, name=f"out {handle}")
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
    told = pieces(lone, flows, OTHER_FRAME_WORK)
    by_window = [one for one in told[-1] if isinstance(one, CreditGranted)]
    assert len(by_window) <= 2  # the last flow's own, and the one for the window
    assert len([one for events in told[:-1] for one in events if isinstance(one, CreditGranted)]) <= 3 + 20


def test_a_session_is_told_apart_from_another_across_pieces() -> None:
    lone = SingleEngine().begun()
    lone.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=1)
    data = b"".join(
        frame(
            channel,
            Attach(name=f"{channel}", handle=0, role=Role.SENDER, initial_delivery_count=0, target=Target()).encode(),
        )
        for channel in (0, 1)
    )
    told = [event for events in pieces(lone, data, 1) for event in events]
    assert [event.link.session.channel for event in told if isinstance(event, AttachRequested)] == [0, 1]
