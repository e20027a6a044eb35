"""A WebSocket client that sends many empty frames is served in turns with all other clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, cast

import pytest

from tests.amqp.sockets.test_asyncio_adapter import Recorder, run
from tests.amqp.sockets.test_fairness import Time
from tests.server.websocket.raw_websocket import frame
from twinbus.amqp import peer_input
from twinbus.amqp.codec.frames import AMQP_HEADER
from twinbus.amqp.codec.frames import frame as amqp_frame
from twinbus.amqp.codec.performatives import Open
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import ConnectionOpened
from twinbus.amqp.peer_input import TIME_SLICE_S
from twinbus.amqp.settings import Settings
from twinbus.server.websocket import frames
from twinbus.server.websocket import socket as websocket
from twinbus.server.websocket.frames import CloseCode, FrameReader, Opcode, close_frame, frame_header
from twinbus.server.websocket.upgrade import WebSocketUpgrade

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.amqp.aio import Peer

FRAME_S = 0.000_01
"""The time that one frame takes on the clock of these tests."""
FRAMES = 100_000
HELLO = AMQP_HEADER + amqp_frame(0, Open(container_id="c").encode())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Return a clock that advances with every handled frame, and raise the limit on frames without data."""
    passing, begin = Time(), FrameReader._begin_frame  # noqa: SLF001

    def begin_and_advance(reader: FrameReader, data: bytes, at: int) -> int:
        passing.now_s += FRAME_S
        return begin(reader, data, at)

    monkeypatch.setattr(FrameReader, "_begin_frame", begin_and_advance)
    monkeypatch.setattr(peer_input, "time", passing)
    monkeypatch.setattr(websocket, "time", passing)
    monkeypatch.setattr(frames, "MAX_FRAMES_WITHOUT_DATA", 10 * FRAMES)
    return passing


class WebSocketFixture:
    """A WebSocket server that skips the handshake, and one client, in the same event loop."""

    def __init__(self) -> None:
        self.handlers: asyncio.Queue[Recorder] = asyncio.Queue()
        settings = Settings(container_id="server")
        make_connection = lambda now: Connection.server(settings, now=now, require_sasl=False)  # noqa: E731
        self.upgrade = WebSocketUpgrade(self._make_handler, make_connection)
        self.client = socket.socket()
        self.client.setblocking(False)  # noqa: FBT003

    def _make_handler(self, peer: Peer) -> Recorder:
        handler = Recorder(peer)
        self.handlers.put_nowait(handler)
        return handler

    async def read_until(self, end: bytes) -> bytes:
        read = b""
        while not read.endswith(end):
            chunk = await asyncio.get_running_loop().sock_recv(self.client, 65_536)
            assert chunk, f"the connection ended after {read!r}"
            read += chunk
        return read


class Upgraded(asyncio.Protocol):
    """A connection that becomes a WebSocket immediately."""

    def __init__(self, upgrade: WebSocketUpgrade) -> None:
        self._upgrade = upgrade

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._upgrade.upgrade(cast("asyncio.Transport", transport), b"hello", b"", None)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[WebSocketFixture]:
    served, loop = WebSocketFixture(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upgraded(served.upgrade), "127.0.0.1", 0)
    try:
        await loop.sock_connect(served.client, server.sockets[0].getsockname())
        await served.read_until(b"hello")
        yield served
    finally:
        served.client.close()
        server.close()


class LoopWatch:
    """The longest turn of the event loop, and the most input that was pending after a turn."""

    def __init__(self, clock: Time, reader: FrameReader) -> None:
        self.longest_s = 0.0
        self.most_held = 0
        self._clock = clock
        self._reader = reader

    async def run(self) -> None:
        before_s = self._clock.now_s
        while True:
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, self._clock.now_s - before_s)
            self.most_held = max(self.most_held, len(self._reader._pending))  # noqa: SLF001
            before_s = self._clock.now_s


@pytest.mark.parametrize(
    "useless",
    [frame(Opcode.CONTINUATION, fin=False), frame(Opcode.PONG), frame(Opcode.PING, b"?")],
    ids=["empty", "pong", "ping"],
)
def test_a_burst_of_frames_without_data_is_handled_in_turns_and_in_order(clock: Time, useless: bytes) -> None:
    async def test() -> None:
        async with serving() as served:
            handler = await served.handlers.get()
            watch = LoopWatch(clock, cast("websocket.WebSocket", handler.peer.transport)._frames)  # noqa: SLF001
            watching = asyncio.ensure_future(watch.run())
            stream = frame(Opcode.BINARY, HELLO[:5], fin=False) + useless * FRAMES
            stream += frame(Opcode.CONTINUATION, HELLO[5:]) + frame(Opcode.PING, b"last") + frame(Opcode.CLOSE)
            sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(served.client, stream))
            answers = await served.read_until(frame_header(Opcode.PONG, 4) + b"last" + close_frame(CloseCode.NO_STATUS))
            assert AMQP_HEADER in answers
            assert len(await handler.wait_for_events(ConnectionOpened)) == 1
            await sending
            watching.cancel()
            assert clock.now_s > FRAMES * FRAME_S
            # One turn may handle a slice of the read and a slice of the pending frames.
            assert watch.longest_s < 4 * TIME_SLICE_S
            assert watch.most_held < 1_048_576

    run(test)


def test_a_peer_that_pauses_reading_gets_no_pending_frames_until_it_resumes(clock: Time) -> None:
    async def test() -> None:
        async with serving() as served:
            handler = await served.handlers.get()
            transport = handler.peer.transport
            stream = frame(Opcode.PONG) * 10_000 + frame(Opcode.BINARY, HELLO)
            await asyncio.get_running_loop().sock_sendall(served.client, stream)
            began_s = clock.now_s
            while clock.now_s == began_s:  # noqa: ASYNC110  # exactly until the first slice is handled
                await asyncio.sleep(0)
            transport.pause_reading()
            for _ in range(100):
                paused_s = clock.now_s
                await asyncio.sleep(0)
            assert clock.now_s == paused_s < began_s + 10_000 * FRAME_S
            assert not handler.events
            transport.resume_reading()
            await handler.wait_for_events(ConnectionOpened)

    run(test)
