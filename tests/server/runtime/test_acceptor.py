"""Connections are counted when they are accepted, and get a protocol with their first bytes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from typing import TYPE_CHECKING, cast

import pytest
import uvloop

from tests.support.server_process import wait_until
from twinbus.server.runtime import listening_sockets
from twinbus.server.runtime.acceptor import ACCEPT_RETRY_S, Acceptor
from twinbus.server.runtime.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.amqp.listener import ConnectionSlot

WAIT_S = 20.0


class Echo(asyncio.Protocol):
    def __init__(self, slot: ConnectionSlot | None) -> None:
        assert slot is not None
        self.slot = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.slot.release()


class AcceptorHarness:
    """An acceptor on its own socket, and the protocols that it created."""

    def __init__(self, admission: Admission, *, first_bytes_s: float = 60.0) -> None:
        (self.sock,) = listening_sockets.bind_sockets("127.0.0.1", 0)
        self.port = self.sock.getsockname()[1]
        self.admission = admission
        self.acceptor = Acceptor(self.sock, admission, first_bytes_timeout_s=first_bytes_s)
        self.protocols: list[Echo] = []

    def make_protocol(self, slot: ConnectionSlot | None) -> Echo:
        self.protocols.append(Echo(slot))
        return self.protocols[-1]

    async def open(self, tls: ssl.SSLContext | None = None, timeout_s: float = 60.0) -> AcceptorHarness:
        await self.acceptor.serve(self.make_protocol, tls, timeout_s)
        return self

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def wait_for(self, *, connections: int, protocols: int) -> None:
        """Wait for these numbers of counted connections and created protocols."""
        await asyncio.to_thread(
            wait_until, lambda: (self.admission.count, len(self.protocols)) == (connections, protocols)
        )

    async def close(self) -> None:
        self.acceptor.close()
        await self.acceptor.wait_closed()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    uvloop.run(bounded())


TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
"""A context without a certificate: no handshake in these tests gets that far."""


async def is_dropped(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S) == b""
    except ConnectionResetError:
        return True


def test_a_silent_connection_is_counted_and_has_no_protocol() -> None:
    async def test() -> None:
        harness = await AcceptorHarness(Admission()).open()
        reader, writer = await harness.connect()
        await harness.wait_for(connections=1, protocols=0)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert len(harness.protocols) == 1
        writer.close()
        await harness.wait_for(connections=0, protocols=1)
        await harness.close()

    run(test)


def test_a_silent_connection_is_dropped_after_its_timeout() -> None:
    async def test() -> None:
        harness = await AcceptorHarness(Admission(), first_bytes_s=0.05).open()
        reader, writer = await harness.connect()
        assert await is_dropped(reader)
        await harness.wait_for(connections=0, protocols=0)
        writer.close()
        await harness.close()

    run(test)


def test_an_unfinished_handshake_is_counted_and_dropped_after_its_timeout() -> None:
    async def test() -> None:
        harness = await AcceptorHarness(Admission()).open(TLS, 0.3)
        reader, writer = await harness.connect()
        writer.write(b"\x16\x03\x01")
        await harness.wait_for(connections=1, protocols=1)
        assert await is_dropped(reader)
        await harness.wait_for(connections=0, protocols=1)
        writer.close()
        await harness.close()

    run(test)


def test_an_unfinished_handshake_is_dropped_for_a_new_connection_after_its_grace() -> None:
    async def test() -> None:
        now_s = 0.0
        harness = await AcceptorHarness(Admission(max_connections=2, clock=lambda: now_s)).open(
            TLS
        )  # one connection from each address
        first, first_writer = await harness.connect()
        first_writer.write(b"\x16\x03\x01")
        await harness.wait_for(connections=1, protocols=1)
        second, second_writer = await harness.connect()
        assert await is_dropped(second)  # the first connection is within its grace period
        now_s = 10.0
        third, third_writer = await harness.connect()
        assert await is_dropped(first)
        assert harness.admission.count == 1
        for writer in (first_writer, second_writer, third_writer):
            writer.close()
        await harness.close()
        assert await is_dropped(third)

    run(test)


@pytest.mark.parametrize("tls", [None, TLS])
def test_a_connection_dropped_before_its_handshake_starts_releases_its_slot(tls: ssl.SSLContext | None) -> None:
    async def test() -> None:
        admission = Admission()
        harness = await AcceptorHarness(admission).open(tls)
        ours, theirs = socket.socketpair()
        slot = admission.admit("127.0.0.1")
        assert slot is not None
        released: list[bool] = []
        slot.on_released = lambda: released.append(True)
        harness.acceptor.start_protocol(theirs, slot)
        slot.drop()  # in the same turn of the loop: the task has not begun to run
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (admission.count, released, theirs.fileno()) == (0, [True], -1)
        assert harness.protocols == []
        ours.close()
        await harness.close()

    run(test)


def test_closing_drops_connections_without_a_protocol() -> None:
    async def test() -> None:
        harness = await AcceptorHarness(Admission()).open(TLS)
        silent, silent_writer = await harness.connect()
        started, started_writer = await harness.connect()
        started_writer.write(b"\x16\x03\x01")
        await harness.wait_for(connections=2, protocols=1)
        await harness.close()
        assert await is_dropped(silent)
        assert await is_dropped(started)
        await harness.wait_for(connections=0, protocols=1)
        silent_writer.close()
        started_writer.close()

    run(test)


class FullSocket(socket.socket):
    """A listening socket of a process that has reached its limit of open files."""

    accepts = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.accepts += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_at_the_limit_of_open_files_accept_pauses_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with FullSocket() as sock, contextlib.ExitStack() as stack:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            acceptor = await Acceptor(sock, Admission()).serve(Echo, None, 1.0)
            for _ in range(3):
                stack.enter_context(socket.create_connection(sock.getsockname()))
            await asyncio.sleep(0.3)
            assert sock.accepts == 1
            acceptor.close()

    assert ACCEPT_RETRY_S >= 1.0
    with caplog.at_level(logging.WARNING):
        run(test)
    (record,) = caplog.records
    assert record.getMessage() == "accept failed, trying again in 1 s: Too many open files"
