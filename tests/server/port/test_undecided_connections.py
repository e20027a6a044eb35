"""Connections whose protocol is not known yet, or is refused, are counted, limited and closed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from twinbus.amqp import aio
from twinbus.amqp.codec.frames import frame
from twinbus.amqp.codec.performatives import Open
from twinbus.amqp.connection import Connection
from twinbus.amqp.settings import Settings
from twinbus.server.port import refusal
from twinbus.server.port.client_port import ClientPort
from twinbus.server.port.detection import WireProtocol, detect
from twinbus.server.port.directory import PortDirectory
from twinbus.server.runtime.acceptor import Acceptor
from twinbus.server.runtime.admission import Admission
from twinbus.server.runtime.listening_sockets import bind_sockets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.events import Event

WAIT_S = 20.0
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Silence:
    """The program behind the AMQP listener, which does nothing."""

    def __init__(self, _peer: Peer) -> None:
        pass

    def on_event(self, event: Event) -> None:
        pass

    def on_writable(self) -> None:
        pass


class Gateway:
    """The part of a gateway that a port needs."""

    def make_connection(self, now: float) -> Connection:
        return Connection.server(Settings(container_id="contoso"), now=now, require_sasl=False)

    def restrict_mechanisms(self, peer: Peer) -> None:
        pass


class PortHarness:
    """An open port: `amqp`, which serves AMQP without TLS and refuses HTTP, or `http`, which refuses AMQP."""

    def __init__(self, name: str, detection_timeout_s: float) -> None:
        self.name = name
        self.admission = Admission()
        self.writers: list[asyncio.StreamWriter] = []
        self.directory = PortDirectory(plaintext=("amqp",), has_tls=False)
        self.port = ClientPort(name, self.directory, Gateway(), detection_timeout_s=detection_timeout_s)

    async def open(self) -> None:
        (sock,) = bind_sockets("127.0.0.1", 0)
        serve = self.port.serve_function(WireProtocol.AMQP)
        self.port.add_listener(await aio.listen(Silence, Gateway().make_connection, serve=serve))
        self.directory.ports[self.name] = await self.port.open(Acceptor(sock, self.admission).serve, None)

    async def connect(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.directory.ports[self.name])
        self.writers.append(writer)
        writer.write(data)
        return reader, writer

    async def wait_for_connections(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.admission.count != count:  # noqa: ASYNC110  # there is no event
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def open_port(*, name: str = "amqp", detection_timeout_s: float = 60.0) -> AsyncIterator[PortHarness]:
    harness = PortHarness(name, detection_timeout_s)
    await harness.open()
    try:
        yield harness
    finally:
        await harness.port.close(grace_s=1.0)
        for writer in harness.writers:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Return everything that the server sends until it closes or resets the connection."""
    received = b""
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(65_536):
                received += data
    return received


@pytest.mark.parametrize(
    ("first_bytes", "protocol"),
    [
        (b"AMQP", WireProtocol.AMQP),
        (b"AMQP\x03\x01\x00\x00", WireProtocol.AMQP),
        (b"A", None),
        (b"AMQ", None),
        (b"AMQQ", WireProtocol.HTTP),
        (b"GET / HTTP/1.1", WireProtocol.HTTP),
        (b"P", WireProtocol.HTTP),
        (b"AL", WireProtocol.HTTP),
        (b"\x16\x03\x01", WireProtocol.TLS),
        (b"\x00", WireProtocol.UNKNOWN),
        (b" GET", WireProtocol.UNKNOWN),
    ],
)
def test_the_first_bytes_show_the_protocol(first_bytes: bytes, protocol: WireProtocol | None) -> None:
    assert detect(first_bytes) is protocol


async def test_a_client_that_does_not_show_its_protocol_in_time_is_dropped() -> None:
    async with open_port(detection_timeout_s=0.05) as harness:
        reader, _ = await harness.connect(b"AM")
        assert await read_to_end(reader) == b""
        await harness.wait_for_connections(0)


async def test_a_client_that_shows_its_protocol_is_not_dropped_by_the_time_limit() -> None:
    async with open_port(detection_timeout_s=0.05) as harness:
        reader, _ = await harness.connect(AMQP_HEADER)
        assert await reader.readexactly(8) == AMQP_HEADER
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.readexactly(10_000), 0.2)
        assert harness.admission.count == 1


async def test_tls_without_a_certificate_gets_an_alert_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with open_port() as harness:
        reader, writer = await harness.connect(b"\x16\x03\x01\x02\x00\x01")
        assert await reader.readexactly(7) == refusal.TLS_ALERT
        writer.close()
        await harness.wait_for_connections(0)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"refused a connection from 127.0.0.1: port {harness.directory.ports['amqp']} serves AMQP without TLS, but the "
        "client sent TLS: no port of the server serves TLS"
    )


async def test_a_refused_client_that_does_not_close_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "LINGER_S", 0.05)
    async with open_port() as harness:
        reader, _ = await harness.connect(REQUEST)
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        await harness.wait_for_connections(0)


async def test_a_refused_client_that_sends_without_end_is_dropped() -> None:
    async with open_port() as harness:
        _, writer = await harness.connect(REQUEST)
        await harness.wait_for_connections(1)
        with contextlib.suppress(ConnectionError):
            for _ in range(32):
                writer.write(b"x" * 65_536)
                await writer.drain()
        await harness.wait_for_connections(0)


async def test_a_refused_amqp_client_that_does_not_close_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "LINGER_S", 0.05)
    async with open_port(name="http") as harness:
        reader, _ = await harness.connect(AMQP_HEADER + frame(0, Open(container_id="app").encode()))
        assert b"amqp:not-allowed" in await read_to_end(reader)
        await harness.wait_for_connections(0)


@pytest.mark.parametrize("first_bytes", [b"", b"AM", REQUEST])
async def test_a_port_that_closes_drops_connections_that_belong_to_no_listener(first_bytes: bytes) -> None:
    async with open_port() as harness:
        reader, _ = await harness.connect(first_bytes)
        await harness.wait_for_connections(1)
        if first_bytes == REQUEST:
            await reader.readline()
    assert harness.admission.count == 0
