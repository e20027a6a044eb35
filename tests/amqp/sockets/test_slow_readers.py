"""Silence limit of slow readers: a peer that still takes output is not silent, a peer that takes none is closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from twinbus.amqp.aio import Peer
from twinbus.amqp.codec.frames import AMQP_HEADER, HEARTBEAT, frame
from twinbus.amqp.codec.performatives import Open
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import ConnectionClosed
from twinbus.amqp.heartbeat import RECHECK_S
from twinbus.amqp.settings import Settings
from twinbus.testing import run

if TYPE_CHECKING:
    from twinbus.amqp.events import Event

LIMIT_S = 5.0
MEGABYTE = 1_048_576


class Socket(asyncio.Transport):
    """A transport whose other end takes `rate` bytes per second."""

    def __init__(self, peer: Peer, rate: int) -> None:
        super().__init__()
        self._peer = peer
        self._rate = rate
        self._unwritten = self._high = 0
        self._is_closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert low is None
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self._unwritten

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._unwritten += len(data)
        if self._unwritten > self._high and self._peer.is_writable:
            self._peer.pause_writing()

    async def drain(self, seconds: int) -> None:
        for _ in range(seconds):
            await asyncio.sleep(1)
            self._unwritten -= self._rate

    def pause_reading(self) -> None:
        """Do nothing: there is no input."""

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True


class Handler:
    """A handler that records when its connection was closed."""

    def __init__(self, _peer: Peer) -> None:
        self.closed_s: float | None = None

    def on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionClosed):
            self.closed_s = asyncio.get_running_loop().time()

    def on_writable(self) -> None:
        """Do nothing: the handler sends nothing."""


@pytest.mark.parametrize(("rate", "is_closed"), [(1_000, False), (0, True)])
def test_a_slow_reader_stays_connected_and_one_that_reads_nothing_is_closed(*, rate: int, is_closed: bool) -> None:
    async def read() -> None:
        loop = asyncio.get_running_loop()
        settings = Settings(container_id="server")
        peer = Peer(Handler, Connection.server(settings, now=loop.time(), require_sasl=False))
        socket = Socket(peer, rate)
        peer.connection_made(socket)
        peer.data_received(AMQP_HEADER + frame(0, Open(container_id="client").encode()))
        peer.connection.set_silence_limit(LIMIT_S)
        start_s = loop.time()
        peer.connection.write(HEARTBEAT * (2 * MEGABYTE // len(HEARTBEAT)))
        peer.flush()
        assert not peer.is_writable
        await socket.drain(60)
        assert isinstance(peer.handler, Handler)
        if is_closed:
            assert peer.handler.closed_s is not None
            assert LIMIT_S <= peer.handler.closed_s - start_s <= LIMIT_S + RECHECK_S + 1.1
        else:
            assert peer.handler.closed_s is None
        peer.connection_lost(None)

    run(read())
