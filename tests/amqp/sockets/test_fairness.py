"""Fairness: input that is expensive to handle is processed in time slices, so that every peer gets a turn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import TYPE_CHECKING, Self

import pytest

from tests.amqp.sockets.test_asyncio_adapter import ListenerFixture, Recorder, run
from twinbus.amqp import peer_input
from twinbus.amqp.codec.frames import AMQP_HEADER, frame
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Open
from twinbus.amqp.events import AttachRequested, ConnectionClosed, SessionBegun
from twinbus.amqp.peer_input import TIME_SLICE_S, HeldInputQueue
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from twinbus.amqp.events import Event

ATTACH_S = 0.001
"""Time to handle one attach, on the clock of these tests."""
SERVER = Settings(
    container_id="server",
    limits=Limits(max_unanswered_bytes=2**30),
    unauthenticated_limits=Limits(max_unanswered_bytes=2**30),
)


class Time:
    """A clock that advances only while a handler works."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def monotonic(self) -> float:
        return self.now_s


class Slow(Recorder):
    """A handler that takes time for each attach, and records the attaches of all peers in order."""

    time: Time
    order: list[tuple[str, float]]

    def handle_event(self, event: Event) -> None:
        super().handle_event(event)
        if isinstance(event, AttachRequested):
            self.time.now_s += ATTACH_S
            self.order.append((event.link.name.split()[0], self.time.now_s))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    clock = Time()
    monkeypatch.setattr(peer_input, "time", clock)
    return type("Slow", (Slow,), {"time": clock, "order": []})


def handshake() -> bytes:
    begin = Begin(next_outgoing_id=0, incoming_window=1_000, outgoing_window=1_000)
    return AMQP_HEADER + frame(0, Open(container_id="c").encode()) + frame(0, begin.encode())


def attaches(name: str, count: int) -> bytes:
    return b"".join(
        frame(0, Attach(name=f"{name} {n}", handle=0, role=False, source=Source(), target=Target()).encode())
        + frame(0, Detach(handle=0, closed=True).encode())
        for n in range(count)
    )


@contextlib.asynccontextmanager
async def serving(make_handler: type[Slow]) -> AsyncIterator[ListenerFixture]:
    fixture = await ListenerFixture(make_handler, SERVER).start()
    try:
        yield fixture
    finally:
        await fixture.listener.close(grace_s=0.1)


class RawClient:
    """A client that sends given bytes, and reads no answers."""

    handler: Recorder

    def __init__(self, fixture: ListenerFixture) -> None:
        self._fixture = fixture
        self._socket = socket.create_connection(("127.0.0.1", fixture.listener.port))
        self._socket.setblocking(False)  # noqa: FBT003

    async def __aenter__(self) -> Self:
        await self.send(handshake())
        self.handler = await self._fixture.arrivals.get()
        await self.handler.wait_for_events(SessionBegun)
        return self

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()


def attached(handler: Recorder) -> int:
    return len([event for event in handler.events if isinstance(event, AttachRequested)])


def test_a_thousand_attaches_in_one_read_do_not_delay_another_peer(slow: type[Slow]) -> None:
    async def test() -> None:
        async with serving(slow) as fixture, RawClient(fixture) as greedy, RawClient(fixture) as modest:
            await greedy.send(attaches("greedy", 1_000))
            await greedy.handler.wait_for_events(AttachRequested)
            began_s = slow.time.now_s
            assert attached(greedy.handler) < 100
            await modest.send(attaches("modest", 1))
            await modest.handler.wait_for_events(AttachRequested)
            assert slow.time.now_s - began_s < 10 * TIME_SLICE_S
            await greedy.handler.wait_for_events(AttachRequested, 1_000)
            names = [event.link.name for event in greedy.handler.events if isinstance(event, AttachRequested)]
            assert names == [f"greedy {n}" for n in range(1_000)]

    run(test)


def test_many_busy_peers_share_one_time_slice(slow: type[Slow]) -> None:
    async def test() -> None:
        async with serving(slow) as fixture, contextlib.AsyncExitStack() as stack:
            modest = await stack.enter_async_context(RawClient(fixture))
            crowd = [await stack.enter_async_context(RawClient(fixture)) for _ in range(20)]
            for greedy in crowd:
                await greedy.send(attaches("greedy", 100))
            for greedy in crowd:
                await greedy.handler.wait_for_events(AttachRequested)
            began_s = slow.time.now_s
            await modest.send(attaches("modest", 1))
            await modest.handler.wait_for_events(AttachRequested)
            assert (
                slow.time.now_s - began_s < 15 * TIME_SLICE_S
            )  # one turn for each of them would take at least 20 slices
            for greedy in crowd:
                await greedy.handler.wait_for_events(AttachRequested, 100)

    run(test)


def test_a_socket_is_not_read_from_while_its_input_is_held(slow: type[Slow]) -> None:
    async def test() -> None:
        async with serving(slow) as fixture, RawClient(fixture) as greedy:
            sending = asyncio.ensure_future(greedy.send(attaches("greedy", 10_000)))
            connection = greedy.handler.peer.connection
            most = 0
            while attached(greedy.handler) < 500:
                await asyncio.sleep(0)
                most = max(most, connection._held_size)  # noqa: SLF001
            assert 0 < most < 1_000_000
            sending.cancel()

    run(test)


def test_a_close_after_much_held_input_is_answered(slow: type[Slow]) -> None:
    async def test() -> None:
        async with serving(slow) as fixture, RawClient(fixture) as greedy:
            await greedy.send(attaches("greedy", 500) + frame(0, Close().encode()))
            await greedy.handler.wait_for_events(ConnectionClosed)
            assert attached(greedy.handler) == 500

    run(test)


class HeldPeer:
    """A peer in the queue of held input, with `pieces` pieces of input left."""

    def __init__(self, clock: Time, pieces: int, piece_s: float) -> None:
        self.left = pieces
        self.read_at: list[float] = []
        self._time = clock
        self._piece_s = piece_s

    def read_slice(self) -> bool:
        self.read_at.append(self._time.now_s)
        self._time.now_s += self._piece_s
        self.left -= 1
        return self.left > 0


def test_the_held_input_queue_serves_its_peers_round_robin_in_time_slices() -> None:
    clock = Time()
    scheduled: deque[Callable[[], None]] = deque()
    queue = HeldInputQueue(clock.monotonic, scheduled.append)
    peers = [HeldPeer(clock, 10, 0.004) for _ in range(5)]
    for peer in peers:
        queue.add(peer)
    turns = []
    while scheduled:
        before = clock.now_s
        scheduled.popleft()()
        turns.append(clock.now_s - before)
        assert max(peer.left for peer in peers) - min(peer.left for peer in peers) <= 1
    assert all(peer.left == 0 for peer in peers)
    assert max(turns) <= TIME_SLICE_S + 0.004 + 1e-9


def test_an_exception_of_one_peer_does_not_stop_the_others_in_the_queue() -> None:
    class Faulty(HeldPeer):
        def read_slice(self) -> bool:
            raise ZeroDivisionError

    clock = Time()
    scheduled: deque[Callable[[], None]] = deque()
    queue = HeldInputQueue(clock.monotonic, scheduled.append)
    other = HeldPeer(clock, 3, 0.004)
    queue.add(Faulty(clock, 1, 0.004))
    queue.add(other)
    with pytest.raises(ZeroDivisionError):
        scheduled.popleft()()
    while scheduled:
        scheduled.popleft()()
    assert other.left == 0
