"""The relay injects network faults on real sockets, in front of a server that echoes lines."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.relay import Direction, Endpoint, Relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOST = "127.0.0.1"
TIMEOUT_S = 5.0
NOTHING_S = 0.15


class Echo:
    """A server that echoes each line."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.line_received = asyncio.Event()
        self.received_at_s = 0.0
        self.ended: list[asyncio.Event] = []
        """One event for each connection, in order: set when the connection has ended."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = asyncio.Event()
        self.ended.append(ended)
        try:
            while line := await reader.readline():
                self.lines.append(line)
                self.line_received.set()
                self.received_at_s = asyncio.get_running_loop().time()
                writer.write(line)
                await writer.drain()
        except OSError:
            pass
        finally:
            ended.set()
            writer.close()

    async def wait_for_lines(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.lines) < count:
                await self.line_received.wait()
                self.line_received.clear()


class Client:
    """One connection through the relay."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def echo_line(self, line: bytes = b"ask\n") -> bytes:
        self.writer.write(line)
        return await asyncio.wait_for(self.reader.readline(), TIMEOUT_S)

    async def gets_nothing(self) -> bool:
        try:
            await asyncio.wait_for(self.reader.readline(), NOTHING_S)
        except TimeoutError:
            return True
        return False


class Network:
    """An echo server, a relay in front of it, and clients."""

    def __init__(self, echo: Echo, relay: Relay) -> None:
        self.echo = echo
        self.relay = relay
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(self.relay.host, self.relay.port))
        self.clients.append(client)
        assert await client.echo_line(b"hello\n") == b"hello\n"
        return client


@asynccontextmanager
async def echo_network() -> AsyncIterator[Network]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, HOST, 0)
    async with Relay(HOST, server.sockets[0].getsockname()[1]) as relay:
        network = Network(echo, relay)
        try:
            yield network
        finally:
            for client in network.clients:
                client.writer.close()
            server.close()
    for ended in echo.ended:
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)


async def test_dropped_responses_reach_no_client_and_the_connection_is_reset_later() -> None:
    async with echo_network() as network:
        echo, relay = network.echo, network.relay
        client = await network.connect()
        relay.drop(Direction.RESPONSES)
        client.writer.write(b"ask\n")
        await echo.wait_for_lines(2)
        assert await client.gets_nothing()
        await relay.restore()
        with pytest.raises(ConnectionResetError):  # a stream with a hole never continues
            await client.echo_line()
        assert await (await network.connect()).echo_line() == b"ask\n"


async def test_dropped_requests_reach_no_server_and_the_close_is_hidden_until_restored() -> None:
    async with echo_network() as network:
        echo, relay = network.echo, network.relay
        client, idle = await network.connect(), await network.connect()
        relay.drop(Direction.REQUESTS)
        client.writer.write(b"ask\n")
        assert await client.gets_nothing()
        client.writer.close()
        await asyncio.sleep(NOTHING_S)
        assert len(echo.lines) == 2
        assert not echo.ended[0].is_set()
        await relay.restore()
        await asyncio.wait_for(echo.ended[0].wait(), TIMEOUT_S)
        assert await idle.echo_line() == b"ask\n"  # this connection lost no bytes


async def test_a_delay_applies_to_its_direction() -> None:
    async with echo_network() as network:
        client, loop = await network.connect(), asyncio.get_running_loop()
        network.relay.delay(2 * NOTHING_S, frozenset({Direction.RESPONSES}))
        assert await client.echo_line() == b"ask\n"
        assert round(loop.time() - network.echo.received_at_s, 3) >= 2 * NOTHING_S  # the loop's clock has milliseconds


async def test_a_half_open_connection_is_closed_at_the_server_and_reset_at_the_client_later() -> None:
    async with echo_network() as network:
        echo, relay = network.echo, network.relay
        client = await network.connect()
        relay.half_open(Endpoint.SERVER)
        await asyncio.wait_for(echo.ended[0].wait(), TIMEOUT_S)
        client.writer.write(b"ask\n")
        assert await client.gets_nothing()
        assert await (await network.connect()).echo_line() == b"ask\n"
        await relay.restore()
        assert await client.gets_nothing()
        with pytest.raises(ConnectionResetError):
            await client.echo_line()


async def test_a_half_open_connection_can_stay_open_at_the_server() -> None:
    async with echo_network() as network:
        echo, relay = network.echo, network.relay
        client = await network.connect()
        relay.half_open(Endpoint.CLIENT)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(), TIMEOUT_S)
        await relay.restore()
        await asyncio.sleep(NOTHING_S)
        assert not echo.ended[0].is_set()


async def test_a_connection_is_reset_right_after_a_request_reaches_the_server() -> None:
    async with echo_network() as network:
        echo, relay = network.echo, network.relay
        rng, received = random.Random(1), 0
        for _ in range(10):
            client = await network.connect()
            before = len(echo.lines)
            relay.reset_after_requests(rng, 1.0)
            with pytest.raises(ConnectionResetError):
                await client.echo_line()
            await relay.restore()
            await asyncio.wait_for(echo.ended[-1].wait(), TIMEOUT_S)
            received += len(echo.lines) - before
        assert received > 2  # some connections are reset before the server reads the request


async def test_open_connections_work_while_new_connections_are_refused() -> None:
    async with echo_network() as network:
        relay = network.relay
        client = await network.connect()
        relay.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(relay.host, relay.port)
        assert await client.echo_line() == b"ask\n"
        await relay.restore()
        assert await (await network.connect()).echo_line() == b"ask\n"
