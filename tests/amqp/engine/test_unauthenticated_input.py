"""Shared limit of input held for unauthenticated peers, over all their connections."""

from __future__ import annotations

from tests.amqp.engine.engine_pair import SingleEngine
from twinbus.amqp.codec.frames import frame
from twinbus.amqp.codec.performatives import Close, Transfer
from twinbus.amqp.delivery import OVERHEAD_BYTES
from twinbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.settings import Limits, Settings, UnauthenticatedInput

LIMITS = Limits()


class Server:
    """A server whose unauthenticated connections share 100,000 bytes, plus 1,000 bytes for each connection."""

    def __init__(self) -> None:
        self.shared = UnauthenticatedInput(max_bytes=100_000, free_bytes=1_000)
        self.settings = Settings(container_id="server", limits=LIMITS, unauthenticated_input=self.shared)

    def connect(self) -> tuple[SingleEngine, Receiver]:
        engine = SingleEngine(settings=self.settings)
        link = engine.attached()
        assert isinstance(link, Receiver)
        link.grant(10)
        engine.collect()
        return engine, link


def transfer(payload_bytes: int, *, more: bool) -> bytes:
    performative = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=more)
    return frame(0, performative.encode() + bytes(payload_bytes))


def is_closed(engine: SingleEngine) -> bool:
    return any(isinstance(performative, Close) for _, performative, _ in engine.sent)


def test_unfinished_messages_of_all_connections_count_towards_the_shared_limit() -> None:
    server = Server()
    (first, _), (second, _), (third, _) = (server.connect() for _ in range(3))
    first.feed_bytes(transfer(50_000, more=True))
    second.feed_bytes(transfer(50_000, more=True))
    assert server.shared.held_bytes == 100_000
    third.feed_bytes(transfer(1_001, more=True))
    assert third.condition(Close) == RESOURCE_LIMIT_EXCEEDED
    error = third.last(Close).error
    assert error is not None
    assert "hold more than 100000 bytes of input together, 1001 of them this one" in str(error.description)
    assert not is_closed(first)
    assert not is_closed(second)
    assert server.shared.held_bytes == 100_000


def test_a_connection_can_still_authenticate_when_others_use_up_the_shared_limit() -> None:
    server = Server()
    (greedy, _), (honest, link) = server.connect(), server.connect()
    for _ in range(2):
        greedy.feed_bytes(transfer(50_000, more=True))
    honest.feed_bytes(transfer(1_000 - OVERHEAD_BYTES, more=False))
    assert link.unanswered_count == 1
    assert not is_closed(honest)


def test_messages_count_until_they_are_settled() -> None:
    server = Server()
    engine, link = server.connect()
    engine.feed_bytes(transfer(50_000, more=False))
    assert server.shared.held_bytes == 50_000 + OVERHEAD_BYTES
    link.settle(list(link.session.unsettled_deliveries.incoming.values()), ACCEPTED)
    engine.collect()
    assert server.shared.held_bytes == 0


def test_incomplete_frames_count() -> None:
    server = Server()
    (first, _), (second, _) = server.connect(), server.connect()
    whole = transfer(60_000, more=False)
    first.feed_bytes(whole[:30_000])
    first.feed_bytes(whole[30_000:59_000])
    assert server.shared.held_bytes == 59_000
    second.feed_bytes(whole[:59_000])
    assert second.condition(Close) == RESOURCE_LIMIT_EXCEEDED
    assert server.shared.held_bytes == 59_000


def test_a_connection_closed_for_the_limit_cannot_hold_more_input() -> None:
    server = Server()
    (greedy, _), (closed, _) = server.connect(), server.connect()
    for _ in range(2):
        greedy.feed_bytes(transfer(50_000, more=True))
    closed.feed_bytes(transfer(2_000, more=True))
    assert is_closed(closed)
    closed.feed_bytes(transfer(50_000, more=True)[:40_000])
    assert closed.connection.is_finished
    assert server.shared.held_bytes == 100_000


def test_a_connection_stops_counting_when_it_authenticates_or_ends() -> None:
    server = Server()
    (trusted, _), (lost, _) = server.connect(), server.connect()
    trusted.feed_bytes(transfer(50_000, more=True))
    lost.feed_bytes(transfer(40_000, more=True))
    trusted.connection.apply_authenticated_limits()
    assert server.shared.held_bytes == 40_000
    for _ in range(10):
        trusted.feed_bytes(transfer(50_000, more=True))
    assert not is_closed(trusted)
    lost.connection.receive_eof()
    trusted.connection.receive_eof()
    assert server.shared.held_bytes == 0
