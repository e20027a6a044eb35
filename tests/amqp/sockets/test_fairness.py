"""A peer whose frames are dear to handle has its turns, and so has every other, however much the first one says."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import TYPE_CHECKING, Self

import pytest

from tests.amqp.sockets.test_asyncio_adapter import ListenerFixture, Recorder, run
from twinbus.amqp import peer_input
from twinbus.amqp.events import AttachRequested, ConnectionClosed, SessionBegun
from twinbus.amqp.frames import AMQP_HEADER, frame
from twinbus.amqp.peer_input import TIME_SLICE_S, HeldInputQueue
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, Open
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from twinbus.amqp.events import Event

ATTACH_S = 0.001
"""What handling one attach takes, on the clock of these tests."""
SERVER = Settings(
    container_id="server",
    limits=Limits(max_unanswered_bytes=2**30),
    unauthenticated_limits=Limits(max_unanswered_bytes=2**30),
)


class Time:
    """Seconds that pass only where something is handled."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def monotonic(self) -> float:
        return self.now_s


class Slow(Recorder):
    """A program for which each attach takes its time, and which knows what everybody did, in order."""

    time: Time
    order: list[tuple[str, float]]

    def handle_event(self, event: Event) -> None:
        super().handle_event(event)
        if isinstance(event, AttachRequested):
            self.time.now_s += ATTACH_S
            self.order.append((event.link.name.split()[0], self.time.now_s))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    passing = Time()
    monkeypatch.setattr(peer_input, "time", passing)
    return type("Slow", (Slow,), {"time": passing, "order": []})


def hello() -> bytes:
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
    place = await ListenerFixture(make_handler, SERVER).start()
    try:
        yield place
    finally:
        await place.listener.close(grace_s=0.1)


class Speaker:
    """A client that says what it is told to, and leaves all answers unread."""

    handler: Recorder

    def __init__(self, place: ListenerFixture) -> None:
        self._place = place
        self._socket = socket.create_connection(("127.0.0.1", place.listener.port))
        self._socket.setblocking(False)  # noqa: FBT003

    async def __aenter__(self) -> Self:
        await self.send(hello())
        self.handler = await self._place.arrivals.get()
        await self.handler.wait_for_events(SessionBegun)
        return self

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()


def attached(handler: Recorder) -> int:
    return len([one for one in handler.events if isinstance(one, AttachRequested)])


def test_a_read_of_a_thousand_attaches_is_handled_in_turns_and_others_have_theirs_between(slow: type[Slow]) -> None:
    async def test() -> None:
        async with serving(slow) as place, Speaker(place) as greedy, Speaker(place) as modest:
            await greedy.send(attaches("greedy", 1_000))
            await greedy.handler.wait_for_events(AttachRequested)
            began_s = slow.time.now_s
            assert attached(greedy.handler) < 100
            await modest.send(attaches("modest", 1))
            await modest.handler.wait_for_events(AttachRequested)
            assert slow.time.now_s - began_s < 10 * TIME_SLICE_S
            await greedy.handler.wait_for_events(AttachRequested, 1_000)
            names = [one.link.name for one in greedy.handler.events if isinstance(one, AttachRequested)]
            assert names == [f"greedy {n}" for n in range(1_000)]

    run(test)


def test_many_peers_with_much_to_say_share_one_turn(slow: type[Slow]) -> None:
    async def test() -> None:
        async with serving(slow) as place, contextlib.AsyncExitStack() as stack:
            modest = await stack.enter_async_context(Speaker(place))
            crowd = [await stack.enter_async_context(Speaker(place)) for _ in range(20)]
            for greedy in crowd:
                await greedy.send(attaches("greedy", 100))
            for greedy in crowd:
                await greedy.handler.wait_for_events(AttachRequested)
            began_s = slow.time.now_s
            await modest.send(attaches("modest", 1))
            await modest.handler.wait_for_events(AttachRequested)
            assert (
                slow.time.now_s - began_s < 15 * TIME_SLICE_S
            )  # with a turn for each of them it would be 20 at the least
            for greedy in crowd:
                await greedy.handler.wait_for_events(AttachRequested, 100)

    run(test)


def test_a_socket_is_not_read_from_while_its_input_is_held(slow: type[Slow]) -> None:
    async def test() -> None:
        async with serving(slow) as place, Speaker(place) as greedy:
            saying = asyncio.ensure_future(greedy.send(attaches("greedy", 10_000)))
            connection = greedy.handler.peer.connection
            most = 0
            while attached(greedy.handler) < 500:
                await asyncio.sleep(0)
                most = max(most, connection._held_size)  # noqa: SLF001
            assert 0 < most < 1_000_000
            saying.cancel()

    run(test)


def test_a_close_behind_much_input_is_answered(slow: type[Slow]) -> None:
    async def test() -> None:
        async with serving(slow) as place, Speaker(place) as greedy:
            await greedy.send(attaches("greedy", 500) + frame(0, Close().encode()))
            await greedy.handler.wait_for_events(ConnectionClosed)
            assert attached(greedy.handler) == 500

    run(test)


class Waiting:
    """A peer in a backlog, with so many pieces of input."""

    def __init__(self, passing: Time, pieces: int, piece_s: float) -> None:
        self.left = pieces
        self.read_at: list[float] = []
        self._time = passing
        self._piece_s = piece_s

    def read_slice(self) -> bool:
        self.read_at.append(self._time.now_s)
        self._time.now_s += self._piece_s
        self.left -= 1
        return self.left > 0


def test_a_backlog_takes_one_turn_at_a_time_and_a_piece_of_each_peer_in_it() -> None:
    passing = Time()
    soon: deque[Callable[[], None]] = deque()
    backlog = HeldInputQueue(passing.monotonic, soon.append)
    peers = [Waiting(passing, 10, 0.004) for _ in range(5)]
    for peer in peers:
        backlog.add(peer)
    turns = []
    while soon:
        before = passing.now_s
        soon.popleft()()
        turns.append(passing.now_s - before)
        assert max(peer.left for peer in peers) - min(peer.left for peer in peers) <= 1
    assert all(peer.left == 0 for peer in peers)
    assert max(turns) <= TIME_SLICE_S + 0.004 + 1e-9


def test_a_fault_of_one_peer_leaves_the_turns_of_the_others_as_they_are() -> None:
    class Faulty(Waiting):
        def read_slice(self) -> bool:
            raise ZeroDivisionError

    passing = Time()
    soon: deque[Callable[[], None]] = deque()
    backlog = HeldInputQueue(passing.monotonic, soon.append)
    other = Waiting(passing, 3, 0.004)
    backlog.add(Faulty(passing, 1, 0.004))
    backlog.add(other)
    with pytest.raises(ZeroDivisionError):
        soon.popleft()()
    while soon:
        soon.popleft()()
    assert other.left == 0
