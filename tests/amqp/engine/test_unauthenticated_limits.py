"""A peer may make a server hold little until the program trusts it; then it may do what every peer may."""

from __future__ import annotations

from dataclasses import replace

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from twinbus.amqp.events import AttachRequested, SessionBegun
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, Open, Transfer
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Source, Target

LIMITS = Limits(max_sessions=100, max_links=100, max_message_size=10_000_000)
FIRST = replace(LIMITS, max_sessions=3, max_links=4, max_attaches=20, max_assembling_bytes=100_000)


def stranger() -> SingleEngine:
    return SingleEngine(settings=Settings(container_id="server", limits=LIMITS, unauthenticated_limits=FIRST)).begun()


def attach(lone: SingleEngine, *handles: int) -> None:
    for handle in handles:
        lone.send(
            Attach(
                name=f"link {handle}",
                handle=handle,
                role=Role.SENDER,
                initial_delivery_count=0,
                source=Source(),
                target=Target(),
            )
        )


def begin(lone: SingleEngine, *channels: int) -> None:
    for channel in channels:
        lone.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=channel)


def test_what_is_advertised_is_what_holds_in_the_end() -> None:
    lone = stranger()
    assert lone.last(Open).channel_max == 99
    attach(lone, 0)
    lone.end.events_of(AttachRequested)[0].link.accept()
    lone.collect()
    assert lone.last(Attach).max_message_size == 10_000_000


def test_a_stranger_has_few_links_and_more_once_it_is_trusted() -> None:
    lone = stranger()
    attach(lone, *range(5))
    assert len(lone.end.events_of(AttachRequested)) == 4
    assert lone.condition(Detach) == RESOURCE_LIMIT_EXCEEDED
    lone.connection.apply_authenticated_limits()
    attach(lone, *range(5, 50))
    assert len(lone.end.events_of(AttachRequested)) == 49


def test_a_stranger_that_attaches_on_and_on_without_detaching_is_cut_off() -> None:
    lone = stranger()
    attach(lone, *range(9))
    assert lone.condition(Close) == RESOURCE_LIMIT_EXCEEDED


def test_a_stranger_that_attaches_and_detaches_on_and_on_is_cut_off() -> None:
    def attach_often(lone: SingleEngine) -> int:
        for _ in range(30):
            attach(lone, 0)
            lone.send(Detach(handle=0, closed=True))
        return len(lone.end.events_of(AttachRequested))

    assert attach_often(stranger()) == 20
    trusted = stranger()
    trusted.connection.apply_authenticated_limits()
    assert attach_often(trusted) == 30


def test_a_stranger_has_few_sessions_and_more_once_it_is_trusted() -> None:
    lone = stranger()
    begin(lone, 1, 2)
    assert len(lone.end.events_of(SessionBegun)) == 3
    lone.connection.apply_authenticated_limits()
    begin(lone, *range(3, 20))
    assert len(lone.end.events_of(SessionBegun)) == 20
    lone = stranger()
    begin(lone, 1, 2, 3)
    assert lone.condition(Close) == RESOURCE_LIMIT_EXCEEDED


def test_a_stranger_may_have_few_bytes_of_unfinished_messages_under_way() -> None:
    def send(lone: SingleEngine, pieces: int) -> None:
        attach(lone, 0)
        link = lone.end.events_of(AttachRequested)[0].link
        assert isinstance(link, Receiver)
        link.accept()
        link.grant(10)
        for _ in range(pieces):
            lone.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), payload=bytes(50_000))

    lone = stranger()
    send(lone, 3)
    assert lone.condition(Close) == RESOURCE_LIMIT_EXCEEDED
    trusted = stranger()
    trusted.connection.apply_authenticated_limits()
    send(trusted, 10)
    assert not [one for _, one, _ in trusted.sent if isinstance(one, Close)]
