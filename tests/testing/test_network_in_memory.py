"""Connections in memory behave like sockets, as far as the product relies on it."""

from __future__ import annotations

import asyncio
import socket

import anyio
import pytest

from twinbus.testing import in_virtual_time

HOST = "contoso.servicebus.test"


class End(asyncio.Protocol):
    """A protocol that records its events."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.data = b""
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert self.events, "data came before the connection"
        self.data += data

    def eof_received(self) -> None:
        self.events.append("end")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def connected(host: str = HOST, port: int = 5672) -> tuple[End, End]:
    """Return the two ends of a new connection; the server accepts no others."""
    loop, served = asyncio.get_running_loop(), End()
    server = await loop.create_server(lambda: served, host, port)
    _, client = await loop.create_connection(End, host, port)
    await turns()
    server.close()
    return client, served


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@in_virtual_time
async def test_bytes_arrive_in_order_in_both_directions() -> None:
    client, served = await connected()
    for word in (b"two ", b"pounds ", b"of apples"):
        client.transport.write(word)
    served.transport.writelines([b"thank ", b"you"])
    await turns()
    assert (served.data, client.data) == (b"two pounds of apples", b"thank you")


@in_virtual_time
async def test_both_ends_know_the_address_of_the_other() -> None:
    client, served = await connected()
    assert client.transport.get_extra_info("peername") == served.transport.get_extra_info("sockname")
    assert client.transport.get_extra_info("sockname") == served.transport.get_extra_info("peername")
    assert client.transport.get_extra_info("socket").getpeername()[1] == 5672
    assert client.transport.get_extra_info("sslcontext") is None


@in_virtual_time
async def test_a_close_takes_effect_after_written_bytes_have_arrived() -> None:
    client, served = await connected()
    client.transport.write(b"goodbye")
    client.transport.close()
    assert client.transport.is_closing()
    client.transport.write(b"nobody hears this")
    assert await client.lost is None
    assert await served.lost is None
    assert (served.data, served.events) == (b"goodbye", ["made", "end"])


class Half(End):
    """A protocol that keeps its connection open when the other end has ended."""

    def eof_received(self) -> bool:  # type: ignore[override]  # True keeps the connection open
        super().eof_received()
        return True


@in_virtual_time
async def test_writing_to_a_closed_connection_resets_it() -> None:
    loop, served = asyncio.get_running_loop(), End()
    await loop.create_server(lambda: served, HOST, 80)
    _, client = await loop.create_connection(Half, HOST, 80)
    await turns()
    served.transport.close()
    await turns()
    assert client.events == ["made", "end"]
    client.transport.write(b"are you there?")
    assert isinstance(await client.lost, ConnectionResetError)


@in_virtual_time
async def test_one_direction_may_end_before_the_other() -> None:
    loop, served = asyncio.get_running_loop(), Half()
    await loop.create_server(lambda: served, HOST, 80)
    _, client = await loop.create_connection(End, HOST, 80)
    client.transport.write(b"a question")
    client.transport.write_eof()
    await turns()
    assert (served.data, served.events) == (b"a question", ["made", "end"])
    served.transport.write(b"its answer")
    await turns()
    assert client.data == b"its answer"


@in_virtual_time
async def test_an_end_that_does_not_read_pauses_the_other() -> None:
    client, served = await connected()
    served.transport.pause_reading()
    client.transport.write(bytes(1_000_000))
    assert client.events == ["made", "pause"]
    await turns()
    assert served.data == b""
    served.transport.resume_reading()
    await turns()
    assert (len(served.data), client.events) == (1_000_000, ["made", "pause", "resume"])


@in_virtual_time
async def test_a_failing_protocol_loses_its_connection_and_the_loop_is_notified() -> None:
    class Faulty(End):
        def data_received(self, data: bytes) -> None:
            raise ValueError(data)

    contexts: list[dict[str, object]] = []
    loop, served = asyncio.get_running_loop(), Faulty()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    await loop.create_server(lambda: served, HOST, 80)
    _, client = await loop.create_connection(End, HOST, 80)
    client.transport.write(b"too much")
    await client.lost
    assert [str(context["exception"]) for context in contexts] == ["b'too much'"]


@in_virtual_time
async def test_a_connection_without_a_listener_is_refused() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(End, HOST, 80)
    for host, port in ((HOST, 81), ("elsewhere.test", 80)):
        with pytest.raises(ConnectionRefusedError, match=f"{host}:{port}"):
            await loop.create_connection(End, host, port)
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(End, HOST, 80)


@in_virtual_time
async def test_a_port_is_used_once_and_port_zero_is_a_free_port() -> None:
    loop = asyncio.get_running_loop()
    first, second = [await loop.create_server(End, HOST, 0) for _ in range(2)]
    assert first.sockets[0].getsockname() != second.sockets[0].getsockname()
    with pytest.raises(OSError, match="in use"):
        await loop.create_server(End, HOST, first.sockets[0].getsockname()[1])


@in_virtual_time
async def test_a_server_is_closed_when_its_last_connection_is_gone() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(End, HOST, 80)
    _, client = await loop.create_connection(End, HOST, 80)
    server.close()
    closed = asyncio.ensure_future(server.wait_closed())
    await turns()
    assert not closed.done()
    client.transport.close()
    await closed


@in_virtual_time
async def test_only_hosts_of_the_network_have_an_address() -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(End, HOST, 80)
    ((family, kind, _, _, address),) = await loop.getaddrinfo(HOST, 80, type=socket.SOCK_STREAM)
    assert (family, kind, address[1]) == (socket.AF_INET, socket.SOCK_STREAM, 80)
    _, client = await loop.create_connection(End, str(address[0]), 80)
    assert client.events == ["made"]
    with pytest.raises(socket.gaierror, match=r"elsewhere\.test"):
        await loop.getaddrinfo("elsewhere.test", 80)


@in_virtual_time
async def test_streams_of_asyncio_work() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    await asyncio.start_server(answer, HOST, 80)
    reader, writer = await asyncio.open_connection(HOST, 80)
    writer.write(b"hello\n")
    await writer.drain()
    assert await reader.read() == b"HELLO\n"
    writer.close()
    await writer.wait_closed()


@in_virtual_time
async def test_streams_of_anyio_work() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    await asyncio.start_server(answer, HOST, 80)
    async with await anyio.connect_tcp(HOST, 80) as stream:
        await stream.send(b"hello\n")
        assert await stream.receive() == b"HELLO\n"
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


@in_virtual_time
async def test_tls_is_not_supported() -> None:
    with pytest.raises(NotImplementedError, match="does not support TLS"):
        await asyncio.get_running_loop().create_connection(End, HOST, 443, ssl=True)
