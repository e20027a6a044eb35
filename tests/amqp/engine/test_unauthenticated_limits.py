"""Limits of unauthenticated peers: few sessions, links and bytes until the peer authenticates."""

from __future__ import annotations

from dataclasses import replace

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Open, Transfer
from twinbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from twinbus.amqp.events import AttachRequested, SessionBegun
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Source, Target

LIMITS = Limits(max_sessions=100, max_links=100, max_message_size=10_000_000)
UNAUTHENTICATED_LIMITS = replace(LIMITS, max_sessions=3, max_links=4, max_attaches=20, max_assembling_bytes=100_000)


def unauthenticated_engine() -> SingleEngine:
    return SingleEngine(
        settings=Settings(container_id="server", limits=LIMITS, unauthenticated_limits=UNAUTHENTICATED_LIMITS)
    ).begun()


def attach(engine: SingleEngine, *handles: int) -> None:
    for handle in handles:
        engine.send(
            Attach(
                name=f"link {handle}",
                handle=handle,
                role=Role.SENDER,
                initial_delivery_count=0,
                source=Source(),
                target=Target(),
            )
        )


def begin(engine: SingleEngine, *channels: int) -> None:
    for channel in channels:
        engine.send(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=channel)


def test_the_advertised_limits_are_those_of_authenticated_peers() -> None:
    engine = unauthenticated_engine()
    assert engine.last(Open).channel_max == 99
    attach(engine, 0)
    engine.end.events_of(AttachRequested)[0].link.accept()
    engine.collect()
    assert engine.last(Attach).max_message_size == 10_000_000


def test_an_unauthenticated_peer_has_fewer_links_until_it_authenticates() -> None:
    engine = unauthenticated_engine()
    attach(engine, *range(5))
    assert len(engine.end.events_of(AttachRequested)) == 4
    assert engine.condition(Detach) == RESOURCE_LIMIT_EXCEEDED
    engine.connection.apply_authenticated_limits()
    attach(engine, *range(5, 50))
    assert len(engine.end.events_of(AttachRequested)) == 49


def test_an_unauthenticated_peer_that_keeps_attaching_refused_links_is_closed() -> None:
    engine = unauthenticated_engine()
    attach(engine, *range(9))
    assert engine.condition(Close) == RESOURCE_LIMIT_EXCEEDED


def test_an_unauthenticated_peer_that_attaches_and_detaches_repeatedly_is_closed() -> None:
    def attach_often(engine: SingleEngine) -> int:
        for _ in range(30):
            attach(engine, 0)
            engine.send(Detach(handle=0, closed=True))
        return len(engine.end.events_of(AttachRequested))

    assert attach_often(unauthenticated_engine()) == 20
    authenticated = unauthenticated_engine()
    authenticated.connection.apply_authenticated_limits()
    assert attach_often(authenticated) == 30


def test_an_unauthenticated_peer_has_fewer_sessions_until_it_authenticates() -> None:
    engine = unauthenticated_engine()
    begin(engine, 1, 2)
    assert len(engine.end.events_of(SessionBegun)) == 3
    engine.connection.apply_authenticated_limits()
    begin(engine, *range(3, 20))
    assert len(engine.end.events_of(SessionBegun)) == 20
    engine = unauthenticated_engine()
    begin(engine, 1, 2, 3)
    assert engine.condition(Close) == RESOURCE_LIMIT_EXCEEDED


def test_an_unauthenticated_peer_may_have_few_bytes_of_unfinished_messages() -> None:
    def send(engine: SingleEngine, pieces: int) -> None:
        attach(engine, 0)
        link = engine.end.events_of(AttachRequested)[0].link
        assert isinstance(link, Receiver)
        link.accept()
        link.grant(10)
        for _ in range(pieces):
            engine.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), payload=bytes(50_000))

    engine = unauthenticated_engine()
    send(engine, 3)
    assert engine.condition(Close) == RESOURCE_LIMIT_EXCEEDED
    authenticated = unauthenticated_engine()
    authenticated.connection.apply_authenticated_limits()
    send(authenticated, 10)
    assert not [performative for _, performative, _ in authenticated.sent if isinstance(performative, Close)]
